"""Runs of the previous version resume to the result of a run that was not interrupted.

``previous_version/`` holds recipes, and the checkpoints that the version before wrote after two rounds of each.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything

from lightning_fl import CheckpointError, FederatedTrainer
from lightning_fl.engine.processes import Processes
from lightning_fl.recipe.parser import make_parser, parse
from lightning_fl.runtime.checkpoint import load_checkpoint

FOLDER = Path(__file__).parent / "previous_version"
#: The files were written on another CPU, whose sums round otherwise: a few 2^-23 in each of the steps before and after.
ANOTHER_CPU = {"rtol": 40 * 2**-23, "atol": 40 * 2**-23}
CHECKPOINTS = sorted(FOLDER.glob("*/last*.ckpt"), key=str)


def fit(name: str, root: Path, ckpt_path: Path | None = None, **more: str) -> FederatedTrainer:
    options = {
        "devices": 1,
        "accelerator": "cpu",
        "logger": "false",
        "enable_progress_bar": "false",
        "max_rounds": 4,
    } | more
    words = [f"--trainer.{key}={value}" for key, value in options.items()]
    parser = make_parser("fit")
    config = parse(
        "fit", parser, ["--config", str(FOLDER / f"{name}.yaml"), f"--trainer.default_root_dir={root}", *words]
    )
    seed_everything(0)
    made = parser.instantiate(config)
    made.trainer.fit(made.model, made.data, ckpt_path=ckpt_path)
    return made.trainer


def learned(run: FederatedTrainer) -> list[dict[str, Any]]:
    """Weights of the shared models and the clients', and metrics."""
    weights = [*run.models, *map(run.client_model, range(run.num_clients))]
    metrics = {
        f"{split}/{name}": [summary.mean, summary.worst, *summary.clients.values()]
        for split, named in run.metrics.items()
        for name, summary in named.items()
    }
    return [*(dict(one.state_dict()) for one in weights), metrics]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_a_run_of_the_previous_version_resumes_to_the_same_result(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if list(FOLDER.glob(f"{name}/*.client-*")):  # each client's state is in a file of its own
        monkeypatch.setattr(Processes, "private", property(lambda self: True))
    is_named = "optimizer_state" in (FOLDER / f"{name}.yaml").read_text()
    whole = fit(
        name, tmp_path / "whole", **({} if is_named else {"optimizer_state": "fresh"})
    )  # that version's default
    resumed = fit(name, tmp_path / "resumed", FOLDER / name / "last.ckpt")
    assert resumed.current_round == 4
    assert resumed.differs == {}
    torch.testing.assert_close(learned(resumed), learned(whole), **ANOTHER_CPU)
    assert resumed.communication.summary(resumed.client_names) == whole.communication.summary(whole.client_names)
    states = [torch.load(Path(run.log_dir) / "checkpoints" / "last.ckpt") for run in (whole, resumed)]
    assert states[0].keys() == states[1].keys() >= torch.load(FOLDER / name / "last.ckpt").keys()


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_damaged_file_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / path.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    with pytest.raises(CheckpointError, match=path.name):
        load_checkpoint(damaged)
