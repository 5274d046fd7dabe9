"""User code that changes the working directory moves nothing of a run."""

import os
from pathlib import Path
from typing import Any

import pytest
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.runtime.surface import TrainerSurface


class Wandering(Callback):
    """Leaves the working directory for one below it, at every moment."""

    def _wander(self, trainer: TrainerSurface, *_: Any) -> None:
        Path("below").mkdir(exist_ok=True)
        os.chdir("below")

    setup = on_round_start = on_client_end = on_round_end = on_fit_end = teardown = _wander


def test_a_run_stays_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name, callbacks in (("still", []), ("wanders", [Wandering()])):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for ckpt_path in (None, "runs/version_0/checkpoints/last.ckpt"):
            rounds = 2 if ckpt_path is None else 3
            trainer = FederatedTrainer(callbacks=callbacks, max_rounds=rounds, local_steps=1, accelerator="cpu")
            trainer.fit(TinyModule(), TinyClients(), ckpt_path=ckpt_path)
            trainer.test(TinyModule(), TinyClients(), ckpt_path="best")
            monkeypatch.chdir(tmp_path / name)
            assert trainer.log_dir == f"runs/version_{0 if ckpt_path is None else 1}"
        files = [path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*") if path.is_file()]
        found.append(sorted(file for file in files if "tfevents" not in file.name))
    assert found[0] == found[1]


@pytest.mark.parametrize("given", ["~/mine", Path("~/mine")])
def test_the_home_folder_may_be_short(given: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert FederatedTrainer(default_root_dir=given).default_root_dir == str(tmp_path / "mine")
