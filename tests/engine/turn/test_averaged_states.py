"""Optimiser states that are averaged like the weights, against a plain loop of local Adam and local momentum."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ManualModule, TinyClients, TinyModule, digest, quiet_trainer, regression_set, with_optimizer
from torch import Tensor, nn

from lightning_fl import ConfigurationError, FederatedTrainer, TrainingError
from lightning_fl.callbacks import FLSC, Callback, CollaborationGraph, LocalTraining, PersonalLayers, PFedGraph
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.engine.turn.averaged_states import AveragedStates
from lightning_fl.engine.weights.flat import FlatModule, Weights
from lightning_fl.engine.weights.local_parameters import LocalParameters
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.strategies import Ditto, FedRep

SIZES = (24, 10, 18)
ADAM = with_optimizer(TinyModule, lambda parameters: torch.optim.Adam(parameters, lr=0.05))
MOMENTUM = with_optimizer(TinyModule, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))


class Chosen(Callback):
    """Cohorts, and coalitions as a label of each client, by round."""

    role = "participation"

    def __init__(self, cohorts: Sequence[Sequence[int]], labels: Sequence[Sequence[int]] = ()) -> None:
        self.cohorts, self.labels = cohorts, labels

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        if self.labels:
            trainer.collaboration = Collaboration.coalitions(self.labels[trainer.current_round], trainer.num_samples)

    def select_clients(self, trainer: FederatedTrainer) -> Cohort:
        return Cohort.of(self.cohorts[trainer.current_round])


def fit(
    module: Any, *callbacks: Callback, data: Any = None, rounds: int = 3, ckpt_path: Any = None, **settings: Any
) -> FederatedTrainer:
    settings = {"optimizer_state": "average", "precision": "64", "seed": 0} | settings
    trainer = quiet_trainer(*callbacks, max_rounds=rounds, **settings)
    trainer.fit(module, data or TinyClients(SIZES, shuffle=False), ckpt_path=ckpt_path)
    return trainer


def flat(*tensors: Tensor) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def local_adam(cohorts: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], adam: bool) -> dict[int, Tensor]:
    """Client -> weights after some rounds, of full cohorts of batches in order: x, and with Adam m, v and t, averaged.

    Moments of a coalition are zero where its members were not together in the round before.
    """
    start = TinyModule().double().linear
    clients = range(len(SIZES))
    model = dict.fromkeys(clients, flat(start.weight, start.bias))
    moments: dict[tuple[int, ...], list[Any]] = {}
    for cohort, of_round in zip(cohorts, labels, strict=True):
        groups = {tuple(c for c in clients if of_round[c] == label) for label in of_round}
        moments = {members: moments[members] for members in groups if members in moments}
        for members in groups:
            begin = sum(SIZES[c] * model[c] for c in members) / sum(SIZES[c] for c in members)
            ends = []
            for client in (c for c in cohort if c in members):
                w, (m, v, t) = begin.clone(), moments.get(members, [torch.zeros(4).double()] * 2 + [0.0])
                x, y = (tensor.double() for tensor in regression_set(SIZES[client], 10 * client, 0.3 * client).tensors)
                for rows in torch.arange(SIZES[client]).split(8):
                    error = x[rows] @ w[:3] + w[3] - y[rows, 0]
                    gradient = 2 * torch.cat([x[rows].T @ error, error.sum()[None]]) / len(rows)
                    t = float(torch.tensor(t, dtype=torch.float32) + 1)  # as torch counts
                    if adam:
                        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
                        w = w - 0.05 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
                    else:
                        m = 0.9 * m + gradient
                        w = w - 0.05 * m
                ends.append((SIZES[client], w, m, v, t))
            if ends:
                total = sum(size for size, *_ in ends)
                begin, *moments[members] = [
                    sum(size * value for size, value in zip([end[0] for end in ends], column, strict=True)) / total
                    for column in list(zip(*ends, strict=True))[1:]
                ]
            model |= dict.fromkeys(members, begin)
    return model


ALL = [(0, 1, 2)] * 4
SOME = [(0, 1, 2), (0, 2), (1,), (1, 2)]
ONE = [(0, 0, 0)] * 4
PLANS = {
    "all clients": (ALL, ONE),
    "sampled cohorts": (SOME, ONE),
    "coalitions": (SOME, [(0, 1, 1)] * 4),
    "coalitions that change": (ALL, [(0, 0, 0), (0, 1, 1), (0, 1, 1), (0, 0, 0)]),
}


@pytest.mark.parametrize("module", [ADAM, MOMENTUM])
@pytest.mark.parametrize("plan", PLANS)
def test_moments_are_averaged_like_the_weights(module: Any, plan: str, tmp_path: Path) -> None:
    cohorts, labels = PLANS[plan]
    expected = local_adam(cohorts, labels, module is ADAM)
    for fused in (False, True):
        trainer = fit(module(), Chosen(cohorts, labels), rounds=4, fused_optimizers=fused, default_root_dir=tmp_path)
        for client, weights in expected.items():
            model = trainer.client_model(client).vectors[torch.float64]
            torch.testing.assert_close(torch.cat([model[:3], model[8:9]]), weights, rtol=1e-9, atol=1e-10)


class Alike(TinyClients):
    """All clients have the data of the first."""

    def client_data(self, client: int, split: Any) -> Any:
        return self.sets[0, split]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam, torch.optim.Rprop, torch.optim.ASGD])
@pytest.mark.parametrize(
    ("data", "callbacks"),
    [
        (lambda: TinyClients((24,)), list),
        (lambda: Alike((24, 24), shuffle=False), list),
        (lambda: TinyClients(SIZES), lambda: [LocalTraining()]),
    ],
)
def test_where_nothing_differs_or_is_shared_it_is_keep(kind: Any, data: Any, callbacks: Any, tmp_path: Path) -> None:
    module = with_optimizer(TinyModule, lambda parameters: kind(parameters, lr=0.01))
    more: dict[str, Any] = {"default_root_dir": tmp_path, "precision": "32-true"}
    runs = [
        fit(module(norm=True), *callbacks(), data=data(), optimizer_state=state, **more)
        for state in ("keep", "average", "fresh")
    ]
    kept, averaged, fresh = [[digest(run.client_model(c)) for c in range(run.num_clients)] for run in runs]
    assert kept == averaged
    assert kept != fresh


class Mixed(nn.Module):
    """Parameters of all kinds: a number, one in another order, one that is not trained, one in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.turned = nn.Parameter(torch.arange(6.0).view(2, 3).T)
        self.idle = nn.Parameter(torch.ones(2))
        self.wide = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.own = nn.Linear(2, 1)


