"""Every test of this folder has a cache of its own and no data folder from outside."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("LIGHTNING_FL_DATA", "LIGHTNING_FL_OFFLINE", "PL_GLOBAL_SEED"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of data."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(folder))
    return folder
