"""Learning rates follow Lightning's Trainer, and go on from round to round."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import (
    Clients,
    Linear,
    Rows,
    assert_same_weights,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    leave_out,
    linear,
    make,
    samples,
    train_both,
    watching,
)
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR
from torch.utils.data import DataLoader

from lightning_fl import FederatedTrainer, Silos
from lightning_fl.callbacks import CollaborationGraph, FineTuning
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.strategies import Ditto


class Scheduled(Linear):
    """Notes the learning rate of every batch; validates with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        loss = self.loss(batch)
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)


def _plateau(optimizer: Any) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)


def _one_cycle(self: Any) -> Any:
    optimizer = self.optimizer()
    steps = int(self.trainer.estimated_stepping_batches)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _of_epoch(self: Any) -> Any:
    optimizer = self.optimizer()
    return [optimizer], [lr_scheduler.LambdaLR(optimizer, lambda _: 0.5**self.current_epoch)]


def _sequential(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.7)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])


def _scheduled(schedulers: Callable[[Any], Any], **members: Any) -> type[Any]:
    """A module with what ``schedulers`` makes of its optimiser: a list, or the rest of Lightning's dictionary."""

    def configure_optimizers(self: Any) -> Any:
        optimizer = self.optimizer()
        made = schedulers(optimizer)
        return {"optimizer": optimizer} | made if isinstance(made, dict) else ([optimizer], made)

    return linear("Scheduled", Scheduled, configure_optimizers=configure_optimizers, **members)