class Counting(torch.optim.SGD):
    """Keeps Python's own numbers."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state |= {"count": state.get("count", 0) + 1, "mean": state.get("mean", 0.0) + 0.25, "none": None}


def stepped(module: Mixed, steps: int, size: float) -> list[torch.optim.Optimizer]:
    own = [*module.own.parameters()]
    others = [one for name, one in module.named_parameters() if not name.startswith("own") and name != "wide"]
    made: list[torch.optim.Optimizer] = [
        torch.optim.Adam([*others, *own], lr=0.01, amsgrad=True),
        Counting([module.wide], lr=0.1, momentum=0.9),
    ]
    for step in range(steps):
        for name, parameter in module.named_parameters():
            parameter.grad = None if name == "idle" else torch.full_like(parameter, size * (step + 1))
        for optimizer in made:
            optimizer.step()
    return made


def averaged(vectors: AveragedStates, sent: Sequence[tuple[dict[str, Weights], float]]) -> dict[str, Weights]:
    sums = {name: WeightedSum(vectors.zeros(name)) for one, _ in sent for name in one}
    for one, weight in sent:
        for name, vector in one.items():
            sums[name].add_(vector, weight)
    return {name: total.value(1.0) for name, total in sums.items()}


@pytest.mark.parametrize("size", [1e-9, 1e-4, 1.0, 1e5])
def test_states_of_all_kinds_are_read_averaged_and_loaded(size: float) -> None:
    """The mean of states with three and five steps has four, and squares of 1e-18 are not lost."""
    module = Mixed()
    flat_module = FlatModule(module)
    vectors, personal = AveragedStates(module, flat_module), LocalParameters(flat_module, ["own"])
    made = [stepped(module, steps, size) for steps in (3, 5)]
    states = [[optimizer.state_dict()["state"] for optimizer in one] for one in made]
    fresh = stepped(module, 0, size)
    vectors.load(averaged(vectors, [(vectors.read(one, personal), 0.5) for one in made]), fresh)
    first, second = [optimizer.state_dict()["state"] for optimizer in fresh]
    assert [*first] == [0, 1]  # without a state of what is idle or personal
    assert [*second] == [0]
    for optimizer, found in enumerate((first, second)):
        for index, entries in found.items():
            one, other = (state[optimizer][index] for state in states)
            assert entries.keys() == {key for key, value in one.items() if value is not None}
            for key, value in entries.items():
                assert type(value) is type(one[key])
                expected = (torch.as_tensor(one[key]).double() + torch.as_tensor(other[key]).double()) / 2
                torch.testing.assert_close(torch.as_tensor(value).double(), expected, rtol=2e-7, atol=0)
    assert float(first[0]["step"]) == 4
    assert second[0]["count"] == 4
    with pytest.raises(ConfigurationError, match="trainer.optimizer_state=average .*of Adam"):  # of another module
        vectors.read(stepped(Mixed(), 1, 1.0), None)
    for optimizer in fresh:  # goes on with it
        optimizer.step()


def test_a_state_that_only_some_clients_have_is_theirs() -> None:
    module = Mixed()
    vectors = AveragedStates(module, FlatModule(module))
    sent = [vectors.read(stepped(module, steps, 0.5), None) for steps in (2, 0)]
    assert not sent[1]
    fresh = stepped(module, 0, 0.5)
    vectors.load(averaged(vectors, [(sent[0], 0.25), (sent[1], 0.75)]), fresh)
    assert float(fresh[0].state_dict()["state"][1]["step"]) == 2


def test_what_is_not_averaged_continues_with_its_client(tmp_path: Path) -> None:
    """The optimisers of personal layers, of phases and of own models, and moments of manual optimisation."""
    personal = PersonalLayers(layers=["linear.bias"])
    trainer = fit(ADAM(), personal, default_root_dir=tmp_path)
    shares = [value for name, value in trainer.federation.optimizer_states[0].items() if name == "0 float share"]
    assert shares[0].vectors[torch.float64].tolist() == pytest.approx([1.0, 0.0])
    states = trainer.client_states
    assert [float(states[c].optimizers[0]["state"][1]["step"]) for c in range(3)] == [9.0, 6.0, 9.0]
    for strategy, name in ((Ditto(), "personal"), (FedRep(head_epochs=1), "the personal part")):
        more = [PersonalLayers(layers=["linear.bias"])] if isinstance(strategy, FedRep) else []
        trainer = fit(ADAM(), *more, strategy=strategy, default_root_dir=tmp_path)
        kept = trainer.client_store("strategy")[1][f"training for {name}"]["optimizers"][0]["state"]
        assert {float(state["step"]) for state in kept.values()} == {6.0}
    manual = with_optimizer(ManualModule, lambda parameters: torch.optim.Adam(parameters, lr=0.05))
    for one, other in zip(*[fit(made(), default_root_dir=tmp_path).models for made in (manual, ADAM)], strict=True):
        torch.testing.assert_close(one.vectors, other.vectors)


def test_states_of_clients_that_use_several_models_are_mixed(tmp_path: Path) -> None:
    trainer = fit(ADAM(), FLSC(num_clusters=2, num_best=2), default_root_dir=tmp_path)
    assert sorted(trainer.federation.optimizer_states) == [0, 1]


def test_states_travel_with_the_model(tmp_path: Path) -> None:
    """Adam's two moments: three times the bytes, but nothing to receive in the first round."""
    sizes = [fit(ADAM(), rounds=2, optimizer_state=state, default_root_dir=tmp_path) for state in ("keep", "average")]
    kept, averaged = [one.communication for one in sizes]
    assert averaged.bytes_sent.total() == 3 * kept.bytes_sent.total()
    assert averaged.bytes_received.total() == 2 * kept.bytes_received.total()


