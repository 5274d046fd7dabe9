"""Learning rates follow Lightning's Trainer, and go on from round to round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import Clients, LeaveOut, Linear, assert_same_weights, federated_trainer, make, train_both
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from lightning_fl import FederatedTrainer
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


class ListOfSchedulers(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        return [optimizer], [lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class TupleOfDicts(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
        return ([optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 1}])


class Dictionary(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        return {"optimizer": optimizer, "lr_scheduler": lr_scheduler.ExponentialLR(optimizer, 0.8)}


class EverySecondRound(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda count: 0.5**count)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "frequency": 2}}


class EveryThirdStep(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 3}]


class OneCycle(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Sequential(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.7)]
        scheduler = lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class TwoSchedulers(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        first, second = lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [first, {"scheduler": second, "interval": "step"}]


class Plateau(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


class PlateauOnTraining(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "train_loss"}}


class PlateauOnEpochName(Scheduled):
    """The name that Lightning gives to what is logged on steps and on epochs."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss_epoch"}}


class OwnStep(Plateau):
    """Halves the metric before the scheduler sees it."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.seen = float(metric)
        scheduler.step(metric / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        ListOfSchedulers,
        TupleOfDicts,
        Dictionary,
        EverySecondRound,
        EveryThirdStep,
        OneCycle,
        Sequential,
        TwoSchedulers,
        Plateau,
        PlateauOnTraining,
        PlateauOnEpochName,
        OwnStep,
    ],
)
@pytest.mark.parametrize("state", ["keep", "fresh"])
def test_rates_go_on_over_rounds(module: type[Scheduled], state: str, tmp_path: Path) -> None:
    own, _, reference, _ = train_both(module, tmp_path, epochs=4, federated={"optimizer_state": state})
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
    estimates = []

    class Noting(OneCycle):
        def configure_optimizers(self) -> Any:
            estimates.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    module = make(Noting)
    trainer = federated_trainer(tmp_path, max_rounds=3, **arguments)
    trainer.fit(module, Clients((10,)))
    assert estimates == [steps] * 3
    assert trainer.client_states[0].global_step == steps


def test_estimated_stepping_batches_outside_a_turn_is_refused(tmp_path: Path) -> None:
    class Early(Linear):
        def on_train_start(self) -> None:
            _ = self.trainer.estimated_stepping_batches

    with pytest.raises(ConfigurationError, match="estimated_stepping_batches"):
        federated_trainer(tmp_path, max_rounds=1).fit(Early(), Clients())


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


class PerClientAndStep(PerClient):
    interval = "step"


_COHORTS = [[0, 1], [0], [0], [0, 1]]


@pytest.mark.parametrize(
    ("module", "interval", "away"),
    [
        (PerClient, "auto", [0.1, 0.0125]),  # a round is a round, whether or not the client was there
        (PerClient, "round", [0.1, 0.0125]),
        (PerClient, "step", [0.1, 0.05]),
        (PerClientAndStep, "auto", [0.1, 0.05]),  # only the client's own steps count
        (PerClientAndStep, "round", [0.1, 0.0125]),
    ],
)
def test_a_client_that_misses_rounds(module: type[PerClient], interval: Any, away: list[float], tmp_path: Path) -> None:
    made = make(module)
    trainer = federated_trainer(tmp_path, max_rounds=4, scheduler_interval=interval, callbacks=[LeaveOut(_COHORTS)])
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
    federated_trainer(tmp_path, max_rounds=4, callbacks=[LeaveOut(_COHORTS)]).fit(module, Clients((4, 4)))
    assert {rate for _, rate in module.rates} == {0.1}


# -- monitors -------------------------------------------------------------------------------------------------------


class Misspelt(Scheduled):
    strict = True

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer()
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
        config = {"scheduler": scheduler, "monitor": "valid_loss", "strict": self.strict}
        return {"optimizer": optimizer, "lr_scheduler": config}


class MisspeltAndLenient(Misspelt):
    strict = False


@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_monitor_that_is_not_logged_is_refused(every: int, tmp_path: Path) -> None:
    trainer = federated_trainer(tmp_path, max_rounds=4, check_val_every_n_rounds=every)
    logged = "'train/loss', 'train_loss'" + (", 'val_loss'" if every else "")
    message = rf"'valid_loss'.*\[{logged}\]"
    with pytest.raises(TrainingError, match=message) as error:
        trainer.fit(Misspelt(), Clients())
    assert isinstance(error.value.__cause__, ConfigurationError)
    assert trainer.current_round == max(1, every)


def test_a_lenient_monitor_warns_and_leaves_the_rate(tmp_path: Path) -> None:
    module = make(MisspeltAndLenient)
    with pytest.warns(RuntimeWarning, match="'valid_loss'"):
        federated_trainer(tmp_path, max_rounds=2).fit(module, Clients())
    assert set(module.rates) == {0.05}


def test_validation_every_second_round_feeds_the_plateau(tmp_path: Path) -> None:
    module = make(Plateau)
    federated_trainer(tmp_path, max_rounds=4, check_val_every_n_rounds=2).fit(module, Clients())
    assert module.rates[:9] == [0.05] * 9  # rounds 1 to 3: nothing validated, then a first value, which is the best


def test_schedulers_of_another_optimizer_are_refused(tmp_path: Path) -> None:
    class Stray(Linear):
        def configure_optimizers(self) -> Any:
            first, second = torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.1)
            return [first], [lr_scheduler.StepLR(second, 1)]

    with pytest.raises(TrainingError, match="attached with an optimizer that wasn't returned"):
        federated_trainer(tmp_path, max_rounds=1).fit(Stray(), Clients())


def test_resumed_run_goes_on_with_its_schedulers(tmp_path: Path) -> None:
    whole, first, second = make(OneCycle), make(OneCycle), make(OneCycle)
    federated_trainer(tmp_path / "whole", max_rounds=4).fit(whole, Clients())

    class Stop(LeaveOut):
        def on_round_end(self, trainer: Any) -> None:
            trainer.should_stop = trainer.current_round == 2

    everybody = [[0]] * 4
    trainer = federated_trainer(tmp_path / "cut", max_rounds=4, callbacks=[Stop(everybody)], enable_checkpointing=True)
    trainer.fit(first, Clients())
    again = federated_trainer(tmp_path / "cut", max_rounds=4, enable_checkpointing=True)
    again.fit(second, Clients(), ckpt_path="last")
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

    class Given(Scheduled):
        def configure_optimizers(self) -> Any:
            optimizer = self.optimizer()
            config = {"scheduler": _EVERY_KIND[kind](optimizer), "monitor": "val_loss"}
            return {"optimizer": optimizer, "lr_scheduler": config}

    def trained(rounds: int, folder: str, ckpt_path: str | None = None) -> FederatedTrainer:
        options: dict[str, Any] = {"optimizer_state": state, "enable_checkpointing": True}
        strategy: Any = Ditto(strength=0) if folder != "alone" else "fedavg"
        trainer = federated_trainer(tmp_path / folder, strategy=strategy, max_rounds=rounds, **options)
        trainer.fit(make(Given), Clients((8,)), ckpt_path=ckpt_path)
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
def test_a_checkpoint_with_rates_of_numpy_is_gone_on_from(state: Any, tmp_path: Path) -> None:
    class Rates(Linear):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return [optimizer], [{"scheduler": WithNumpy(optimizer), "interval": "step"}]

    def trainer(rounds: int, folder: str) -> FederatedTrainer:
        options: dict[str, Any] = {"optimizer_state": state, "enable_checkpointing": True}
        return federated_trainer(tmp_path / folder, max_rounds=rounds, **options)

    whole, first, second = make(Rates), make(Rates), make(Rates)
    trainer(3, "whole").fit(whole, Clients((8, 12)))
    trainer(1, "cut").fit(first, Clients((8, 12)))
    trainer(3, "cut").fit(second, Clients((8, 12)), ckpt_path="last")
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
