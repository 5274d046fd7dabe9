"""Layers that are frozen and unfrozen in a run: what strategies keep of frozen ones is zero; they do not change."""

from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from tiny import quiet_trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import Callback, PersonalLayers, UniformSampling
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import (
    APFL,
    SCAFFOLD,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedFA,
    FedProx,
    FedYogi,
    MaxFL,
    PerFedAvg,
    PFedMe,
    QFedAvg,
)

RATE, EPOCHS, FROZEN_ROUNDS = 0.001, 2, 2


class Lines(FederatedDataModule):
    """Clients of different sizes with a batch each."""

    num_clients = 4

    def __init__(self, batch_size: int = 100) -> None:
        super().__init__(batch_size=batch_size, shuffle=False)

    def client_data(self, client: int, split: str) -> TensorDataset:
        x = torch.randn(10 + 5 * client, 2, generator=torch.Generator().manual_seed(client)).double()
        return TensorDataset(x, x @ torch.tensor([[1.0], [client]]).double())


class Line(LightningModule):
    """Two linear layers; no gradient reaches the first in two rounds, in which it may be frozen besides."""

    def __init__(self, freezes: bool) -> None:
        super().__init__()
        self.freezes = freezes
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)
        self.body.requires_grad_(not freezes)
        self.double()
        values = torch.tensor([3.0, 1.0, -2.0, 2.0, -5.0, -4.0, 0.3, -0.4, 0.1])
        nn.utils.vector_to_parameters(values.double(), self.parameters())

    def on_train_epoch_start(self) -> None:
        if self.freezes:
            self.body.requires_grad_(self.current_epoch >= FROZEN_ROUNDS)

    def loss(self, batch: list[Tensor]) -> Tensor:
        hidden = self.body(batch[0])
        hidden = hidden if self.current_epoch >= FROZEN_ROUNDS else hidden.detach()
        return (self.head(hidden) - batch[1]).square().mean()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Watch(Callback):
    """The shared model after every round, who took part, and what of the strategy's state is not zero in the body."""

    def __init__(self) -> None:
        self.cohorts: list[list[int]] = []
        self.models: list[Tensor] = []
        self.kept: list[set[str]] = []

    def on_aggregate_end(self, run: FederatedTrainer) -> None:
        spans = {span.name: span for span in run.loop.flat.spans()}
        self.cohorts.append(sorted(run.round.survivors))
        self.models.append(torch.cat([run.models[0].part(spans[name]) for name, _ in run.module.named_parameters()]))
        stores = [run.federation.model_states[0], *run.client_store("strategy").values()]
        found = {
            name
            for store in stores
            for name, value in store.items()
            if isinstance(value, Weights) and any(value.part(spans[f"body.{one}"]).any() for one in ("weight", "bias"))
        }
        self.kept.append(found)


