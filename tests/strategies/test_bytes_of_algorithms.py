"""What an algorithm moves in a turn, in models down and up, against the formula of its paper.

A model is 4 P bytes of its shared parameters in float32, with its shared buffers.
"""

from collections.abc import Callable
from typing import Any

import pytest
from algorithm_run import STRATEGIES
from tiny import TinyClients, TinyModule, quiet_trainer
from torch import nn

from lightning_fl.callbacks import (
    FLSC,
    FedSoft,
    FineTuning,
    LocalReference,
    PersonalLayers,
    PFedGraph,
    SoftAveraging,
    UniformSampling,
)
from lightning_fl.strategies import SCAFFOLD, Ditto, FedAvg, FedFA, FedProx, MaxFL

ROUNDS = 3
#: Samples of the clients: so many that two models are dealt out to two clients each, and none is made by one alone.
SIZES = (24, 10, 18, 12)

#: Models in each direction; one for all that are not named: what the entry adds are numbers, or stays with the client.
MODELS = {"scaffold": 2}
#: Where all clients may opt out nobody changes the shared model, which is then not sent again: here nobody does.
INSTEAD: dict[str, Callable[[], Any]] = {"maxfl_out": lambda: MaxFL(threshold=100.0, opt_out=True)}


def size_of(module: nn.Module, *personal: str) -> int:
    """Bytes of what is shared."""
    return sum(
        value.numel() * value.element_size() for name, value in module.state_dict().items() if name not in personal
    )


def moved(strategy: Any, *callbacks: Any, **settings: Any) -> tuple[dict[int, int], dict[int, int]]:
    run = quiet_trainer(
        *callbacks, strategy=strategy, **({"max_rounds": ROUNDS, "local_steps": 2, "seed": 3} | settings)
    )
    run.fit(TinyModule(norm=True), TinyClients(SIZES))
    return dict(run.communication.bytes_received), dict(run.communication.bytes_sent)


def each(size: int) -> dict[int, int]:
    return dict.fromkeys(range(len(SIZES)), size)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy(name: str) -> None:
    """With a personal layer, which never moves."""
    strategy = INSTEAD.get(name, STRATEGIES[name])()
    size = size_of(TinyModule(norm=True), "linear.bias")
    down, up = moved(strategy, PersonalLayers(layers=["linear.bias"]))
    assert down == up == each(MODELS.get(name, 1) * ROUNDS * size)


def test_a_model_is_its_parameters_and_buffers() -> None:
    """Three weights, a bias, a norm's two parameters and two statistics of three features, and its count in int64."""
    assert size_of(TinyModule(norm=True)) == 4 * (3 + 1 + 4 * 3) + 8
    assert moved(FedAvg()) == (each(ROUNDS * 72), each(ROUNDS * 72))


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize(("strategy", "vectors"), [(FedAvg, 1), (FedProx, 1), (SCAFFOLD, 2), (Ditto, 1)])
def test_fedbn(strategy: Callable[[], Any], vectors: int) -> None:
    """Neither the parameters nor the statistics of the norm: four weights."""
    size = size_of(TinyModule(norm=True), *[f"before.0.{name}" for name in NORM])
    assert size == 16
    down, up = moved(strategy(), PersonalLayers(layers="normalization"))
    assert down == up == each(ROUNDS * vectors * size)


#: Callback -> models down and up in all rounds: K of FLSC in each; those of FedSoft for the estimate after each round,
#: which the next one goes on with, after one to begin with; z_i of pFedGraph beside the model from the second round on.
CALLBACKS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "flsc": (lambda: FLSC(num_clusters=2, num_best=2, initial_noise=0.1), 2 * ROUNDS, ROUNDS),
    "fedsoft": (lambda: FedSoft(num_models=2, lam=0.1, every_n_rounds=1), 1 + 2 * ROUNDS, ROUNDS),
    "soft_averaging": (lambda: SoftAveraging(num_models=2), 1 + 2 * ROUNDS, ROUNDS),
    "soft_averaging every two rounds": (lambda: SoftAveraging(num_models=2, every_n_rounds=2), 1 + 2 + 1 + 2, ROUNDS),
    "fedsoft every two rounds": (lambda: FedSoft(num_models=2, lam=0.1, every_n_rounds=2), 1 + 2 + 2 + 2, ROUNDS),
    "pfedgraph": (lambda: PFedGraph(alpha=5.0, lam=0.0), ROUNDS, ROUNDS),
    "pfedgraph with a pull": (lambda: PFedGraph(alpha=5.0, lam=0.01), 2 * ROUNDS - 1, ROUNDS),
    "fine_tuning": (lambda: FineTuning(steps=2), ROUNDS, ROUNDS),
    "local_reference": (LocalReference, ROUNDS, ROUNDS),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback(name: str) -> None:
    make, models_down, models_up = CALLBACKS[name]
    size = size_of(TinyModule(norm=True))
    down, up = moved(FedAvg(), make())
    assert down == each(models_down * size)
    assert up == each(models_up * size)


@pytest.mark.parametrize(("strategy", "vectors"), [(FedAvg, 1), (SCAFFOLD, 2), (lambda: FedFA(moment="after"), 1)])
def test_who_is_not_drawn_moves_nothing(strategy: Callable[[], Any], vectors: int) -> None:
    size = size_of(TinyModule(norm=True))
    down, up = moved(strategy(), UniformSampling(cohort_size=1))
    assert sum(down.values()) == sum(up.values()) == ROUNDS * vectors * size
    assert down == up
