"""Where commands that read a run may write."""

from pathlib import Path

import pytest

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.inference.trained_run import check_out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in ("config.yaml", "models/shared_0.ckpt", "report.html"):
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "new.csv").touch()
    (tmp_path / "link.csv").symlink_to(tmp_path / "new.csv")
    (tmp_path / "models").symlink_to(tmp_path / "run" / "models")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "name", ["new.csv", "link.csv", "run/config.yaml", "run/models/shared_0.ckpt", "run/models/x.ckpt", "models/x.ckpt"]
)
def test_what_is_read_is_not_written(name: str, run: Path) -> None:
    with pytest.raises(ConfigurationError, match=name):
        check_out(run.parent / name, run, run.parent / "new.csv", named=True, replace=True)


def test_other_files_may_be_written(run: Path) -> None:
    for name in ("other.csv", "run/report.html", "run/personal/new.ckpt"):
        check_out(run.parent / name, run, run.parent / "new.csv", named=True, replace=True)
    with pytest.raises(ConfigurationError, match="--force"):
        check_out(run / "report.html", run, named=True, replace=False)
    (run / "personal").symlink_to(run.parent)
    with pytest.raises(ConfigurationError, match="leads out of the run"):
        check_out(run / "personal" / "new.ckpt", run, named=False, replace=True)
