"""What torchmetrics metrics count beyond a turn ("best so far") is each client's own."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from reference import (
    Clients,
    Linear,
    OneClient,
    assert_same_weights,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    leave_out,
    lightning_trainer,
    linear,
    make,
    samples,
    train_both,
)
from torch import Tensor
from torch.utils.data import TensorDataset
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy
from torchmetrics.wrappers import MinMaxMetric

from lightning_fl.callbacks.callback import Callback


class Best(Linear):
    """As in the Lightning-Hydra-Template: a metric of each validation, and the best value until now."""

    def __init__(self) -> None:
        super().__init__()
        self.val_loss = torchmetrics.MeanMetric()
        self.best = torchmetrics.MinMetric()
        self.seen: dict[tuple[int, int], float] = {}

    def on_train_start(self) -> None:
        self.val_loss.reset()
        self.best.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.loss(batch) * (1 + (self.current_epoch + self.key()) % 2)  # now better, now worse
        self.val_loss(loss)
        self.log("val_loss", self.val_loss, on_step=False, on_epoch=True)

    def key(self) -> int:
        return getattr(self.trainer, "client", 0)

    def on_validation_epoch_end(self) -> None:
        self.best(self.val_loss.compute())
        self.seen[self.current_epoch, self.key()] = float(self.best.compute())
        self.log("best", self.best.compute(), sync_dist=True)


class Counts(Best):
    """Metrics that nobody resets: of batches of training, of lists of values, of extremes."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = torchmetrics.SumMetric()
        self.values = torchmetrics.CatMetric()
        self.extremes = MinMaxMetric(torchmetrics.MeanMetric())
        self.all = torchmetrics.MetricCollection({"mean": torchmetrics.MeanMetric(), "max": torchmetrics.MaxMetric()})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.batches.update(1)
        self.all.update(loss.detach())
        return loss

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        value = self.val_loss.compute()
        self.values.update(value)
        self.extremes.update(value)
        found = [self.batches.compute(), self.values.compute().sum(), *self.extremes.compute().values()]
        found += self.all.compute().values()
        self.seen[self.current_epoch, self.key()] += sum(10.0**k * float(one) for k, one in enumerate(found))


@pytest.mark.slow
@pytest.mark.parametrize("module", [Best, Counts])
def test_one_client_is_lightnings_run(module: type[Best], tmp_path: Path) -> None:
    own, _, reference, _ = train_both(module, tmp_path, epochs=4)
    assert own.seen == reference.seen
    assert float(own.best.compute()) == float(reference.best.compute())  # as the last turn left it


@pytest.mark.parametrize("module", [Best, Counts])
def test_every_client_has_its_own(module: type[Best], tmp_path: Path) -> None:
    together, others = make(module), make(module)
    clients = Clients((8, 8, 8))
    federated_trainer(tmp_path, max_rounds=3, callbacks=[leave_out([[0, 1, 2]] * 3)]).fit(together, clients)
    for client in range(3):
        values = [together.seen[epoch, client] for epoch in range(3)]
        assert module is not Best or values == sorted(values, reverse=True)
    federated_trainer(tmp_path, max_rounds=3, callbacks=[leave_out([[2, 0, 1]] * 3)]).fit(others, clients)
    assert others.seen == together.seen
    assert_same_weights(together, others, moved=False)
    assert len({together.seen[2, client] for client in range(3)}) == 3


@pytest.mark.parametrize("module", [Best, Counts])
def test_a_resumed_run_continues(module: type[Best], tmp_path: Path) -> None:
    (whole, first, second), _ = fit_whole_and_resumed(module, tmp_path, stop=True)
    assert first.seen | second.seen == whole.seen


def test_logged_metrics_leave_nothing_behind(tmp_path: Path) -> None:
    logged = linear("Logged", Best, on_validation_epoch_end=lambda self: None)
    trainer = fitted(tmp_path, make(logged), Clients((8, 8)), max_rounds=2)
    assert "metric_states" not in trainer.federation.client_stores


def test_evaluations_of_callbacks_do_not_count(tmp_path: Path) -> None:
    class Looks(Callback):
        def on_round_end(self, trainer: Any) -> None:
            for client in (1, 0):
                trainer.loop.evaluator.evaluate(client, trainer.models[0], "train")

    own, watched = make(Best), make(Best)
    clients = Clients((8, 8))
    federated_trainer(tmp_path, max_rounds=3).fit(own, clients)
    seen: dict[Any, float] = {}
    trainer = fitted(tmp_path, watched, clients, max_rounds=3, callbacks=[Looks()])
    stores = trainer.client_store("metric_states")
    for client in (0, 1):
        seen[client] = float(stores[client]["best"]["min_value"])
        assert seen[client] == own.seen[2, client]


def test_what_a_hook_of_the_run_resets_is_reset_for_all(tmp_path: Path) -> None:
    class Resets(Best):
        def on_validation_start(self) -> None:
            self.best.reset()

        def on_validation_epoch_end(self) -> None:
            self.best(self.val_loss.compute())
            self.seen[self.current_epoch, self.key()] = float(self.best.compute()) - float(self.val_loss.compute())

    module = make(Resets)
    federated_trainer(tmp_path, max_rounds=3).fit(module, Clients((8, 8, 8)))
    assert set(module.seen.values()) == {0.0}


