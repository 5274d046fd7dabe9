"""The mean over the last rounds: by hand, over a resumed run, and that it changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hooks import StopAfter
from tiny import TinyClients, TinyModule, same_bits, weights_of

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, LastRounds, ModelCheckpoint
from lightning_fl.study.finished_run import FinishedRun


class EveryRound(Callback):
    """The clients' test losses after each round, by hand."""

    def __init__(self) -> None:
        self.losses: list[list[float]] = []

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        data = trainer.datamodule
        assert isinstance(data, TinyClients)
        trainer.loop.flat.load(trainer.models[0])
        module, losses = trainer.module, []
        assert module is not None
        for client in range(3):
            x, y = data.sets[client, "test"].tensors  # type: ignore[attr-defined]
            with torch.no_grad():
                losses.append(float((module(x) - y).square().mean()))
        self.losses.append(losses)


def run(folder: Path, *callbacks: Callback, rounds: int = 5, ckpt: str | None = None, **more: Any) -> FederatedTrainer:
    trainer = FederatedTrainer(
        max_rounds=rounds,
        local_steps=2,
        callbacks=[*callbacks, ModelCheckpoint(every_n_rounds=1, save_models=False)],
        default_root_dir=folder,
        enable_progress_bar=False,
        **more,
    )
    trainer.fit(TinyModule(), TinyClients(), ckpt_path=ckpt)
    return trainer


def last_rounds(trainer: FederatedTrainer) -> dict[str, Any]:
    return json.loads((Path(trainer.log_dir) / "summary.json").read_text())["last_rounds"]["test"]


def test_it_is_the_mean_over_rounds(tmp_path: Path) -> None:
    watch = EveryRound()
    trainer = run(tmp_path, LastRounds(num=3), watch)
    found = last_rounds(trainer)["loss"]
    last = torch.tensor(watch.losses[-3:])  # [3 rounds, 3 clients]
    assert found["rounds"] == [3, 4, 5]
    assert found["mean"] == pytest.approx(float(last.mean()), rel=1e-5)
    assert found["worst"] == pytest.approx(float(last.max(1).values.mean()), rel=1e-5)  # of each round
    assert found["best"] == pytest.approx(float(last.min(1).values.mean()), rel=1e-5)
    assert list(found["clients"].values()) == pytest.approx(last.mean(0).tolist(), rel=1e-5)
    assert found["higher_is_better"] is False
    assert FinishedRun.read(trainer.log_dir).summary["last_rounds"]["test"]["loss"] == found


def test_a_short_run_has_all_its_rounds(tmp_path: Path) -> None:
    assert last_rounds(run(tmp_path, LastRounds(num=10), rounds=2))["loss"]["rounds"] == [1, 2]


def test_it_changes_nothing(tmp_path: Path) -> None:
    with_it, without = run(tmp_path / "a", LastRounds(num=4)), run(tmp_path / "b")
    assert same_bits(weights_of(with_it.module), weights_of(without.module))


def test_a_resumed_run_has_the_same_figures(tmp_path: Path) -> None:
    """Stopped within the last rounds of the whole run."""
    whole = run(tmp_path / "whole", LastRounds(num=3))
    run(tmp_path / "parts", LastRounds(num=3), StopAfter(4))
    resumed = run(tmp_path / "parts", LastRounds(num=3), ckpt="last")
    assert last_rounds(resumed) == last_rounds(whole)


def test_an_extended_run_counts_the_rounds_of_its_new_end(tmp_path: Path) -> None:
    """Rounds 1 to 3 were the last ones before; of them the third still is."""
    whole = run(tmp_path / "whole", LastRounds(num=3))
    run(tmp_path / "parts", LastRounds(num=3), rounds=3)
    extended = run(tmp_path / "parts", LastRounds(num=3), ckpt="last")
    assert last_rounds(extended) == last_rounds(whole)


def test_an_extended_run_that_stops_early_has_none(tmp_path: Path) -> None:
    run(tmp_path, LastRounds(num=2), rounds=3)
    stopped = run(tmp_path, LastRounds(num=2), StopAfter(5), rounds=9, ckpt="last")
    assert "last_rounds" not in json.loads((Path(stopped.log_dir) / "summary.json").read_text())
