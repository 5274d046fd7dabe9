"""The two bowls of one weight, which are parabolas, and runs on them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bowls import RATE, TWO, Bowls, OneWeight
from tiny import TinyClients, TinyModule, quiet_trainer

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, PersonalLayers
from lightning_fl.engine.weights.flat import Weights

__all__ = ["CURVES", "RATE", "SHARES", "SIZES", "START", "OneWeight", "TwoParabolas"]

CURVES = ((1.0, 2.0), (3.0, -1.0))  # f_A(w) = (w - 2)² / 2 of 10 samples, f_B(w) = 3 (w + 1)² / 2 of 30
SIZES = (10, 30)
START = 1.0
#: Shares of the two clients in the average.
SHARES = (0.25, 0.75)


TwoParabolas = partial(Bowls, *TWO)


def exactly(*values: float) -> list[Any]:
    """Equal up to the digits that references are worked out to."""
    return [pytest.approx(value, rel=1e-9, abs=1e-12) for value in values]


def loss_of(client: int, w: float) -> float:
    """A client's loss."""
    curvature, centre = CURVES[client]
    return curvature / 2 * (w - centre) ** 2


def descend(client: int, w: float, steps: int = 2) -> float:
    """The weight after a client's plain gradient descent."""
    curvature, centre = CURVES[client]
    for _ in range(steps):
        w -= RATE * curvature * (w - centre)
    return w


def number(weights: Weights) -> float:
    """The one weight."""
    return float(weights.vectors[torch.float64][0])


def trainer(*callbacks: Callback, root: Path | None = None, **settings: Any) -> FederatedTrainer:
    """A quiet trainer of two rounds with two local steps."""
    given = {"max_rounds": 2, "local_steps": 2, "seed": 3, "default_root_dir": root}
    return quiet_trainer(*callbacks, **(given | settings))


class Watched(Callback):
    """The weight after every round, and what the strategy keeps for client and server."""

    def __init__(self) -> None:
        self.weights: list[float] = []
        self.kept: list[dict[int, dict[str, Any]]] = []
        self.states: list[dict[int, dict[str, Any]]] = []

    def on_round_end(self, run: FederatedTrainer) -> None:
        self.weights.append(number(run.models[0]))
        self.kept.append({client: dict(kept) for client, kept in run.client_store("strategy").items()})
        self.states.append({model: dict(state) for model, state in run.federation.model_states.items()})

    def own(self, round_number: int, name: str = "own") -> list[float]:
        """Weights or numbers that the two clients kept under a name after a round, -1 for the last."""
        kept = [self.kept[round_number][client][name] for client in (0, 1)]
        return [
            number(Weights.from_state_dict(one["flat_weights"], torch.device("cpu"))) if isinstance(one, dict) else one
            for one in kept
        ]


def parabolas(strategy: Any, **settings: Any) -> tuple[FederatedTrainer, Watched]:
    """A fit on the parabolas and what a callback saw of it."""
    watched = Watched()
    run = trainer(watched, strategy=strategy, **settings)
    run.fit(OneWeight(), TwoParabolas())
    return run, watched


def tiny_run(strategy: Any, **settings: Any) -> FederatedTrainer:
    """A fit of the tiny module with dropout, normalisation and a personal layer."""
    run = trainer(PersonalLayers(layers=["linear.bias"]), strategy=strategy, **settings)
    run.fit(TinyModule(dropout=0.2, norm=True), TinyClients())
    return run
