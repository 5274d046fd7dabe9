"""``self.log``: the values of one client are Lightning's epoch values, whatever is logged, from wherever."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from reference import (
    Clients,
    Linear,
    OneClient,
    assert_same_weights,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    lightning_trainer,
    linear,
    loader,
    logs_from,
    make,
    samples,
    step,
    train_both,
)
from torch import Tensor
from torchmetrics import Metric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryAveragePrecision, BinaryF1Score
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError, R2Score

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import ModelCheckpoint


def _compare(module: Callable[[], Any], folder: Path, names: list[str], split: str = "train", **arguments: Any) -> Any:
    """The values under ``names`` after two rounds equal Lightning's after two epochs."""
    own, trainer, reference, theirs = train_both(module, folder, epochs=2, **arguments)
    for name in names:
        got = trainer.metrics[split][name].clients[0]  # type: ignore[index]
        assert got == pytest.approx(float(theirs.callback_metrics[name]), rel=1e-5, nan_ok=True), name
    return own, trainer, reference, theirs


def _trained(act: Callable[[Any], Any], folder: Path, data: Clients, **options: Any) -> FederatedTrainer:
    """The trainer after a round of a module that calls ``act(module)`` in each step."""
    return fitted(folder, linear(training_step=step(act))(), data, max_rounds=1, **options)


# -- values and arguments -------------------------------------------------------------------------------------------