class LogsEpochName(Scheduled):
    """Logs a value on steps and on epochs, which Lightning calls ``loss_epoch``."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


def _step_with_half(self: Any, scheduler: Any, metric: Any) -> None:
    scheduler.step(metric / 2)


OneCycle = linear("OneCycle", Scheduled, configure_optimizers=_one_cycle)
Plateau = _scheduled(lambda of: {"lr_scheduler": _plateau(of), "monitor": "val_loss"})
_FORMS: dict[str, type[Any]] = {
    "list": _scheduled(lambda of: [lr_scheduler.StepLR(of, 1, gamma=0.5)]),
    "list of dicts": _scheduled(
        lambda of: [{"scheduler": lr_scheduler.CosineAnnealingLR(of, T_max=9), "interval": "step", "frequency": 1}]
    ),
    "dictionary": _scheduled(lambda of: {"lr_scheduler": lr_scheduler.ExponentialLR(of, 0.8)}),
    "every second round": _scheduled(
        lambda of: {"lr_scheduler": {"scheduler": lr_scheduler.LambdaLR(of, lambda t: 0.5**t), "frequency": 2}}
    ),
    "every third step": _scheduled(
        lambda of: [{"scheduler": lr_scheduler.StepLR(of, 1, gamma=0.5), "interval": "step", "frequency": 3}]
    ),
    "one cycle": OneCycle,
    "sequential": _scheduled(lambda of: [{"scheduler": _sequential(of), "interval": "step"}]),
    "two": _scheduled(
        lambda of: [lr_scheduler.StepLR(of, 2), {"scheduler": lr_scheduler.ExponentialLR(of, 0.9), "interval": "step"}]
    ),
    "plateau": Plateau,
    "plateau on training": _scheduled(
        lambda of: {"lr_scheduler": {"scheduler": _plateau(of), "monitor": "train_loss"}}
    ),
    "plateau on the name of an epoch": linear(
        "LogsEpochName",
        LogsEpochName,
        configure_optimizers=_scheduled(
            lambda of: {"lr_scheduler": {"scheduler": _plateau(of), "monitor": "loss_epoch"}}
        ).configure_optimizers,
    ),
    "own step": linear("OwnStep", Plateau, lr_scheduler_step=_step_with_half),
    "own step by the epoch": linear(
        "StepsByEpoch",
        _scheduled(lambda of: [lr_scheduler.StepLR(of, 2, gamma=0.1)]),
        lr_scheduler_step=lambda self, scheduler, metric: scheduler.step(self.current_epoch),
    ),
    "a function of the epoch": linear("OfEpoch", Scheduled, configure_optimizers=_of_epoch),
    "plateau on steps": linear(
        "LogsAtTheEnd",
        _scheduled(lambda of: {"lr_scheduler": {"scheduler": _plateau(of), "monitor": "at_end", "interval": "step"}}),
        on_train_batch_end=lambda self, *_: self.log("at_end", float(-(self.global_step // 2))),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("state", ["keep", "fresh"])
def test_rates_continue_over_rounds(form: str, state: str, tmp_path: Path) -> None:
    own, _, reference, _ = train_both(_FORMS[form], tmp_path, epochs=4, federated={"optimizer_state": state})
    assert own.rates == pytest.approx(reference.rates, rel=1e-6, abs=0)
    assert len(set(own.rates)) > 1
    if state == "keep":
        assert_same_weights(own, reference, moved=False)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_estimated_stepping_batches(accumulate: int, tmp_path: Path) -> None:
    """Three batches an epoch: one cycle ends with the run, with and without accumulation."""
    own, trainer, reference, theirs = train_both(OneCycle, tmp_path, accumulate_grad_batches=accumulate)
    assert own.rates == pytest.approx(reference.rates, rel=1e-12, abs=0)
    assert trainer.client_states[0].global_step == theirs.estimated_stepping_batches == (9, 6)[accumulate - 1]


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"local_steps": 5}, 15),
        ({"local_epochs": 2}, 18),
        ({"local_epochs": 2, "accumulate_grad_batches": 2}, 12),
        ({"local_steps": 5, "accumulate_grad_batches": 2}, 15),
    ],
)
def test_estimated_steps_are_those_taken(arguments: dict[str, int], steps: int, tmp_path: Path) -> None:
    estimates: list[Any] = []

    def note(self: Any, hook: str) -> None:
        estimates.append(self.trainer.estimated_stepping_batches)

    module = make(watching(OneCycle, ["configure_optimizers"], note))
    trainer = fitted(tmp_path, module, Clients((10,)), max_rounds=3, **arguments)
    assert estimates == [steps] * 3
    assert trainer.client_states[0].global_step == steps


@pytest.mark.parametrize(
    ("callback", "steps"),
    [
        (CollaborationGraph(budget=1, init_epochs=4), 7 * 3),
        (CollaborationGraph(budget=1, init_epochs=1), 4 * 3),
        (FineTuning(epochs=2), 2 * 3),
        (FineTuning(epochs=3, best_epoch=True), 3 * 3),
    ],
    ids=["longer first round", "first round", "fine-tuning", "fine-tuning by epochs"],
)
def test_estimated_steps_of_turns_of_other_lengths(callback: Any, steps: int, tmp_path: Path) -> None:
    """Clients of three batches; one cycle ends with the last turn, and fine-tuning has a cycle of its own."""
    seen: list[tuple[int, float]] = []

    def note(self: Any, *_: Any) -> None:
        seen.append((int(self.trainer.estimated_stepping_batches), self.optimizers().param_groups[0]["lr"]))

    module = make(watching(OneCycle, ["on_train_batch_start"], note))
    trainer = fitted(tmp_path, module, Clients((10, 10)), max_rounds=4, callbacks=[callback])
    graph = isinstance(callback, CollaborationGraph)
    assert {estimate for estimate, _ in seen} == ({steps} if graph else {4 * 3, steps})
    assert seen[-1][0] == steps
    assert seen[-1][1] < min(rate for _, rate in seen[:1])
    if graph:
        assert trainer.client_states[0].global_step == steps


def test_a_stream_of_one_round_has_infinitely_many_steps(tmp_path: Path) -> None:
    seen: list[float] = []
    module = make(
        watching(Linear, ["configure_optimizers"], lambda self, _: seen.append(self.trainer.estimated_stepping_batches))
    )
    data = Silos([DataLoader(Rows(0, 8), batch_size=4)], num_samples=[8])
    federated_trainer(tmp_path, max_rounds=1).fit(module, data)
    assert seen == [math.inf]


@pytest.mark.parametrize("state", ["fresh", "average", "auto"])
def test_a_group_of_parameters_outside_the_module_that_a_hook_adds(state: str, tmp_path: Path) -> None:
    other = torch.nn.Linear(1, 1)
    module = linear(
        configure_optimizers=lambda self: torch.optim.SGD([*self.parameters(), other.weight], lr=0.1),
        on_train_epoch_start=lambda self: self.optimizers().add_param_group({"params": [other.bias]}),
    )()
    trainer = fitted(tmp_path, module, Clients((4,)), max_rounds=2, optimizer_state=state)
    assert trainer.client_states[0].global_step == 2


# -- what validation sees and changes -------------------------------------------------------------------------------


class ByHand(Scheduled):
    """Optimises manually, with a scheduler that is stepped after validation."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss, optimizer = super().training_step(batch, batch_idx), self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def on_validation_epoch_end(self) -> None:
        self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        return [optimizer], [lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def _halve(self: Any) -> None:
    for group in self.optimizers().param_groups:
        group["lr"] *= 0.5


def _plateau_by_hand(self: Any) -> None:
    self.lr_schedulers().step(self.trainer.callback_metrics["val_loss"])


def _plateau_alone(self: Any) -> Any:
    optimizer = self.optimizer()
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": _plateau(optimizer), "monitor": "val_loss"}}


_IN_VALIDATION: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "a scheduler": (ByHand, ("keep", "fresh")),
    "a plateau": (
        linear("Plateau", ByHand, on_validation_epoch_end=_plateau_by_hand, configure_optimizers=_plateau_alone),
        ("keep", "fresh"),
    ),
    "groups": (linear("Halves", Scheduled, on_validation_epoch_end=_halve), ("keep", "average", "auto")),
    "groups in training": (linear("Halves", Scheduled, on_train_epoch_end=_halve), ("keep", "average", "auto")),
}


