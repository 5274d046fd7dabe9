import os
import sys
from pathlib import Path

import lightning.pytorch  # noqa: F401 - its log handler keeps the stderr of its import, which a test's capture closes
import pytest

from lightning_fl.cli import main


@pytest.fixture(scope="session")
def feature_cache(tmp_path_factory):
    """One cache of molecules' features for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path, feature_cache):
    """Every test runs in a folder of its own, without a network, and leaves the environment as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(feature_cache))
    for name in ("LIGHTNING_FL_DATA", "LIGHTNING_FL_DEBUG", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    # what a run sets: put back afterwards
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "0" if name.startswith("PL_") else "1"))
    return tmp_path


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
def command(capsys):
    """Run a command in this process; its exit code, standard output and standard error."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
