"""A run that was killed ends, when it goes on, in the same record as one that was not: every file of its folder."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from killed_run import ROUNDS, run
from processes import SUPPORT, Process
from records import differences, record_of

from lightning_fl import CheckpointError

SCRIPT = SUPPORT / "killed_run.py"

#: When it is killed; twice where there are two moments, the second in the run that goes on.
KILLS = {
    "in a round": [["--round", "3"]],
    "between last.ckpt and best.ckpt": [["--file", "last.ckpt", "3", "after"]],
    "among the models": [["--file", "λ.ckpt", "1", "before"]],
    "twice": [["--round", "2"], ["--file", "summary.json", "1", "before"]],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("moments", KILLS.values(), ids=KILLS.keys())
def test_a_killed_run_ends_in_the_same_record(
    moments: list[list[str]], start_warm: Callable[..., Process], tmp_path: Path, whole: Path
) -> None:
    for words in moments:
        further = ["--ckpt-path", "last"] if any(tmp_path.iterdir()) else []
        ended = start_warm(SCRIPT, "--root", tmp_path, *further, *words).end()
        assert ended.code == -signal.SIGKILL, ended.err
    resumed = run(tmp_path, "last")
    assert resumed.name == f"version_{len(moments)}"
    assert differences(whole, resumed) == []
    assert json.loads((resumed / "summary.json").read_text())["resumed_from"]
    assert not [path for path in (tmp_path / f"version_{len(moments) - 1}").rglob(".*") if path.is_file()]


def test_what_the_record_holds(whole: Path) -> None:
    """So that two of nothing are not taken for the same."""
    record = record_of(whole)
    table = pd.read_csv(whole / "metrics.csv")
    assert {"val_loss/worst", "val_loss/worst (client 0)", "val_loss/a_b (client 1)", "val_loss/λ"} <= set(table)
    assert table.filter(like="train/loss/step/").count().sum() > 2 * ROUNDS
    assert len(record["curves"]) >= table.drop(columns="step").count().sum()
    stem = record["summary.json"]["file_names"]["a/b"]
    assert record["summary.json"]["file_names"] == {"a/b": stem}
    models = {f"models/{name}.ckpt" for name in ("shared_0", "worst", stem, "λ")}
    pictures = {f"figures/{name}.png" for name in ("learning_curves", "sampling_weights", "gain_val", "gain_test")}
    assert models | pictures | {"checkpoints/last.ckpt", "checkpoints/best.ckpt"} <= record.keys()
    assert set(record["summary.json"]["metrics"]) == {"train", "val", "test"}
    assert set(record["summary.json"]["gains_over_local_training"]["val"]) == {"loss"}


@pytest.mark.slow
def test_a_run_that_has_no_round_left_ends_in_the_same_record(tmp_path: Path, whole: Path) -> None:
    again = run(tmp_path, whole / "checkpoints" / "last.ckpt")
    assert differences(whole, again) == []


@pytest.mark.slow
def test_the_best_round_is_the_checkpoint_s_whatever_lies_beside_it(tmp_path: Path, whole: Path) -> None:
    """A later one, or none: what is tested is the best round that the checkpoint knows of."""
    first = run(tmp_path / "first", mode="max", rounds=2)
    path = first / "checkpoints" / "best.ckpt"
    assert torch.load(path, weights_only=True)["round"] == 1
    for content in ((whole / "checkpoints" / "best.ckpt").read_bytes(), None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        again = run(tmp_path / "again", first / "checkpoints" / "last.ckpt", mode="max", rounds=2)
        own = again / "checkpoints" / "best.ckpt"
        assert torch.load(own, weights_only=True)["round"] == 1
        tested = [json.loads((folder / "summary.json").read_text())["metrics"] for folder in (first, again)]
        assert tested[0] == tested[1]
        with pytest.raises(CheckpointError, match=r"best\.ckpt.*evaluations only.*last\.ckpt"):
            run(tmp_path / "on", own, mode="max")