@pytest.mark.parametrize(
    ("module", "state"), [(one, state) for one, states in _IN_VALIDATION.values() for state in states]
)
def test_a_rate_that_validation_changes_is_the_clients_from_then_on(
    module: type[Any], state: str, tmp_path: Path
) -> None:
    own, _, reference, _ = train_both(module, tmp_path, epochs=4, federated={"optimizer_state": state})
    assert own.rates == pytest.approx(reference.rates, rel=1e-6, abs=0)
    assert len(set(own.rates)) > 1
    if state == "keep":
        assert_same_weights(own, reference, moved=False)


def test_validation_sees_the_client_and_not_who_trained_last(tmp_path: Path) -> None:
    """Clients of 1, 3 and 2 batches; the last is away in the second of two rounds."""
    seen: dict[tuple[int, int], list[float]] = {}

    class Reads(OneCycle):  # type: ignore[valid-type, misc]
        def on_validation_epoch_end(self) -> None:
            trainer, loop = self.trainer, self.trainer.fit_loop
            lengths = [trainer.num_training_batches, trainer.estimated_stepping_batches, loop.total_batch_idx]
            scheduled = [self.lr_schedulers().last_epoch, len(trainer.optimizers)]
            seen[trainer.client, trainer.current_epoch] = [*lengths, *scheduled]

    cohorts = leave_out([[0, 1, 2], [0, 1]])
    fitted(tmp_path, make(Reads), Clients((4, 12, 8)), max_rounds=2, callbacks=[cohorts])
    for client, batches in enumerate((1, 3, 2)):
        for epoch in (0, 1):
            done = batches if client == 2 else batches * (epoch + 1)
            assert seen[client, epoch] == [batches, 2 * batches, done - 1, done, 1]


# -- what "epoch" and "step" mean for a client that is not always there ---------------------------------------------