class Values(Linear):
    """Numbers and tensors of all kinds, each under its own name."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        kinds = {
            "loss": loss,
            "python_float": batch_idx + 0.5,
            "python_int": batch_idx,
            "boolean": batch_idx == 0,
            "one_entry": loss.reshape(1, 1),
            "integer_tensor": torch.tensor(batch_idx),
            "double": loss.double(),
            "half": loss.to(torch.bfloat16),
            "not_a_number": math.nan,
            "infinite": math.inf,
        }
        self.log_dict(kinds, on_step=False, on_epoch=True)
        return loss


def test_numbers_and_tensors(tmp_path: Path) -> None:
    names = "loss python_float python_int boolean one_entry integer_tensor double half not_a_number infinite"
    own, trainer, reference, _ = _compare(Values, tmp_path, names.split())
    assert_same_weights(own, reference)
    # Batches of 4, 4 and 2 samples: the mean of 0, 1 and 2 is weighted by samples.
    assert trainer.metrics["train"]["python_int"].mean == pytest.approx((0 * 4 + 1 * 4 + 2 * 2) / 10)


def test_reduce_fx(tmp_path: Path) -> None:
    functions = (torch.mean, torch.sum, torch.min, torch.max, min, max, sum)
    reductions: dict[str, Any] = {f"{function.__module__}_{function.__name__}": function for function in functions}
    reductions |= {name: name for name in ("mean", "avg", "sum", "min", "max", "MEAN")}

    class Reductions(Linear):
        def loss(self, batch: Any) -> Tensor:
            loss = super().loss(batch)
            for name, reduction in reductions.items():
                self.log(name, loss, on_step=False, on_epoch=True, reduce_fx=reduction)
            return loss

    _compare(Reductions, tmp_path, list(reductions))


def test_reduce_fx_may_be_any_function_of_the_batches_values(tmp_path: Path) -> None:
    """Lightning refuses these; here a function gets the tensor of all values of the turn."""

    def act(self: Any) -> None:
        index = self.trainer.fit_loop.batch_idx
        self.log("median", [5.0, 1.0, 3.0][index], reduce_fx=torch.median)
        self.log("spread", float(index), reduce_fx=lambda values: float(values.max() - values.min()))
        assert self.trainer.callback_metrics["spread"] == index

    trainer = _trained(act, tmp_path, Clients((10,)))
    assert trainer.metrics["train"]["median"].mean == 3.0
    assert trainer.metrics["train"]["spread"].mean == 2.0


def test_batch_size(tmp_path: Path) -> None:
    def act(self: Any) -> None:
        index = self.global_step % 3
        self.log("ignored", float(index), on_step=False, on_epoch=True, batch_size=1)
        self.log("own", float(index), on_step=False, on_epoch=True, batch_size=index + 1)

    _, trainer, _, _ = _compare(linear(training_step=step(act)), tmp_path, ["ignored", "own"])
    assert trainer.metrics["train"]["ignored"].mean == pytest.approx(1.0)
    assert trainer.metrics["train"]["own"].mean == pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6)


@pytest.mark.parametrize("size", [torch.tensor(3), 0], ids=["a tensor", "nothing"])
def test_batch_sizes_of_the_loss(size: Any, tmp_path: Path) -> None:
    """A tensor is a number, and the mean over no samples is none."""

    class Logs(Linear):
        def loss(self, batch: Any) -> Tensor:
            loss = super().loss(batch)
            self.log("loss", loss, on_step=False, on_epoch=True, batch_size=size)
            return loss

    _, trainer, _, _ = _compare(Logs, tmp_path, ["loss"])
    found = [trainer.metrics["train"][name].mean for name in ("loss", "train/loss")]
    assert found[0] == pytest.approx(found[1], rel=1e-6, nan_ok=True)
    assert math.isnan(found[0]) == (size == 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prog_bar": True},
        {"logger": False},
        {"logger": True},
        {"sync_dist": True},
        {"add_dataloader_idx": False},
        {"rank_zero_only": True},
        {"enable_graph": True},
        {"on_step": True},
        {"on_step": True, "on_epoch": True},
        {"on_epoch": True, "batch_size": 4},
    ],
)
@pytest.mark.filterwarnings("ignore:You called `self.log")
def test_every_other_argument_leaves_the_value(arguments: dict[str, Any], tmp_path: Path) -> None:
    class Logs(Linear):
        def loss(self, batch: Any) -> Tensor:
            loss = super().loss(batch)
            self.log("loss", loss, **{"on_epoch": True, "on_step": False} | arguments)
            return loss

    own, trainer, reference, theirs = train_both(Logs, tmp_path, epochs=2, data=Clients((8,)))
    assert_same_weights(own, reference)
    metric = trainer.metrics["train"]["loss"]
    name = "loss_epoch" if arguments.get("on_step") else "loss"
    assert metric.mean == pytest.approx(float(theirs.callback_metrics[name]), rel=1e-6)
    assert metric.prog_bar is arguments.get("prog_bar", False)
    assert metric.to_logger is arguments.get("logger", True)


def test_a_value_logged_on_step_only_is_shown_as_its_mean(tmp_path: Path) -> None:
    """Lightning's default for ``training_step``: it would keep the last batch's value only."""

    trainer = _trained(lambda self: self.log("index", float(self.global_step)), tmp_path, Clients((12,)))
    assert trainer.metrics["train"]["index"].mean == 1.0


def test_single_steps_are_logged_on_the_clients_own_steps(tmp_path: Path) -> None:
    class Logs(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.log("index", float(batch_idx), on_step=True)
            self.log("quiet", float(batch_idx), on_step=False, on_epoch=True)
            return self.loss(batch)

    trainer = fitted(tmp_path, Logs(), Clients((12, 8)), max_rounds=2, log_every_n_steps=2, logger=True)
    table = pd.read_csv(Path(trainer.log_dir) / "metrics.csv")
    curve = table.dropna(subset=["index/step/client_0"]).set_index("step")["index/step/client_0"].to_dict()
    assert curve == {0: 0.0, 2: 2.0, 4: 1.0}  # rounds of three steps: 0 1 2, then 3 4 5
    assert not [name for name in table if name.startswith("quiet/step")]


# -- torchmetrics ---------------------------------------------------------------------------------------------------


class Metrics(Linear):
    """Metric objects that are logged as they are, by update and by forward, in all three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.train_mae, self.train_mse = MeanAbsoluteError(), MeanSquaredError(squared=False)
        self.val_r2, self.val_mae = R2Score(), MeanAbsoluteError()
        self.hidden: dict[str, Metric] = {"sum": SumMetric()}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        made = self.net(x).detach()
        self.train_mae(made, y)
        self.log("train_mae", self.train_mae, on_step=False, on_epoch=True)
        self.train_mse.update(made, y)
        self.log("train_rmse", self.train_mse, on_step=False, on_epoch=True, metric_attribute="train_mse")
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.val_r2.update(self.net(x), y)
        self.val_mae.update(self.net(x), y)
        self.hidden["sum"].update(y)
        self.log_dict({"val_r2": self.val_r2, "val_mae": self.val_mae})

    def on_validation_epoch_end(self) -> None:
        self.log("val_sum", self.hidden["sum"].compute())
        self.hidden["sum"].reset()