def test_a_failed_turn_does_not_count(tmp_path: Path) -> None:
    class Fails(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.batches = torchmetrics.SumMetric()
            self.seen: list[tuple[int, int]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.batches.update(1)
            if self.trainer.client == 0 and self.current_epoch == 1 and batch_idx == 1:
                raise ValueError("no")
            return self.loss(batch)

        def on_train_epoch_end(self) -> None:
            self.seen.append((self.trainer.client, int(self.batches.compute())))

    module = make(Fails)
    federated_trainer(tmp_path, max_rounds=3, on_client_error="skip").fit(module, Clients((8, 8)))
    assert module.seen == [(0, 2), (1, 2), (1, 4), (0, 4), (1, 6)]
    assert torch.isfinite(module.net.weight).all()


class CountsBatches(Linear):
    """A metric of the batches that a client has trained on, which nobody resets."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = torchmetrics.SumMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.batches.update(1)
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("batches", self.batches.compute())


class Diverging(Clients):
    """The last client's inputs are too large: its turn is refused after its last step."""

    def client_data(self, client: int, split: str) -> Any:
        found: Any = super().client_data(client, split)
        return TensorDataset(found.tensors[0] * 1e10, found.tensors[1]) if client == self.num_clients - 1 else found


def test_a_turn_that_is_refused_at_its_end_does_not_count(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, make(CountsBatches), Diverging((4, 4)), max_rounds=2, on_client_error="skip")
    assert "diverges" in trainer.client_reports[1].error
    assert trainer.metrics["val"]["batches"].clients == {0: 2.0, 1: 0.0}


def test_evaluations_and_fits_do_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    module, data = make(CountsBatches), Clients((4, 4, 4))
    trainer = fitted(
        tmp_path, module, data, max_rounds=2, callbacks=[leave_out([[1, 2], [1, 2]])], enable_checkpointing=True
    )
    in_fit = dict(trainer.metrics["val"]["batches"].clients)
    for one in (module, make(CountsBatches)):
        assert federated_trainer(tmp_path).validate(one, data, ckpt_path="last")["batches"].clients == {
            0: 0.0,
            1: 2.0,
            2: 2.0,
        }
    again = fitted(
        tmp_path, module, data, max_rounds=2, callbacks=[leave_out([[1, 2], [1, 2]])], enable_checkpointing=True
    )
    assert again.metrics["val"]["batches"].clients == in_fit


class Scored(Linear):
    """Accuracy of whether a target is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = BinaryAccuracy()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.accuracy(self.net(x).sigmoid(), (y > 0).int())
        self.log("accuracy", self.accuracy)


def set_threshold(module: Any) -> None:
    module.accuracy.threshold = 0.7


def replace_metric(module: Any) -> None:
    module.accuracy = BinaryAccuracy(threshold=0.7)


@pytest.mark.parametrize("change", [set_threshold, replace_metric])
def test_what_is_changed_in_a_metric_between_runs_stays(change: Callable[[Any], None], tmp_path: Path) -> None:
    data = Clients(batch_size=40, data=lambda client, split: samples(client, 40, split))
    module, theirs, reference = make(Scored), make(Scored), lightning_trainer(tmp_path)

    def tested() -> tuple[float, float]:
        own = federated_trainer(tmp_path).test(module, data)["accuracy"].mean
        return own, reference.test(theirs, OneClient(data), verbose=False)[0]["accuracy"]

    before = tested()
    for one in (module, theirs):
        change(one)
    after = tested()
    assert before[0] == pytest.approx(before[1])
    assert after[0] == pytest.approx(after[1])
    assert after[0] != before[0]
    assert module.accuracy.threshold == 0.7


class Classes(Linear):
    """Right about classes 0, 1, ... in turn, as many as the metric has."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(2)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        classes = torch.arange(len(batch[0])) % self.accuracy.num_classes
        self.accuracy(classes, classes)
        self.log("accuracy", self.accuracy)


def test_a_metric_with_other_states_may_have_the_name_of_one_before(tmp_path: Path) -> None:
    module, data = make(Classes), Clients()
    assert federated_trainer(tmp_path).test(module, data)["accuracy"].mean == 1
    module.accuracy = MulticlassAccuracy(5)
    assert federated_trainer(tmp_path).test(module, data)["accuracy"].mean == 1


class Starts(Linear):
    """Counts epochs from what a hook of the run's start adds."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = torchmetrics.SumMetric()
        self.seen: list[tuple[int, float]] = []

    def on_train_epoch_end(self) -> None:
        self.epochs.update(1)
        self.seen.append((getattr(self.trainer, "client", 0), float(self.epochs.compute())))


def test_updates_before_the_first_turn_stay(tmp_path: Path) -> None:
    made = linear("Begins", Starts, on_train_start=lambda self: self.epochs.update(100))
    own, _, reference, _ = train_both(made, tmp_path, epochs=2)
    assert own.seen == reference.seen == [(0, 101.0), (0, 102.0)]
    several = make(made)
    fitted(tmp_path, several, Clients((8, 8)), max_rounds=2)
    assert several.seen == [(0, 101.0), (1, 101.0), (0, 102.0), (1, 102.0)]


def test_a_state_that_a_diverged_run_left_is_not_a_change_of_the_users(tmp_path: Path) -> None:
    module = make(linear("Diverges", Starts, on_train_epoch_start=lambda self: self.epochs.update(math.nan)))
    module.epochs = torchmetrics.SumMetric(nan_strategy="disable")
    for _ in range(2):
        fitted(tmp_path, module, Clients((8,)), max_rounds=1)
        assert module.epochs.compute().isnan()
    type(module).on_train_epoch_start = lambda self: None
    fitted(tmp_path, module, Clients((8,)), max_rounds=1)
    assert module.seen[-1] == (0, 1.0)
