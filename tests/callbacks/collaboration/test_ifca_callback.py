"""IFCA in a run: against a plain loop written from the paper's algorithm, and what composes with it."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from corners import SIZES, CornerModule, FailingTurns, MixedClients, Network, fit, plain_training
from hooks import StopAfter
from rounding import assert_equal_up_to_rounding
from tiny import with_optimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import weight_norm

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import (
    IFCA,
    Callback,
    ClientArrivals,
    CoalitionFigure,
    PersonalLayers,
    ShapleyRewards,
    UniformSampling,
)
from lightning_fl.engine.weights.flat import Weights

N = len(SIZES)
KINDS = [0, 1] * 3


class Plain(Network):
    """Without running statistics, so that a plain loop is short."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Sequential(self.linear[0], nn.ReLU(), self.linear[3])


class Starts(Callback):
    """Keeps the models that the first round begins with."""

    def __init__(self) -> None:
        self.models: list[Weights] = []

    def on_client_start(self, trainer: FederatedTrainer, client: int) -> None:
        if not self.models:
            self.models = [model.clone() for model in trainer.models]


def module_with(run: FederatedTrainer, weights: Weights) -> CornerModule:
    """A copy of the run's module with some weights."""
    run.loop.flat.load(weights)
    module = Plain()
    module.load_state_dict({name: value.clone() for name, value in run.module.state_dict().items()})  # type: ignore[union-attr]
    return module


def plain_ifca(models: list[CornerModule], data: MixedClients, rounds: int) -> tuple[list[CornerModule], Any]:
    """Algorithm 1, option II, one client after another, with torch alone; two steps of six samples a turn."""
    history = []
    for _ in range(rounds):
        learned: dict[int, list[tuple[int, nn.Module]]] = {}
        labels = []
        for client in range(N):
            x, y = data.sets[client, "train"].tensors
            with torch.no_grad():
                losses = [float(cross_entropy(model(x), y)) for model in models]
            labels.append(min(range(len(models)), key=losses.__getitem__))
            model = plain_training(models[labels[-1]], data, client)
            learned.setdefault(labels[-1], []).append((SIZES[client], model))
        history.append(labels)
        for k, members in learned.items():
            total = sum(size for size, _ in members)
            states = [(size / total, model.state_dict()) for size, model in members]
            average = {name: sum(share * state[name] for share, state in states) for name in states[0][1]}
            models[k].load_state_dict(average)  # type: ignore[arg-type]
    return models, history