def test_metric_objects(tmp_path: Path) -> None:
    _compare(Metrics, tmp_path / "train", ["train_mae", "train_rmse"])
    _, trainer, _, _ = _compare(Metrics, tmp_path / "val", ["val_r2", "val_mae", "val_sum"], split="val")
    assert trainer.metrics["val"]["val_r2"].higher_is_better
    assert not trainer.metrics["val"]["val_mae"].higher_is_better


def test_metric_objects_cover_one_clients_samples_only(tmp_path: Path, three_clients: Clients) -> None:
    module = make(Metrics)
    trainer = fitted(tmp_path, module, three_clients, max_rounds=1)
    for client in range(3):
        x, y = samples(client, 5, "val").tensors
        mae = float((module.net(x) - y).abs().mean())
        assert trainer.metrics["val"]["val_mae"].clients[client] == pytest.approx(mae, rel=1e-5)
        assert trainer.metrics["val"]["val_sum"].clients[client] == pytest.approx(float(y.sum()), rel=1e-5)
    values = [trainer.metrics["val"]["val_mae"].clients[client] for client in range(3)]
    assert trainer.metrics["val"]["val_mae"].mean == pytest.approx(sum(values) / 3)
    assert trainer.metrics["val"]["val_mae"].worst == max(values)


class MadeInSetup(Linear):
    """A metric that every run makes anew."""

    def setup(self, stage: str) -> None:
        self.mae = MeanAbsoluteError()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.mae(self.net(batch[0]), batch[1])
        self.log("mae", self.mae)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.test_step(batch, batch_idx)


def test_metric_objects_made_in_setup(tmp_path: Path) -> None:
    own, trainer, reference, theirs = train_both(MadeInSetup, tmp_path, epochs=1)
    data = Clients()
    tested = trainer.test(own, data)["mae"].mean
    assert tested == pytest.approx(theirs.test(reference, OneClient(data), verbose=False)[0]["mae"], rel=1e-5)


class Classifier(Linear):
    """Collections whose metrics share their states (compute groups), counters as well as lists."""

    def __init__(self) -> None:
        super().__init__()
        counters: dict[str, Metric] = {"accuracy": BinaryAccuracy(), "f1": BinaryF1Score()}
        lists: dict[str, Metric] = {"auroc": BinaryAUROC(), "ap": BinaryAveragePrecision()}
        self.counters = MetricCollection(counters, prefix="val/")
        self.curves = MetricCollection(lists, prefix="val/")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        score = torch.sigmoid(self.net(x))
        self.counters.update(score, (y > 0).long())
        self.curves.update(score, (y > 0).long())
        self.log_dict(self.counters)
        self.log_dict(self.curves, on_step=False, on_epoch=True)


class ClassifierByForward(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        score = torch.sigmoid(self.net(x))
        self.log_dict(self.counters(score, (y > 0).long()), batch_size=len(x))
        self.curves(score, (y > 0).long())

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.curves.compute())
        self.curves.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No positive samples", "ignore:No negative samples")
@pytest.mark.parametrize("module", [Classifier, ClassifierByForward])
def test_metric_collections(module: type[Classifier], tmp_path: Path) -> None:
    _compare(module, tmp_path, ["val/accuracy", "val/f1", "val/auroc", "val/ap"], split="val")


