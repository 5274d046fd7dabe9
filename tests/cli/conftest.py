import os
import shutil
from pathlib import Path

import lightning.pytorch  # noqa: F401 - its log handler keeps the stderr of its import, which a test's capture closes
import pytest

from lightning_fl.cli import main


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Finished runs, to be copied, and one cache of molecules' features for all tests."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture(autouse=True)
def _shared_cache(monkeypatch, finished):
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(finished / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))


@pytest.fixture
def tiny(tmp_path):
    """A recipe on few molecules of one's own, with a small model: a round takes milliseconds."""
    smiles = ["C" * length + end for length in range(1, 11) for end in ("O", "N", "Cl", "Br", "F", "S")]
    rows = [f"{text},{len(text) * 0.3 - 1:.2f},assay_{number % 3}" for number, text in enumerate(smiles)]
    Path("tiny.csv").write_text("\n".join(["smiles,activity,assay", *rows]) + "\n")
    Path("tiny.yaml").write_text(
        """seed_everything: 3
trainer:
  strategy: fedavg
  callbacks:
    - class_path: ModelCheckpoint
      init_args:
        monitor: val/rmse
  max_rounds: 3
  local_steps: 2
  logger: false
  accelerator: cpu
  devices: 1
model:
  class_path: MoleculeModel
  init_args:
    hidden_dim: 8
    num_layers: 1
data:
  class_path: MoleculeCSV
  init_args:
    path: tiny.csv
    target_columns: [activity]
    group_column: assay
    batch_size: 8
"""
    )
    return tmp_path


@pytest.fixture
def fitted(tiny, finished, command):
    """A finished fit of the recipe, on a file of another folder; it is made once."""
    if not (finished / "tiny").is_dir():
        (finished / "tiny.csv").write_text(Path("tiny.csv").read_text())
        assert command("fit", "--config", "tiny.yaml", "--data.path", finished / "tiny.csv")[0] == 0
        shutil.move("runs", finished / "tiny")
    shutil.copytree(finished / "tiny", "runs")
    return Path("runs/version_0")


@pytest.fixture
def command(capsys):
    """Run a command in this process; its exit code, standard output and standard error."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