class PerClient(Linear):
    """Notes (client, rate) of every batch."""

    interval = "epoch"

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[tuple[int, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.rates.append((self.trainer.client, round(self.optimizers().param_groups[0]["lr"], 9)))
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": self.interval}]


_COHORTS = [[0, 1], [0], [0], [0, 1]]


@pytest.mark.parametrize(
    ("own", "interval", "away"),
    [
        ("epoch", "auto", [0.1, 0.0125]),  # a round is a round, whether or not the client was there
        ("epoch", "round", [0.1, 0.0125]),
        ("epoch", "step", [0.1, 0.05]),
        ("step", "auto", [0.1, 0.05]),  # only the client's own steps count
        ("step", "round", [0.1, 0.0125]),
    ],
)
def test_a_client_that_misses_rounds(own: str, interval: Any, away: list[float], tmp_path: Path) -> None:
    made = make(linear("PerClient", PerClient, interval=own))
    trainer = federated_trainer(tmp_path, max_rounds=4, scheduler_interval=interval, callbacks=[leave_out(_COHORTS)])
    trainer.fit(made, Clients((4, 4)))
    assert [rate for client, rate in made.rates if client == 0] == [0.1, 0.05, 0.025, 0.0125]
    assert [rate for client, rate in made.rates if client == 1] == away


def test_a_plateau_scheduler_sees_the_latest_value_once_after_missed_rounds(tmp_path: Path) -> None:
    """A loss that falls every round is no plateau for a client that was away meanwhile."""

    class Improves(PerClient):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", 1.0 / (1 + self.current_epoch))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}

    module = make(Improves)
    federated_trainer(tmp_path, max_rounds=4, callbacks=[leave_out(_COHORTS)]).fit(module, Clients((4, 4)))
    assert {rate for _, rate in module.rates} == {0.1}


# -- monitors -------------------------------------------------------------------------------------------------------


def _misspelt(strict: bool) -> type[Any]:
    return _scheduled(
        lambda of: {
            "lr_scheduler": {"scheduler": lr_scheduler.ReduceLROnPlateau(of), "monitor": "valid_loss", "strict": strict}
        }
    )


@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_monitor_that_is_not_logged_is_refused(every: int, tmp_path: Path) -> None:
    trainer = federated_trainer(tmp_path, max_rounds=4, check_val_every_n_rounds=every)
    logged = "'train/loss', 'train_loss'" + (", 'val_loss'" if every else "")
    message = rf"'valid_loss'.*\[{logged}\]"
    with pytest.raises(TrainingError, match=message) as error:
        trainer.fit(_misspelt(True)(), Clients())
    assert isinstance(error.value.__cause__, ConfigurationError)
    assert trainer.current_round == max(1, every)


def test_a_lenient_monitor_warns_and_leaves_the_rate(tmp_path: Path) -> None:
    module = make(_misspelt(False))
    with pytest.warns(RuntimeWarning, match="'valid_loss'"):
        federated_trainer(tmp_path, max_rounds=2).fit(module, Clients())
    assert set(module.rates) == {0.05}


def test_validation_every_second_round_feeds_the_plateau(tmp_path: Path) -> None:
    module = make(Plateau)
    federated_trainer(tmp_path, max_rounds=4, check_val_every_n_rounds=2).fit(module, Clients())
    assert module.rates[:9] == [0.05] * 9  # rounds 1 to 3: nothing validated, then a first value, which is the best


@pytest.mark.parametrize(("every", "turns"), [(1, (0.05, 0.05, 0.025, 0.0125)), (2, (0.05, 0.05, 0.05, 0.025))])
def test_validation_after_fine_tuning_feeds_the_plateau(every: int, turns: tuple[float, ...], tmp_path: Path) -> None:
    """A loss that falls is worse. Fine-tuning begins with the module's rate, before there is a value and afterwards."""
    module, tuning = make(Plateau), FineTuning(steps=2, every_evaluation=True)
    federated_trainer(tmp_path, max_rounds=4, check_val_every_n_rounds=every, callbacks=[tuning]).fit(module, Clients())
    expected: list[float] = []
    for round_number, rate in enumerate(turns, start=1):
        expected += [rate] * 3 + [0.05] * 2 * (round_number % every == 0)
    assert module.rates == [*expected, 0.05, 0.05]  # at last for the models of the end


@pytest.mark.parametrize("form", ["plateau", "plateau on training", "plateau on steps"])
def test_an_evaluation_by_itself_fine_tunes_with_a_plateau_as_the_fit(form: str, tmp_path: Path) -> None:
    """All splits but training have the same samples."""
    data = Clients((8, 12), data=lambda client, split: samples(client, 8, "train" if split == "train" else "val"))
    module = make(linear("Tested", _FORMS[form], test_step=Scheduled.validation_step))
    tuning = FineTuning(steps=3, every_evaluation=True)
    trainer = fitted(tmp_path, module, data, max_rounds=3, callbacks=[tuning])
    expected = trainer.metrics["val"]["val_loss"].clients
    assert trainer.validate(module, data)["val_loss"].clients == expected
    assert trainer.test(module, data)["val_loss"].clients == expected


def test_a_resumed_run_continues_with_its_schedulers(tmp_path: Path) -> None:
    (whole, first, second), _ = fit_whole_and_resumed(OneCycle, tmp_path, Clients(), stop=True)
    assert first.rates + second.rates == whole.rates
    assert_same_weights(second, whole, moved=False)


#: Scheduler -> how it is made; rates change in the first rounds.
_EVERY_KIND: dict[type[Any], Callable[[Any], Any]] = {
    lr_scheduler.LambdaLR: lambda of: lr_scheduler.LambdaLR(of, lambda count: 0.5**count),
    lr_scheduler.MultiplicativeLR: lambda of: lr_scheduler.MultiplicativeLR(of, lambda count: 0.5),
    lr_scheduler.StepLR: lambda of: lr_scheduler.StepLR(of, 2, gamma=0.5),
    lr_scheduler.MultiStepLR: lambda of: lr_scheduler.MultiStepLR(of, [2, 2, 3], gamma=0.5),
    lr_scheduler.ConstantLR: lambda of: lr_scheduler.ConstantLR(of, 0.5, total_iters=2),
    lr_scheduler.LinearLR: lambda of: lr_scheduler.LinearLR(of, 0.5, total_iters=3),
    lr_scheduler.ExponentialLR: lambda of: lr_scheduler.ExponentialLR(of, 0.5),
    lr_scheduler.PolynomialLR: lambda of: lr_scheduler.PolynomialLR(of, total_iters=5),
    lr_scheduler.CosineAnnealingLR: lambda of: lr_scheduler.CosineAnnealingLR(of, T_max=3),
    lr_scheduler.CosineAnnealingWarmRestarts: lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 2, T_mult=2),
    lr_scheduler.CyclicLR: lambda of: lr_scheduler.CyclicLR(of, 0.01, 0.1, step_size_up=2, mode="triangular2"),
    lr_scheduler.OneCycleLR: lambda of: lr_scheduler.OneCycleLR(of, 0.1, total_steps=6),
    lr_scheduler.ReduceLROnPlateau: lambda of: lr_scheduler.ReduceLROnPlateau(of, mode="max", patience=0, factor=0.5),
    lr_scheduler.SequentialLR: lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.LinearLR(of, 0.1, total_iters=2), lr_scheduler.MultiStepLR(of, [1, 2], 0.5)], [2]
    ),
    lr_scheduler.ChainedScheduler: lambda of: lr_scheduler.ChainedScheduler(
        [lr_scheduler.MultiStepLR(of, [2], 0.5), lr_scheduler.ExponentialLR(of, 0.9)], optimizer=of
    ),
    SWALR: lambda of: SWALR(of, swa_lr=0.01, anneal_epochs=3),
}