@pytest.mark.filterwarnings("ignore:No positive samples", "ignore:No negative samples")
def test_metric_collections_cover_one_clients_samples_only(tmp_path: Path, three_clients: Clients) -> None:
    module = make(Classifier)
    trainer = fitted(tmp_path, module, three_clients, max_rounds=2)
    for client in range(3):
        x, y = samples(client, 5, "val").tensors
        score, label = torch.sigmoid(module.net(x)), (y > 0).long()
        for name, metric in (
            ("accuracy", BinaryAccuracy()),
            ("auroc", BinaryAUROC()),
            ("ap", BinaryAveragePrecision()),
        ):
            expected = float(metric(score, label))
            assert trainer.metrics["val"][f"val/{name}"].clients[client] == pytest.approx(expected, nan_ok=True), name


# -- from where -----------------------------------------------------------------------------------------------------

_TRAINING_HOOKS = [
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
]
_EVALUATION_HOOKS = ["start", "epoch_start", "batch_start", "batch_end", "epoch_end"]


@pytest.mark.parametrize("hook", _TRAINING_HOOKS)
def test_training_hooks_that_log(hook: str, tmp_path: Path) -> None:
    """The values of two epochs, of 4 batches each: what is logged in the second is left."""
    epochs = 1 if hook == "on_train_start" else 2
    _, trainer, _, theirs = train_both(logs_from(hook), tmp_path, epochs=epochs, data=Clients((16,)))
    assert trainer.metrics["train"][hook].mean == pytest.approx(float(theirs.callback_metrics[hook]))


def test_an_epoch_ends_with_values_of_no_batch(tmp_path: Path) -> None:
    """Of batches of texts nobody knows how many samples they are."""

    class Reads(Linear):
        def loss(self, batch: Any) -> Tensor:
            return self.net(torch.tensor([[float(len(text))] * 3 for text in batch])).square().mean()

        def on_train_epoch_end(self) -> None:
            self.log("end", 3.0)

    texts = Clients(data=lambda client, split: [["a", "bb"], ["ccc", "d"]])
    _, trainer, _, _ = _compare(Reads, tmp_path, ["end"], data=texts)
    assert trainer.metrics["train"]["end"].mean == 3.0