@pytest.mark.parametrize(
    ("module", "callbacks", "settings", "error", "fault"),
    [
        (
            with_optimizer(TinyModule, lambda parameters: torch.optim.LBFGS(parameters)),
            [],
            {},
            TrainingError,
            "optimizer_state=average .* of LBFGS",
        ),
        (ADAM, [], {"stacked_clients": 2}, ConfigurationError, "trainer.optimizer_state=average"),
        (ADAM, [PFedGraph()], {}, ConfigurationError, "trainer.optimizer_state=average .*PFedGraph"),
        (ADAM, [CollaborationGraph(graph="full")], {}, ConfigurationError, "average .*CollaborationGraph"),
    ],
)
def test_what_cannot_be_averaged_is_refused(
    module: Any, callbacks: Any, settings: Any, error: Any, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=fault):
        fit(module(), *callbacks, default_root_dir=tmp_path, **settings)


STACKED = {"stacked_clients": 3}
LBFGS = with_optimizer(TinyModule, lambda parameters: torch.optim.LBFGS(parameters, max_iter=2))


@pytest.mark.parametrize(
    ("module", "callbacks", "settings", "is_like"),
    [
        (ADAM, list, {}, "average"),
        (MOMENTUM, lambda: [Chosen(SOME, [(0, 1, 1)] * 4)], {}, "average"),
        (ADAM, list, STACKED, "fresh"),
        (LBFGS, list, {}, "fresh"),
        (LBFGS, lambda: [PersonalLayers(layers=["linear.bias"])], {}, "fresh"),
        (ADAM, lambda: [CollaborationGraph(graph="full")], {}, "keep"),
    ],
)
def test_automatic_states(module: Any, callbacks: Any, settings: Any, is_like: str, tmp_path: Path) -> None:
    """To the bit, also in a run that goes on from a checkpoint; those of other settings go on as they were."""
    more = {"default_root_dir": tmp_path, "enable_checkpointing": True} | settings
    found, states = [], ("auto", is_like, "fresh")
    for state in states:
        run = fit(module(), *callbacks(), optimizer_state=state, **more)
        path = Path(run.log_dir) / "checkpoints" / "last.ckpt"
        resumed = fit(module(), *callbacks(), rounds=4, optimizer_state="auto", ckpt_path=path, **more)
        whole = fit(module(), *callbacks(), rounds=4, optimizer_state=state, **more)
        assert digest(resumed.client_model(1)) == digest(whole.client_model(1))
        found.append([digest(run.client_model(client)) for client in range(3)])
    assert found[0] == found[1]
    assert (found[0] == found[2]) == (is_like == "fresh")
