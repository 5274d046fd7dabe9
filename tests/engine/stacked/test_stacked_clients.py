"""Clients trained at once learn what they learn one after another, up to rounding."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_run import STRATEGIES
from bowls import Assigned
from lightning.pytorch import LightningModule
from rounding import assert_equal_up_to_rounding, rounding
from tiny import TinyClients, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from lightning_fl import Collaboration, FederatedTrainer
from lightning_fl.callbacks import Callback, LocalTraining, PersonalLayers, UniformSampling
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.engine.stacked import visits
from lightning_fl.engine.stacked.loop import groups_of
from lightning_fl.engine.stacked.weights import clip_rows_
from lightning_fl.strategies import SCAFFOLD, FedProx

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "plain momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.5}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "initial_accumulator_value": 0.1}),
    "adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "radam": (torch.optim.RAdam, {"lr": 0.01}),
    "nadam": (torch.optim.NAdam, {"lr": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
}
SIZES = (24, 10, 18, 7, 1, 16, 24, 3)
STEPS = 4 * 2 * 3  # rounds, epochs, batches of the largest client, at most
#: What two layers, a norm and an optimiser's momenta make of a rounding, with room: about 200 was seen.
GROWTH = 1e3
#: All others divide by the root of a variance or the size of a gradient, which is nearly nothing at first: 3,400 was
#: seen (nadam). It is 1e-10 for entries of about 1.
GROWTH_OF_SMALL_VARIANCES = {name: 1.8e4 for name in OPTIMIZERS if name not in ("sgd", "momentum", "plain momentum")}


class Doubles(TinyClients):
    """In float64, where rounding is far below what is compared."""

    def __init__(self, sizes: tuple[int, ...] = SIZES, **options: Any) -> None:
        super().__init__(sizes, **options)
        for dataset in self.sets.values():
            dataset.tensors = tuple(tensor.double() for tensor in dataset.tensors)  # type: ignore[attr-defined]


class Network(LightningModule):
    """Two layers with a norm between, a frozen and a tied parameter, a buffer; logs in every step."""

    def __init__(self, optimizer: str = "sgd", norm: bool = True, groups: bool = False) -> None:
        super().__init__()
        self.optimizer, self.groups = optimizer, groups
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.net = nn.Sequential(
                nn.Linear(3, 5, bias=not norm),
                nn.BatchNorm1d(5, momentum=0.3, eps=0.1) if norm else nn.Identity(),
                nn.Tanh(),
            )
            self.head = nn.Linear(5, 1)
            self.frozen = nn.Parameter(torch.randn(1), requires_grad=False)
            self.scale = nn.Parameter(torch.tensor(0.7))
        self.again = self.head
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))
        self.double()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        self.seen.add_(len(x))
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        if len(x) == 1:  # BatchNorm needs two samples
            x, y = x.repeat(2, 1), y.repeat(2, 1)
        error = self.again(self.net(x)) * self.scale + self.frozen - y
        loss = error.square().mean()
        self.log("error", error.abs().mean(), on_step=True)
        self.log_dict({"largest": error.abs().max(), "rate": 0.25}, batch_size=2)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", (self.head(self.net(batch[0])) - batch[1]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        kind, settings = OPTIMIZERS[self.optimizer]
        if not self.groups:
            return kind(self.parameters(), **settings)
        rest = [self.scale, *self.net.parameters()]
        return kind([{"params": self.head.parameters(), "lr": 0.002}, {"params": rest}], **settings)


def fit(
    folder: Path, stacked: int, module: LightningModule, data: Any = None, ckpt_path: str | None = None, **more: Any
) -> FederatedTrainer:
    given = {"max_rounds": 2, "local_epochs": 2, "seed": 5, "log_every_n_steps": 2, "default_root_dir": folder}
    given |= {"optimizer_state": "fresh"}
    trainer = quiet_trainer(stacked_clients=stacked, **(given | more))
    trainer.fit(module, Doubles() if data is None else data, ckpt_path=ckpt_path)
    return trainer


def assert_same(plain: FederatedTrainer, stacked: FederatedTrainer, growth: float = GROWTH) -> None:
    tolerance = rounding(torch.float64, STEPS, growth)
    assert len(plain.models) == len(stacked.models)
    for one, other in zip(plain.models, stacked.models, strict=True):
        for dtype, vector in one.vectors.items():
            assert_equal_up_to_rounding(other.vectors[dtype], vector, steps=STEPS, growth=growth)
    assert list(plain.client_reports) == list(stacked.client_reports)
    for client, report in plain.client_reports.items():
        other = stacked.client_reports[client]
        assert (other.num_samples, other.num_steps, other.error) == (report.num_samples, report.num_steps, report.error)
        assert list(other.metrics) == list(report.metrics)
        for name, value in report.metrics.items():
            logged = other.metrics[name]
            assert logged.value == pytest.approx(value.value, rel=tolerance, abs=tolerance)
            assert logged.weight == value.weight
            assert (logged.higher_is_better, logged.to_logger) == (value.higher_is_better, value.to_logger)
            assert [step for step, _ in logged.steps] == [step for step, _ in value.steps]
            assert [v for _, v in logged.steps] == pytest.approx(
                [v for _, v in value.steps], rel=tolerance, abs=tolerance
            )
    assert plain.client_states.keys() == stacked.client_states.keys()
    for client, state in plain.client_states.items():
        assert stacked.client_states[client].global_step == state.global_step
    accounts = [run.communication.state_dict(run.models) for run in (plain, stacked)]
    assert accounts[0] == accounts[1]


def assert_stackable(
    folder: Path, module: Any, stacked: int = 3, data: Any = None, growth: float | None = None, **settings: Any
) -> None:
    plain = fit(folder, 1, module(), data, **settings)
    if growth is None:
        growth = GROWTH_OF_SMALL_VARIANCES.get(getattr(plain.module, "optimizer", ""), GROWTH)
    together = fit(folder, stacked, module(), data, **settings)
    assert together.stacked is not None
    assert_same(plain, together, growth)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_with_unequal_clients_and_ragged_batches(optimizer, tmp_path):
    assert_stackable(tmp_path, lambda: Network(optimizer))


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [2, 8, 100])
def test_blocks_of_any_size(stacked, tmp_path):
    assert_stackable(tmp_path, lambda: Network("adam"), stacked)


class Replaced(Callback):
    """Other targets for every second client."""

    def on_client_data(self, trainer, client, split, batches):
        if client % 2:
            batches.targets = batches.targets.neg()


class TwoModels(Callback):
    """Everybody trains two models."""

    def on_fit_start(self, trainer):
        n = trainer.num_clients
        trainer.collaboration = Collaboration(torch.full((2, n), 1 / n), torch.full((n, 2), 0.5))

    def assign_models(self, trainer, cohort):
        return Cohort(
            tuple(
                Participant(p.client, model=k, weight=1.0 + k * p.client) for p in cohort.participants for k in (0, 1)
            )
        )


def without_last_batches() -> Doubles:
    data = Doubles()
    data.drop_last = True
    return data


TWO_BATCHES = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("momentum", {"gradient_clip_val": 0.3}),
        ("momentum", {"gradient_clip_val": 0.2, "gradient_clip_algorithm": "value"}),
        ("adam", TWO_BATCHES),
        ("adam", {**TWO_BATCHES, "local_steps": 3, "local_epochs": None}),
        ("momentum", {"local_steps": 4, "local_epochs": None}),  # some clients have fewer batches
        ("momentum", {"data": lambda: Doubles(shuffle=False)}),
        ("momentum", {"data": lambda: Doubles(batch_size=100)}),
        ("momentum", {"data": without_last_batches}),
        ("momentum", {"data": lambda: TinyClients(SIZES), "precision": "64"}),  # float32 data
        ("momentum", {"callbacks": [Replaced()]}),
        ("adam", {"callbacks": [UniformSampling(cohort_size=5)], "max_rounds": 4, "stacked": 4}),
        ("adam", {"callbacks": [PersonalLayers(layers=["head", "net.1"])]}),
        # Weights that grow a hundredfold take with them what was rounded while they were small.
        ("momentum", {"callbacks": [LocalTraining()], "growth": 4e3}),
        ("adam", {"callbacks": [TwoModels()]}),
    ],
)
def test_settings_of_a_run(optimizer, settings, tmp_path):
    data = settings.get("data", lambda: None)()
    assert_stackable(tmp_path, lambda: Network(optimizer), **{**settings, "data": data})


@pytest.mark.slow
def test_parameter_groups_with_rates_of_their_own(tmp_path):
    assert_stackable(tmp_path, lambda: Network("momentum", groups=True))


def shared_data() -> Any:
    """All clients' samples in one data set, as a partition leaves them."""
    datasets = [Doubles().sets[client, "train"] for client in range(len(SIZES))]
    whole = TensorDataset(*(torch.cat(column) for column in zip(*(d.tensors for d in datasets), strict=True)))
    parts = torch.arange(sum(SIZES)).split(SIZES)

    class Shared(Doubles):
        def client_data(self, client: int, split: str) -> Dataset:
            return Subset(whole, parts[client].tolist()) if split == "train" else super().client_data(client, split)

    return Shared()


