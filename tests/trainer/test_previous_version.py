"""Runs of the previous version resume to the result of a run that was not interrupted.

``previous_version/`` holds recipes, and the checkpoints that the version before wrote after two rounds of each.
"""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import seed_everything

from lightning_fl import CheckpointError, FederatedTrainer
from lightning_fl.engine.processes import Processes
from lightning_fl.recipe.parser import make_parser, parse
from lightning_fl.runtime.checkpoint import load_checkpoint

FOLDER = Path(__file__).parent / "previous_version"
CHECKPOINTS = sorted(FOLDER.glob("*/last*.ckpt"), key=str)


def fit(name: str, root: Path, ckpt_path: Path | None = None) -> FederatedTrainer:
    options = {"devices": 1, "accelerator": "cpu", "logger": "false", "enable_progress_bar": "false", "max_rounds": 4}
    words = [f"--trainer.{key}={value}" for key, value in options.items()]
    parser = make_parser("fit")
    config = parse(
        "fit", parser, ["--config", str(FOLDER / f"{name}.yaml"), f"--trainer.default_root_dir={root}", *words]
    )
    seed_everything(0)
    made = parser.instantiate(config)
    made.trainer.fit(made.model, made.data, ckpt_path=ckpt_path)
    return made.trainer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_a_run_of_the_previous_version_resumes_to_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    if list(FOLDER.glob(f"{name}/*.client-*")):  # each client's state is in a file of its own
        monkeypatch.setattr(Processes, "private", property(lambda self: True))
    whole = fit(name, tmp_path / "whole")
    resumed = fit(name, tmp_path / "resumed", FOLDER / name / "last.ckpt")
    assert resumed.current_round == 4
    assert resumed.differs == {}
    for own, other in zip(whole.models, resumed.models, strict=True):
        assert own.equal(other)
    for client in range(whole.num_clients):
        assert whole.client_model(client).equal(resumed.client_model(client))
    assert resumed.metrics == whole.metrics
    assert resumed.communication.summary(resumed.client_names) == whole.communication.summary(whole.client_names)
    states = [torch.load(Path(run.log_dir) / "checkpoints" / "last.ckpt") for run in (whole, resumed)]
    assert states[0].keys() == states[1].keys() == torch.load(FOLDER / name / "last.ckpt").keys()


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_damaged_file_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / path.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    with pytest.raises(CheckpointError, match=path.name):
        load_checkpoint(damaged)