def vector(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.slow
def test_a_run_is_the_papers_algorithm() -> None:
    data, ifca, starts = MixedClients(), IFCA(num_clusters=3), Starts()
    run = fit(ifca, starts, data=data, module=Plain(), max_rounds=4)
    first = [module_with(run, model) for model in starts.models]
    found = [vector(module_with(run, model)) for model in run.models]
    models, history = plain_ifca(first, data, 4)
    assert ifca.assignments == history
    assert ifca.rounds == [1, 2, 3, 4]
    for expected, got in zip(models, found, strict=True):
        assert_equal_up_to_rounding(got, vector(expected), steps=4 * 2)
    for client in range(N):  # evaluated with what is best in the end
        x, y = data.sets[client, "train"].tensors
        losses = [cross_entropy(model(x), y).item() for model in models]
        assert run.collaboration.model_of(client) == min(range(3), key=losses.__getitem__)


class Leaning(Callback):
    """Model k begins with a bias of 1 towards the classes of kind k: a loss of 1.0 for them, 2.0 for the others."""

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        if trainer.current_round == 0:
            bias = next(span for span in trainer.loop.flat.spans() if span.name == "linear.bias")
            for kind, model in enumerate(trainer.models):
                model.vectors[torch.float32].zero_()[bias.begin + 2 * kind : bias.begin + 2 * kind + 2] = 1.0


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", [None, 8])
def test_it_finds_clients_of_two_kinds(num_samples: int | None) -> None:
    ifca, figure = IFCA(num_clusters=2, num_samples=num_samples), CoalitionFigure()
    run = fit(ifca, Leaning(), figure, data=MixedClients(pure=True), max_rounds=4)
    assert ifca.assignments == figure.assignments == [KINDS] * 4
    assert run.collaboration.personalisation.argmax(1).tolist() == KINDS
    assert float(ifca.losses.amin(1).max()) < 1.0
    assert float(ifca.losses.amax(1).min()) > math.log(4)  # worse than a guess


def test_models_start_apart_in_what_is_trained_and_shared() -> None:
    module, starts = Network(frozen=True), Starts()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = fit(IFCA(num_clusters=3), PersonalLayers(layers=["linear.1"]), starts, module=module, max_rounds=1)
    states = []
    for model in starts.models:
        run.loop.flat.load(model)
        states.append({name: value.clone() for name, value in module.state_dict().items()})
    assert all(torch.equal(states[0][name], value) for name, value in before.items())
    for name in before:
        apart = [not torch.equal(a[name], b[name]) for a, b in (states[:2], states[1:], states[::2])]
        assert apart == [name.startswith("linear.3")] * 3  # the others are frozen, or the clients' own


def test_parameters_are_drawn_anew_and_with_another_seed_otherwise() -> None:
    drawn = []
    for seed in (4, 4, 5):
        starts = Starts()
        fit(IFCA(num_clusters=3), starts, module=Network(), max_rounds=1, seed=seed)
        drawn.append(starts.models)
    first, again, other = drawn
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert first[0].equal(other[0])
    assert not first[1].equal(first[2])
    assert not first[1].equal(other[1])
    bounds = [float(model.vectors[torch.float32][:16].abs().max()) for model in first[1:]]
    assert max(bounds) <= 2**-0.5  # torch's own draw of a layer with two inputs


def test_noise_leaves_the_models_near_the_modules_own() -> None:
    starts = Starts()
    fit(IFCA(num_clusters=2, initial_noise=1e-3), starts, module=Network(), max_rounds=1)
    own, other = (model.vectors[torch.float32] for model in starts.models)
    assert 0 < float((own - other).abs().max()) < 0.02


def test_layers_with_computed_weights_start_apart_by_noise() -> None:
    class Computed(CornerModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = weight_norm(nn.Linear(2, 4))

    starts = Starts()
    run = fit(IFCA(num_clusters=2, initial_noise=0.1), starts, module=Computed(), max_rounds=2)
    for span in run.loop.flat.spans():
        own, other = (model.part(span) for model in starts.models)
        # A deviation of that share of the parameter's own, which is zero for zeros.
        assert torch.equal(own, other) == (not own.any())
    assert not starts.models[0].equal(starts.models[1])


def test_a_module_may_say_how_it_is_drawn() -> None:
    class Own(CornerModule):
        def reset_parameters(self) -> None:
            self.linear.weight.fill_(float(torch.rand(())))

    starts = Starts()
    fit(IFCA(num_clusters=2), starts, module=Own(), max_rounds=1)
    assert len(set(starts.models[1].vectors[torch.float32][:8].tolist())) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "strategy"),
    [
        (Network, "fedavg"),
        (with_optimizer(Network, partial(torch.optim.SGD, lr=0.1, momentum=0.9)), "fedavg"),
        (Network, "fedavgm"),
        (Network, "scaffold"),
    ],
    ids=["SGD", "momentum", "FedAvgM", "SCAFFOLD"],
)
def test_evaluations_have_no_part_in_the_training(module: type[Network], strategy: str) -> None:
    """Models and choices do not depend on when clients are evaluated, with drawn samples and sampled clients."""
    runs = []
    for every in (0, 1, 2):
        ifca = IFCA(num_clusters=3, num_samples=4)
        settings: dict[str, Any] = {"max_rounds": 5, "strategy": strategy, "check_val_every_n_rounds": every}
        runs.append((fit(ifca, UniformSampling(cohort_size=3), module=module(), **settings), ifca))
    (first, ifca), *others = runs
    for run, other in others:
        assert other.assignments == ifca.assignments
        assert torch.equal(other.losses.nan_to_num(), ifca.losses.nan_to_num())
        assert all(a.equal(b) for a, b in zip(run.models, first.models, strict=True))
        assert run.collaboration == first.collaboration
        assert run.communication.bytes_received == first.communication.bytes_received


def test_a_run_that_ends_early_uses_the_best_models() -> None:
    early = fit(IFCA(num_clusters=3), StopAfter(2), module=Network(), max_rounds=9, check_val_every_n_rounds=0)
    whole = fit(IFCA(num_clusters=3), module=Network(), max_rounds=2)
    assert early.collaboration == whole.collaboration


def test_who_arrives_later_chooses_and_who_fails_is_left_out() -> None:
    ifca = IFCA(num_clusters=2)
    failing = FailingTurns((2, 0, 0), (2, 0, 1))
    with pytest.warns(UserWarning, match="left out of"):
        run = fit(
            ifca,
            ClientArrivals(rounds={"client_5": 3}),
            failing,
            ShapleyRewards(num_samples=4),
            module=Network(),
            data=MixedClients(pure=True),
            max_rounds=4,
            on_client_error="skip",
        )
    assert [labels[5] for labels in ifca.assignments][:2] == [-1, -1]
    assert ifca.assignments[2][5] in (0, 1)
    assert run.collaboration.model_of(5) in (0, 1)