@pytest.mark.slow
def test_samples_of_one_data_set_are_gathered_at_once(tmp_path):
    assert_stackable(tmp_path, lambda: Network("adam"), data=shared_data())
    growth = GROWTH_OF_SMALL_VARIANCES["adam"]
    assert_same(fit(tmp_path, 4, Network("adam")), fit(tmp_path, 4, Network("adam"), shared_data()), growth)


def test_who_is_stacked_with_whom():
    cohort = Cohort((Participant(9), Participant(1), Participant(3), Participant(1, model=1), Participant(8, model=1)))
    assert groups_of(cohort, 4) == [(2, 0), (0, 0), (0, 0), (0, 1), (2, 0)]


class Order(Callback):
    """Notes the hooks of clients with the weights that they see, and fails where it is told."""

    def __init__(self, fails: tuple[int, ...] = ()) -> None:
        self.fails, self.starts, self.ends = fails, [], []

    def select_clients(self, trainer):
        return Cohort(tuple(Participant(client) for client in (6, 1, 7, 0, 2)))

    def on_client_start(self, trainer, client):
        assert trainer.participant == Participant(client)
        self.starts.append(client)
        if client in self.fails:
            raise ValueError("not today")

    def on_client_end(self, trainer, client):
        assert trainer.participant == Participant(client)
        self.ends.append((client, trainer.client_weights().clone()))