def test_overridden_steps_that_log(tmp_path: Path) -> None:
    class Logs(Linear):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            self.log("optimizer_step", float(batch_idx), on_step=False, on_epoch=True)
            optimizer.step(closure=optimizer_closure)

        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            self.log("optimizer_zero_grad", float(batch_idx), on_step=False, on_epoch=True)
            optimizer.zero_grad()

        def configure_gradient_clipping(self, optimizer: Any, **_: Any) -> None:
            norm = self.net.weight.grad.norm()
            self.log("configure_gradient_clipping", norm, on_step=False, on_epoch=True)

        def backward(self, loss: Tensor) -> None:  # type: ignore[override]
            self.log("backward", loss, on_step=False, on_epoch=True)
            loss.backward()

    names = ["optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "backward"]
    own, _, reference, _ = _compare(Logs, tmp_path, names, data=Clients((16,)))
    assert_same_weights(own, reference)


@pytest.mark.parametrize("moment", _EVALUATION_HOOKS)
@pytest.mark.parametrize("word", ["validation", "test"])
def test_evaluation_hooks_that_log(word: str, moment: str, tmp_path: Path) -> None:
    hook = f"on_{word}_{moment}"
    module, data = logs_from(hook, linear(**{f"{word}_step": lambda *_: None})), Clients((8,))
    split = "val" if word == "validation" else "test"
    trainer = federated_trainer(tmp_path)
    got = (trainer.validate if split == "val" else trainer.test)(module(), data)[hook].clients[0]
    theirs = lightning_trainer(tmp_path)
    method = theirs.validate if split == "val" else theirs.test
    assert got == pytest.approx(method(module(), loader(0, 5, split), verbose=False)[0][hook])


def test_what_on_train_start_logs_belongs_to_the_first_round_of_every_client(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, logs_from("on_train_start")(), Clients((4, 4)), max_rounds=2, logger=True)
    table = pd.read_csv(Path(trainer.log_dir) / "metrics.csv").set_index("step")
    assert table["on_train_start/client_1"].to_dict()[1] == 1.0
    assert math.isnan(table["on_train_start/client_1"].to_dict()[2])


def test_a_step_that_logs_its_loss_under_the_default_name_keeps_it(tmp_path: Path) -> None:
    trainer = _trained(lambda self: self.log("train/loss", 42.0), tmp_path, Clients((4,)))
    assert trainer.metrics["train"]["train/loss"].mean == 42.0
    assert set(trainer.metrics["train"]) == {"train/loss"}


def test_means_over_clients_are_unweighted_and_the_worst_is_named(tmp_path: Path, three_clients: Clients) -> None:
    def act(self: Any) -> None:
        values = {"client/loss": float(self.trainer.client), "client/accuracy": float(self.trainer.client)}
        self.log_dict(values, on_epoch=True)

    trainer = _trained(act, tmp_path, three_clients)
    loss, accuracy = trainer.metrics["train"]["client/loss"], trainer.metrics["train"]["client/accuracy"]
    assert (loss.mean, loss.worst, loss.clients) == (1.0, 2.0, {0: 0.0, 1: 1.0, 2: 2.0})
    assert accuracy.worst == 0.0


# -- what a module reads back ---------------------------------------------------------------------------------------


class Reads(Linear):
    """Reads values back where modules do so: at the end of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.mae = MeanAbsoluteError()
        self.read: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.read.append(float(self.trainer.callback_metrics["train_loss"]))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.mae.update(self.net(batch[0]), batch[1])
        self.log("val_mae", self.mae)
        self.log("val_loss", self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        self.read += [float(self.trainer.callback_metrics[name]) for name in ("val_mae", "val_loss")]


def test_callback_metrics_within_an_epoch(tmp_path: Path) -> None:
    own, trainer, reference, _ = train_both(Reads, tmp_path)
    assert sorted(own.read) == pytest.approx(sorted(reference.read), rel=1e-5)  # validation comes after, not within
    assert trainer.metrics["val"]["val_mae"].mean == pytest.approx(own.read[-2], rel=1e-6)


def test_metrics_between_turns_are_means_over_clients(tmp_path: Path, three_clients: Clients) -> None:
    seen: list[dict[str, float]] = []

    class Looks(Reads):
        def on_validation_start(self) -> None:
            seen.append({name: float(value) for name, value in self.trainer.callback_metrics.items()})

        def on_train_end(self) -> None:
            trainer = self.trainer
            seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})
            assert trainer.logged_metrics.keys() == {"train_loss", "train/loss", "val_mae", "val_loss"}
            assert trainer.progress_bar_metrics == {}

    trainer = fitted(tmp_path, make(Looks), three_clients, max_rounds=1)
    assert seen[0] == pytest.approx({name: m.mean for name, m in trainer.metrics["train"].items()}, rel=1e-6)
    both = trainer.metrics["train"] | trainer.metrics["val"]
    assert seen[1] == pytest.approx({name: metric.mean for name, metric in both.items()}, rel=1e-6)


class Names(Linear):
    """Notes what the trainer shows of values that are logged on steps, on epochs, or on both."""

    def __init__(self, on_step: bool, on_epoch: bool) -> None:
        super().__init__()
        self.logs: dict[str, Any] = {"on_step": on_step, "on_epoch": on_epoch, "prog_bar": True}
        self.mae, self.seen = MeanAbsoluteError(), {"train": [], "val": []}  # type: ignore[var-annotated]

    def look(self, split: str, *own: str) -> None:
        """The names that this split logs: Lightning validates earlier, and no trainer forgets the other split's."""
        shown = (self.trainer.callback_metrics, self.trainer.logged_metrics, self.trainer.progress_bar_metrics)
        self.seen[split].append([{n: float(v) for n, v in m.items() if n.startswith(own)} for m in shown])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.mae(self.net(batch[0]), batch[1])
        self.log("loss", loss, **self.logs)
        self.log("mae", self.mae, **self.logs)
        self.look("train", "loss", "mae")
        return loss

    def on_train_epoch_end(self) -> None:
        self.look("train", "loss", "mae")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch), **self.logs)

    def on_validation_epoch_end(self) -> None:
        self.look("val", "val")