def test_every_scheduler_of_torch_is_tried() -> None:
    public = {one for name, one in vars(lr_scheduler).items() if isinstance(one, type) and name[0] != "_"}
    kinds = {one for one in public if issubclass(one, lr_scheduler.LRScheduler)} - {lr_scheduler.LRScheduler}
    assert kinds | {SWALR} == set(_EVERY_KIND)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["keep", "fresh"])
@pytest.mark.parametrize("kind", _EVERY_KIND, ids=lambda kind: kind.__name__)
def test_every_scheduler_goes_on_after_a_resume_and_where_a_turn_trains_twice(
    kind: type[Any], state: Any, tmp_path: Path
) -> None:
    """A personal model that nothing pulls is trained as a client alone trains its shared one."""

    given = _scheduled(lambda of: {"lr_scheduler": {"scheduler": _EVERY_KIND[kind](of), "monitor": "val_loss"}})

    def trained(rounds: int, folder: str, ckpt_path: str | None = None) -> FederatedTrainer:
        options: dict[str, Any] = {"optimizer_state": state, "enable_checkpointing": True}
        strategy: Any = Ditto(strength=0) if folder != "alone" else "fedavg"
        trainer = federated_trainer(tmp_path / folder, strategy=strategy, max_rounds=rounds, **options)
        trainer.fit(make(given), Clients((8,)), ckpt_path=ckpt_path)
        return trainer

    whole, alone = trained(5, "whole"), trained(5, "alone")
    trained(2, "cut")
    resumed = trained(5, "cut", "last")
    rates = alone.module.rates  # type: ignore[union-attr]
    assert len(set(rates)) > 1
    for own, shared in ((whole, alone), (resumed, whole)):
        for dtype, vector in own.client_model(0).floating():
            assert torch.equal(vector, shared.client_model(0).vectors[dtype])
    for dtype, vector in resumed.models[0].floating():
        assert torch.equal(vector, whole.models[0].vectors[dtype])