def test_clients_are_handed_over_in_the_cohorts_order(tmp_path):
    plain, together = Order(), Order()
    assert_same(
        fit(tmp_path, 1, Network(), callbacks=[plain], max_rounds=1),
        fit(tmp_path, 3, Network(), callbacks=[together], max_rounds=1),
    )
    assert plain.starts == [6, 1, 7, 0, 2]
    assert together.starts == [6, 7, 1, 0, 2]  # a group starts when its first client is due
    assert [client for client, _ in together.ends] == [client for client, _ in plain.ends] == [6, 1, 7, 0, 2]
    for (_, one), (_, other) in zip(plain.ends, together.ends, strict=True):
        for dtype, vector in one.vectors.items():
            assert_equal_up_to_rounding(other.vectors[dtype], vector, steps=STEPS, growth=GROWTH)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_a_client_that_fails_before_its_steps_leaves_the_group(tmp_path):
    everyone = (6, 7)
    for fails in ((7, 0), everyone):
        settings = {"on_client_error": "skip", "max_rounds": 1}
        plain = fit(tmp_path, 1, Network(), callbacks=[Order(fails)], **settings)
        together = fit(tmp_path, 3, Network(), callbacks=[Order(fails)], **settings)
        assert_same(plain, together)
        assert together.survivors == {6, 1, 7, 0, 2} - set(fails)


def poisoned(value: float = math.nan) -> Doubles:
    data = Doubles()
    data.sets[4, "train"].tensors[0].fill_(value)
    return data


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:client 4 .client_4. is left out of round . TrainingError.*loss is nan at local batch 1"
)
def test_a_loss_that_is_nan_fails_its_client_alone(tmp_path):
    plain = fit(tmp_path, 1, Network(norm=False), poisoned(), on_client_error="skip")
    together = fit(tmp_path, 8, Network(norm=False), poisoned(), on_client_error="skip")
    assert together.survivors == set(range(8)) - {4}
    assert_same(plain, together)
    with pytest.raises(TrainingError, match="client 4 .*nan.*batch 1 of 2"):
        fit(tmp_path, 8, Network(norm=False), poisoned())