def fit(strategy: FedAvg, freezes: bool, *callbacks: Callback, rounds: int = 5) -> Watch:
    watch = Watch()
    settings: dict[str, Any] = {"max_rounds": rounds, "local_epochs": EPOCHS, "seed": 0}
    quiet_trainer(watch, *callbacks, strategy=strategy, **settings).fit(Line(freezes), Lines())
    return watch


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvgM(momentum=0.9),
        lambda: FedAdam(server_rate=0.1),
        lambda: FedAdagrad(server_rate=0.1, momentum=0.5),
        lambda: FedYogi(server_rate=0.1),
        lambda: FedFA(momentum=0.9),
        SCAFFOLD,
    ],
)
def test_a_frozen_layer_is_one_that_does_not_change(make: Any) -> None:
    """As long as it is frozen, and in all that comes of it afterwards."""
    frozen, unreached = fit(make(), True), fit(make(), False)
    for one, other in zip(frozen.models, unreached.models, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    first, _, *later = [model[:6] for model in frozen.models]
    assert torch.equal(first, frozen.models[FROZEN_ROUNDS - 1][:6])
    assert all((first - model).abs().min() > 1e-6 for model in later)
    # The variance of an adaptive server begins at the square of tau.
    assert all(names <= {"variance"} for names in frozen.kept[:FROZEN_ROUNDS])
    assert frozen.kept[FROZEN_ROUNDS]


def plain_scaffold(cohorts: list[list[int]]) -> list[Tensor]:
    """Karimireddy et al. 2020, Algorithm 1, option II, with clients weighted by samples; c is over all clients."""
    module, data = Line(True), Lines()
    names = [name for name, _ in module.named_parameters()]
    sets = [data.client_data(client, "train").tensors for client in range(data.num_clients)]
    shares = torch.tensor([len(x) for x, _ in sets]).double()
    shares /= shares.sum()
    w = {name: value.detach().clone() for name, value in module.named_parameters()}
    c = {name: torch.zeros_like(value) for name, value in w.items()}
    own, models = [dict(c) for _ in sets], []
    for number, cohort in enumerate(cohorts):
        trained = [name for name in names if number >= FROZEN_ROUNDS or "head" in name]
        ends, controls = {}, {}
        for i in cohort:
            y, (x, target) = {name: value.clone().requires_grad_() for name, value in w.items()}, sets[i]
            for _ in range(EPOCHS):
                hidden = x @ y["body.weight"].T + y["body.bias"]
                loss = (hidden @ y["head.weight"].T + y["head.bias"] - target).square().mean()
                slopes = torch.autograd.grad(loss, [y[name] for name in trained])
                for name, slope in zip(trained, slopes, strict=True):
                    y[name] = (y[name] - RATE * (slope + c[name] - own[i][name])).detach().requires_grad_()
            ends[i] = {name: value.detach() for name, value in y.items()}
            new = {name: own[i][name] - c[name] + (w[name] - ends[i][name]) / (EPOCHS * RATE) for name in trained}
            controls[i] = own[i] | new
        c = {name: c[name] + sum(shares[i] * (controls[i][name] - own[i][name]) for i in cohort) for name in names}
        total = sum(shares[i] for i in cohort)
        w = {name: sum(shares[i] * ends[i][name] for i in cohort) / total for name in names}
        for i in cohort:
            own[i] = controls[i]
        models.append(torch.cat([w[name].flatten() for name in names]))
    return models


@pytest.mark.parametrize("cohort_size", [2, 4])
def test_scaffold_goes_on_with_a_control_of_zero_for_an_unfrozen_layer(cohort_size: int) -> None:
    watch = fit(SCAFFOLD(), True, UniformSampling(cohort_size=cohort_size), rounds=8)
    assert {len(cohort) for cohort in watch.cohorts} == {cohort_size}
    for found, expected in zip(watch.models, plain_scaffold(watch.cohorts), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("state", ["keep", "average"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9)], ids=["Adam", "SGD"])
def test_a_clients_own_model_trains_an_unfrozen_layer(kind: Any, state: Any) -> None:
    """What its optimiser keeps is of the layers before."""

    class Own(Line):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = kind(self.parameters(), lr=RATE)
            return optimizer

    models = []
    for rounds in (FROZEN_ROUNDS, FROZEN_ROUNDS + 2):
        run = quiet_trainer(strategy=APFL(alpha=1.0, alpha_every="never"), max_rounds=rounds, optimizer_state=state)
        run.fit(Own(True), Lines())
        spans = [span for span in run.loop.flat.spans() if span.name.startswith("body")]
        models.append([torch.cat([run.client_model(client).part(span) for span in spans]) for client in range(4)])
    start = torch.tensor([3.0, 1.0, -2.0, 2.0, -5.0, -4.0]).double()
    for frozen, trained in zip(*models, strict=True):
        assert torch.equal(frozen, start)
        assert (trained - start).abs().min() > 1e-6


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("state", ["keep", "average"])
@pytest.mark.parametrize(
    "kind",
    [torch.optim.Adam, torch.optim.Rprop, partial(torch.optim.SGD, momentum=0.9)],
    ids=["whole runs", "parameters", "SGD"],
)
def test_a_clients_own_model_goes_on_with_an_unfrozen_layer(kind: Any, state: Any, bias: bool) -> None:
    """Alone, with nothing of the shared model in it, it is the shared model, whose optimiser is the client's."""

    class Own(Line):
        def __init__(self) -> None:
            super().__init__(True)
            if not bias:
                self.body.bias = self.head.bias = None

        def on_train_epoch_start(self) -> None: ...

        def on_train_epoch_end(self) -> None:
            self.body.requires_grad_(self.current_epoch >= FROZEN_ROUNDS - 1)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = kind(self.parameters(), lr=RATE)
            return optimizer

    class Alone(Lines):
        num_clients = 1

    strategy = APFL(alpha=1.0, alpha_every="never")
    run = quiet_trainer(strategy=strategy, max_rounds=FROZEN_ROUNDS + 3, local_epochs=EPOCHS, optimizer_state=state)
    run.fit(Own(), Alone())
    assert run.module is not None
    start = Own().state_dict()
    for span in run.loop.flat.spans():
        own, shared = run.client_model(0).part(span), run.models[0].part(span)
        assert (shared - start[span.name].flatten()).abs().min() > 1e-6
        torch.testing.assert_close(own, shared, rtol=1e-12, atol=1e-12)


# -- frozen by a batch's hook ----------------------------------------------------------------------------------------


class Stops(Line):
    """In the second round, it freezes its body at the second batch of every turn, and notes it around each batch."""

    def __init__(self) -> None:
        super().__init__(False)
        self.turns: list[list[Tensor]] = []

    def _note(self) -> None:
        self.turns[-1].append(nn.utils.parameters_to_vector(self.body.parameters()).detach())

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.current_epoch and not batch_idx:
            self.turns.append([])
            self._note()
        elif self.current_epoch:
            self.body.requires_grad_(False)

    def on_train_batch_end(self, *_: Any) -> None:
        if self.current_epoch:
            self._note()

    def loss(self, batch: list[Tensor]) -> Tensor:
        return (self.head(self.body(batch[0])) - batch[1]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9)


def fit_two_rounds(
    strategy: FedAvg, module: LightningModule, *callbacks: Callback, data: Lines | None = None
) -> FederatedTrainer:
    run = quiet_trainer(*callbacks, strategy=strategy, max_rounds=2, optimizer_state="fresh", seed=0)
    run.fit(module, data or Lines(batch_size=5))
    return run


@pytest.mark.parametrize("personal", [[], [PersonalLayers(layers=["head"])]], ids=["shared", "personal head"])
@pytest.mark.parametrize(
    ("make", "turns"),
    [
        (lambda: FedProx(mu=0.5), 1),
        (SCAFFOLD, 1),
        (APFL, 1),
        (lambda: PFedMe(personal_rate=0.01), 1),
        (PerFedAvg, 1),
        (Ditto, 2),
        (QFedAvg, 1),
        (MaxFL, 1),
    ],
)
def test_a_layer_that_is_frozen_in_a_turn_stays_until_its_end(make: Any, turns: int, personal: Any) -> None:
    module = Stops()
    fit_two_rounds(make(), module, *personal)
    assert len(module.turns) == turns * Lines.num_clients
    for start, first, *later in module.turns:
        assert not torch.equal(start, first)
        assert later
        assert all(torch.equal(one, first) for one in later)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PFedMe(personal_rate=0.01),
        PerFedAvg,
        lambda: PerFedAvg(hessian="differences"),
    ],
)
def test_a_layer_that_is_frozen_in_a_turn_has_no_gradient_from_then_on(make: Any) -> None:
    """In what the strategy makes of gradients: the model is that of a layer that none reaches."""

    class Unreached(Stops):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.reached = not (self.current_epoch and batch_idx)

        def on_train_batch_end(self, *_: Any) -> None: ...

        def loss(self, batch: list[Tensor]) -> Tensor:
            hidden = self.body(batch[0])
            return (self.head(hidden if self.reached else hidden.detach()) - batch[1]).square().mean()

    data = Lines(batch_size=6)  # HF-MAML leaves smaller batches out
    frozen, unreached = (fit_two_rounds(make(), module, data=data) for module in (Stops(), Unreached()))
    assert frozen.models[0].equal(unreached.models[0])


def test_a_layer_of_a_clients_own_model_that_is_frozen_in_a_turn_stays() -> None:
    """Alone, with nothing of the shared model in it, it is the shared model."""

    class Alone(Lines):
        num_clients = 1

    run = fit_two_rounds(APFL(alpha=1.0, alpha_every="never"), Stops(), data=Alone(batch_size=5))
    own = Weights.from_state_dict(run.client_store("strategy")[0]["own"]["flat_weights"], torch.device("cpu"))
    for dtype, vector in run.models[0].floating():
        torch.testing.assert_close(own.vectors[dtype], vector, rtol=1e-12, atol=1e-12)