@pytest.mark.parametrize(("on_step", "on_epoch"), [(True, True), (True, False), (False, True)])
def test_names_of_steps_and_epochs(on_step: bool, on_epoch: bool, tmp_path: Path) -> None:
    own, trainer, reference, theirs = train_both(lambda: Names(on_step, on_epoch), tmp_path, epochs=2)
    assert len(own.seen["train"]) == 8
    kept = ("train", "val") if on_epoch else ("train",)  # of the last batch alone, a round keeps the mean
    for split in kept:
        for found, expected in zip(own.seen[split], reference.seen[split], strict=True):
            assert found == [pytest.approx(shown, rel=1e-6) for shown in expected]
    assert trainer.metrics["train"].keys() == {"loss", "mae", "train/loss"}  # one curve each
    if on_epoch:
        means = trainer.loop.module_trainer.callback_metrics
        expected = {name: float(value) for name, value in theirs.callback_metrics.items()}
        assert {name: float(means[name]) for name in expected} == pytest.approx(expected, rel=1e-6)


def test_between_turns_names_are_means_over_clients(tmp_path: Path, three_clients: Clients) -> None:
    module = make(lambda: Names(True, True))
    trainer = fitted(tmp_path, module, three_clients, max_rounds=1)
    shown = trainer.loop.module_trainer.callback_metrics
    turns = [of for of, _, _ in module.seen["train"] if "loss_epoch" in of]  # type: ignore[attr-defined]
    for name in ("loss", "loss_epoch", "loss_step", "mae_epoch", "mae_step"):
        assert float(shown[name]) == pytest.approx(sum(of[name] for of in turns) / 3), name
    assert float(shown["val_epoch"]) == float(shown["val"]) == pytest.approx(trainer.metrics["val"]["val"].mean)
    assert "val_step" not in shown


@pytest.mark.parametrize("monitor", ["val_epoch", "val_epoch/worst"])
def test_the_best_round_goes_by_lightnings_name(monitor: str, tmp_path: Path) -> None:
    folders = []
    for name in (monitor, monitor.replace("_epoch", "")):
        checkpoint = ModelCheckpoint(monitor=name)
        federated_trainer(tmp_path, max_rounds=2, enable_checkpointing=True, callbacks=[checkpoint]).fit(
            make(lambda: Names(True, True)), Clients((8, 4))
        )
        folders.append((checkpoint.best_round, checkpoint.best_value))
    assert folders[0] == folders[1]
    assert folders[0][0] is not None


def test_names_are_known_after_a_resumed_run(tmp_path: Path) -> None:
    """A scheduler that goes by ``NAME_epoch`` goes on where it was."""

    class Halves(Names):
        def __init__(self) -> None:
            super().__init__(True, True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "monitor": "loss_epoch"}}

    (whole, _, resumed), _ = fit_whole_and_resumed(Halves, tmp_path, Clients((8, 4)))
    assert_same_weights(resumed, whole, moved=False)


# -- the logger itself ----------------------------------------------------------------------------------------------


def test_the_loggers_experiment(tmp_path: Path) -> None:
    def act(self: Any) -> None:
        self.logger.experiment.add_scalar("mine", 7.0, self.global_step)
        self.logger.log_metrics({"mine_too": 1.0}, step=self.global_step)
        assert len(self.loggers) == 2

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = _trained(act, tmp_path, Clients((12,)), logger=True)
    events = EventAccumulator(trainer.log_dir)
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("mine")] == [(0, 7.0), (1, 7.0), (2, 7.0)]


def test_self_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prints = linear(on_train_epoch_end=lambda self: self.print("round", self.current_epoch, end="!\n"))
    federated_trainer(tmp_path, max_rounds=2).fit(prints(), Clients((4,)))
    assert "round 0!\nround 1!\n" in capsys.readouterr().out


def test_a_logged_metric_that_is_missing_for_a_client_leaves_it_out(tmp_path: Path) -> None:
    trainer = _trained(
        lambda self: self.log("rare", 3.0) if self.trainer.client == 1 else None, tmp_path, Clients((4, 4))
    )
    assert trainer.metrics["train"]["rare"].clients == {1: 3.0}