class Overflows(LightningModule):
    """Linear; one step from inputs of 1e20 goes too far."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1).double()

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_a_client_whose_weights_diverge_keeps_nothing_of_its_turn(tmp_path):
    """Wherever it stands among those that train at once."""
    states = []
    for stacked in (1, 8):
        settings = {"max_rounds": 1, "local_epochs": None, "local_steps": 1, "on_client_error": "skip"}
        run = fit(tmp_path, stacked, Overflows(), poisoned(1e20), **settings)
        assert run.survivors == set(range(8)) - {4}
        states.append({client: (one.global_step, one.batches) for client, one in run.client_states.items()})
    assert states[0] == states[1]


class Particular(Network):
    """Takes no batch of three samples."""

    def training_step(self, batch, batch_idx):
        if len(batch[0]) == 3:
            raise ValueError("three samples")
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_an_error_of_the_step_fails_its_group(tmp_path):
    settings = {"on_client_error": "skip", "max_rounds": 1}
    plain = fit(tmp_path, 1, Particular(), **settings)
    assert plain.survivors == set(range(7))
    assert "three samples" in plain.client_reports[7].error
    assert "trainer.stacked_clients" not in plain.client_reports[7].error
    together = fit(tmp_path, 3, Particular(), **settings)
    assert together.survivors == set(range(6))
    assert together.client_reports[6].error == together.client_reports[7].error
    assert (
        "once. Set trainer.stacked_clients=1. The cause: ValueError: three samples" in together.client_reports[6].error
    )
    assert 6 not in together.client_states


def test_several_turns_and_personal_layers_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="stacked_clients=3.*PersonalLayers"):
        fit(tmp_path, 3, Network(), callbacks=[TwoModels(), PersonalLayers(layers=["head"])])


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path):
    settings = {"enable_checkpointing": True, "max_rounds": 4}
    whole = fit(tmp_path / "whole", 3, Network("adam"), **settings)
    fit(tmp_path / "halves", 3, Network("adam"), **(settings | {"max_rounds": 2}))
    (last,) = (tmp_path / "halves").rglob("last.ckpt")
    resumed = fit(tmp_path / "halves", 3, Network("adam"), ckpt_path=str(last), **settings)
    assert resumed.models[0].equal(whole.models[0])
    assert resumed.client_reports == whole.client_reports


class Clamped(Network):
    """Keeps a parameter within bounds."""

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.scale.clamp_(0.69, 0.7)
            self.head.bias.clamp_(-0.01, 0.01)
        return super().training_step(batch, batch_idx)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_parameters_that_are_changed_in_place(tmp_path):
    assert_stackable(tmp_path, lambda: Clamped("momentum"))


class Visited(Network):
    """Sees each client's batch: with draws of all kinds, the client's number, its weights, and a log of its own."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        noise = torch.randn(x.shape, dtype=x.dtype).to(x.device)
        x = x + 0.1 * noise * np.random.rand() * random.random()  # noqa: NPY002
        return x * (1 + 0.01 * self.trainer.client), y

    def on_train_batch_start(self, batch, batch_idx):
        self.log("scale", self.scale)
        self.log("first", batch[0].sum() + self.trainer.global_step)
        if batch_idx == 1:
            with torch.no_grad():
                self.scale.mul_(0.9)


@pytest.mark.slow
def test_hooks_that_see_a_clients_batch(tmp_path):
    assert_stackable(tmp_path, lambda: Visited("adam"), accumulate_grad_batches=2)
    assert_stackable(tmp_path, lambda: Visited("adam"), data=shared_data(), profile=True)


class Decays(Network):
    """Its rate is another in every batch."""

    def on_train_batch_start(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] = 0.05 / (1 + batch_idx)


class Shrinks(Network):
    """Its rate follows from the last batch's."""

    def on_train_batch_start(self, batch, batch_idx):
        for group in self.optimizers().param_groups:
            group["lr"] *= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "strategy"), [(Decays, "fedavg"), (Decays, "scaffold"), (Decays, "fednova"), (Shrinks, "scaffold")]
)
def test_rates_that_a_hook_sets_by_the_batch(kind, strategy, tmp_path):
    assert_stackable(tmp_path, lambda: kind(norm=False), strategy=strategy)


class Noisy(Network):
    """Sees each client's batch before it is stacked, and draws."""

    on_after_batch_transfer = Visited.on_after_batch_transfer


def test_a_clients_draws_are_put_in_place_once_where_its_batches_fit(tmp_path, monkeypatch):
    plain = fit(tmp_path, 1, Noisy())
    puts: list[Any] = []
    monkeypatch.setattr(visits, "set_rng_states", puts.append)
    together = fit(tmp_path, 3, Noisy())
    assert_same(plain, together)
    assert not puts
    monkeypatch.undo()
    for memory in (0, 2000):  # of one batch of 4 of 3 + 1 numbers for each of 3 clients: 384 bytes
        monkeypatch.setattr(visits, "_AHEAD", memory)
        fewer = fit(tmp_path, 3, Noisy())
        assert all(one.equal(other) for one, other in zip(together.models, fewer.models, strict=True))