class WithNumpy(lr_scheduler.LRScheduler):
    """Computes rates with numpy, and keeps a table of them."""

    def __init__(self, optimizer: Any) -> None:
        self.table = np.linspace(0.1, 0.05, 100)
        self.last = np.float32(0.0)
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        self.last = np.float32(self.table[self.last_epoch])
        return [self.table[self.last_epoch] for _ in self.optimizer.param_groups]


@pytest.mark.parametrize("state", ["keep", "fresh"])
def test_a_checkpoint_with_rates_of_numpy_is_resumed(state: Any, tmp_path: Path) -> None:
    class Rates(Linear):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return [optimizer], [{"scheduler": WithNumpy(optimizer), "interval": "step"}]

    (whole, _, second), _ = fit_whole_and_resumed(Rates, tmp_path, optimizer_state=state)
    assert_same_weights(second, whole, moved=False)


# -- schedulers that the module keeps and steps itself ---------------------------------------------------------------


class Inverse:
    """Not torch's: rate / (1 + steps), with a state."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.steps = optimizer, 0

    def step(self) -> None:
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = 0.05 / (1 + self.steps)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


@pytest.mark.parametrize("state", ["keep", "fresh"])
@pytest.mark.parametrize("held", ["attribute", "list", "dict", "another's", "once"])
def test_a_scheduler_that_the_module_keeps_goes_on_with_its_client(held: str, state: Any, tmp_path: Path) -> None:
    class Keeps(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.rates: dict[int, list[float]] = {}
            self.once = self.made() if held == "once" else None

        def made(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            kind = Inverse if held == "another's" else lambda of: lr_scheduler.LambdaLR(of, lambda t: 1 / (1 + t))
            self.kept: Any = kind(optimizer)
            self.kept = {"list": [self.kept], "dict": {"warm-up": self.kept}}.get(held, self.kept)
            return optimizer

        def configure_optimizers(self) -> Any:
            return self.once or self.made()

        def on_train_batch_end(self, *_: Any) -> None:
            self.rates.setdefault(getattr(self.trainer, "client", 0), []).append(
                self.optimizers().param_groups[0]["lr"]
            )
            kept = self.kept
            (kept[0] if held == "list" else kept["warm-up"] if held == "dict" else kept).step()

    module = make(Keeps)
    federated_trainer(tmp_path, max_rounds=3, optimizer_state=state).fit(module, Clients((8, 8)))
    for client in (0, 1):
        assert module.rates[client] == pytest.approx([0.05 / (1 + step) for step in range(6)])