class Schedules(Network):
    """Does what goes by the step, and is the same for all."""

    def training_step(self, batch, batch_idx):
        trainer = self.trainer
        assert trainer.num_training_batches == 4
        assert trainer.estimated_stepping_batches == 12
        assert trainer.is_last_batch == (batch_idx == 3)
        trainer.should_stop = trainer.should_stop or self.global_step == 7
        for group in self.optimizers().param_groups:
            group["lr"] = 0.01 * (1 + self.global_step)
        return {"loss": super().training_step(batch, batch_idx) * (1 + self.trainer.current_round)}

    def on_train_start(self):
        self.log("begun", 3.0)


@pytest.mark.slow
def test_what_a_module_may_ask_its_trainer(tmp_path):
    data = Doubles((16, 15, 9, 16))
    assert_stackable(tmp_path, Schedules, data=data, max_rounds=3)
    assert fit(tmp_path, 3, Schedules(), data, max_rounds=3).current_round == 2


@pytest.mark.slow
def test_a_profile_has_the_parts_of_a_stacked_turn_and_changes_no_bit(tmp_path):
    plain = fit(tmp_path, 3, Network("adam"))
    profiled = fit(tmp_path, 3, Network("adam"), profile=True)
    assert profiled.models[0].equal(plain.models[0])
    parts = {"data", "turn set-up", "forward", "backward", "optimiser steps", "turn bookkeeping", "aggregation"}
    assert parts <= set(profiled.profiler.rounds[1])


def clip_reference(gradient: Tensor, value: float, algorithm: str) -> Tensor:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    if algorithm == "value":
        nn.utils.clip_grad_value_([parameter], value)
    else:
        nn.utils.clip_grad_norm_([parameter], value)
    return parameter.grad


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_clipped_rows_are_those_of_torch(algorithm):
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 9, generator=draws, dtype=torch.float64) * torch.tensor([[0.01], [1], [10], [0], [math.nan]])
    expected = torch.stack([clip_reference(row, 0.8, algorithm) for row in rows])
    matrices = [rows[:, :4].clone(), rows[:, 4:].clone()]
    clip_rows_(matrices, 0.8, algorithm)
    torch.testing.assert_close(torch.cat(matrices, 1), expected, equal_nan=True, rtol=1e-14, atol=0)


# -- strategies --------------------------------------------------------------------------------------------------------

#: Why the others train their clients one by one.
ONE_BY_ONE = {
    "apfl": "the strategy APFL has a correct_gradient_ of its own that is not elementwise",
    "perfedavg": "the strategy PerFedAvg divides every batch in 3 parts",
    "pfedme": "the strategy PFedMe has a correct_gradient_ of its own that is not elementwise",
    "fedrep": "the strategy FedRep has a phases of its own",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_its_clients_at_once_or_says_why_not(name, tmp_path):
    """With a personal layer, clients who are done earlier, momentum and clipping."""

    def run(stacked: int) -> FederatedTrainer:
        callbacks = [PersonalLayers(layers=["head.bias"]), UniformSampling(cohort_size=6)]
        module = Network("plain momentum")
        return fit(
            tmp_path,
            stacked,
            module,
            strategy=STRATEGIES[name](),
            callbacks=callbacks,
            gradient_clip_val=0.5,
            max_rounds=4,
        )

    if name in ONE_BY_ONE:
        with pytest.raises(ConfigurationError, match=ONE_BY_ONE[name]):
            run(3)
        return
    together = run(3)
    assert together.stacked is not None
    assert_same(run(1), together, growth=GROWTH)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [lambda: FedProx(mu=0.5), SCAFFOLD])
def test_corrections_of_clients_of_different_models(strategy, tmp_path):
    """Coalitions that begin with one model and are regrouped, so that some have no server's control as yet."""

    regroups = Assigned([0, 1, 0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 1, 2, 2], since=2)
    settings = {"callbacks": [regroups], "max_rounds": 4, "local_steps": 4, "local_epochs": None}
    runs = [
        fit(tmp_path, stacked, Network("plain momentum", norm=False), strategy=strategy(), **settings)
        for stacked in (1, 5)
    ]
    assert_same(*runs, growth=GROWTH)
    for client in range(8):
        kept = [run.client_store("strategy").get(client, {}) for run in runs]
        assert kept[0].keys() == kept[1].keys()
        for name in (name for name, value in kept[0].items() if isinstance(value, dict)):
            one, other = (of_run[name]["flat_weights"]["float64"] for of_run in kept)
            assert_equal_up_to_rounding(other, one, steps=STEPS, growth=GROWTH)
