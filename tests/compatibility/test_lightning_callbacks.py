"""Callbacks of Lightning's in ``trainer.callbacks``: what they do is what they do under Lightning's Trainer."""

import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from early_stopping_run import run
from hooks import StopAfter, hooks
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler, LambdaCallback, Timer
from lightning.pytorch.loggers import TensorBoardLogger
from processes import SUPPORT, Process, succeed_as_two_ranks
from reference import (
    Clients,
    Validated,
    assert_same_weights,
    federated_trainer,
    fitted,
    leave_out,
    linear,
    make,
    train_both,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from lightning_fl import FederatedTrainer
from lightning_fl.core.errors import ConfigurationError


class Logs(Validated):
    """Logs its loss in training and validation; the rate is halved every second epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


def _both(
    make_callback: Callable[[], Any],
    folder: Path,
    *,
    module: Any = Logs,
    own: dict[str, Any] | None = None,
    theirs: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, Any, Any, Any]:
    """The callback of the federated run and that of Lightning's, with both trainers; weights are equal."""
    mine, their = make_callback(), make_callback()
    given = {"federated": {"callbacks": [mine], **(own or {})}, "lightning": {"callbacks": their, **(theirs or {})}}
    trained, trainer, reference, lightning = train_both(module, folder, **given, **options)
    assert_same_weights(trained, reference, atol=2**-46, moved=False)
    return mine, their, trainer, lightning


STOPS: dict[str, Callable[[], Any]] = {
    "patience": lambda: EarlyStopping("val_loss", min_delta=0.3, patience=2),
    "training metric": lambda: EarlyStopping("train_loss", min_delta=0.5, patience=1),
    "threshold": lambda: EarlyStopping("val_loss", stopping_threshold=0.3),
    "never": lambda: EarlyStopping("val_loss", patience=50),
    "not there": lambda: EarlyStopping("nothing", strict=False),
    "no time": lambda: Timer(timedelta(seconds=0)),
    "time": lambda: Timer(timedelta(days=1)),
}


def assert_same_state(own: EarlyStopping, their: EarlyStopping) -> None:
    """Equal states, except for the last bit of the best score: Lightning adds a mean in single precision."""
    found, expected = own.state_dict(), their.state_dict()
    torch.testing.assert_close(found.pop("best_score"), expected.pop("best_score"), rtol=3e-7, atol=0.0)
    for state in (found, expected):
        state["stopping_reason_message"] = (state["stopping_reason_message"] or "").partition("=")[0]
    assert found == expected


@pytest.mark.parametrize(
    ("name", "every"), [*((name, 1) for name in STOPS), *((name, 2) for name in STOPS if name != "training metric")]
)
def test_a_run_stops_where_lightnings_does(name: str, every: int, tmp_path: Path) -> None:
    settings = {"own": {"check_val_every_n_rounds": every}, "theirs": {"check_val_every_n_epoch": every}}
    own, their, trainer, theirs = _both(STOPS[name], tmp_path, epochs=8, **settings)
    assert trainer.current_round == theirs.current_epoch
    assert trainer.should_stop == theirs.should_stop
    if isinstance(own, EarlyStopping):
        assert_same_state(own, their)


def test_a_run_without_validation_stops_by_a_training_metric(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"own": {"check_val_every_n_rounds": 0}, "theirs": {"limit_val_batches": 0}}
    own, their, trainer, theirs = _both(STOPS["training metric"], tmp_path, epochs=8, **settings)
    assert trainer.current_round == theirs.current_epoch < 8
    assert_same_state(own, their)


@pytest.mark.parametrize("kind", [EarlyStopping, pytorch_lightning.callbacks.EarlyStopping])
def test_callbacks_of_the_module_stop_the_run_too(kind: Any, tmp_path: Path) -> None:
    """One of the class that the trainer has replaces it, as in Lightning."""
    early = kind("val_loss", stopping_threshold=1000.0)
    module = make(linear("Brings", Logs, configure_callbacks=lambda self: early))
    trainer = fitted(tmp_path, module, Clients((4, 8)), max_rounds=8, callbacks=[kind("val_loss", patience=50)])
    assert trainer.current_round == 1
    assert module.trainer.callbacks[len(trainer.callbacks) :] == [early]


def test_a_monitor_that_is_not_logged_is_refused_after_the_first_round(tmp_path: Path) -> None:
    trainer = federated_trainer(tmp_path, max_rounds=3, callbacks=EarlyStopping("val_los"))
    with pytest.raises(ConfigurationError, match=r"EarlyStopping: .*`val_los`.*`val_loss`"):
        trainer.fit(make(Logs), Clients())
    assert trainer.current_round == 1


def test_a_resumed_run_stops_in_the_same_round(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    run(tmp_path / "cut", last=whole["rounds"] - 1)
    assert run(tmp_path / "cut", ckpt_path="last") == whole
    with pytest.warns(UserWarning, match=r"nothing is left to train: EarlyStopping ended this run"):
        assert run(tmp_path / "whole", ckpt_path="last") == whole
    assert whole["stopped"]
    assert 3 < whole["rounds"] < 30


@pytest.mark.parametrize("patience", [2, 5])
def test_a_resumed_run_has_the_patience_that_it_is_given(patience: int, tmp_path: Path) -> None:
    """Nothing after the first round is good enough; that run ends after as many more."""
    for given, more, path in ((3, [StopAfter(2)], None), (patience, [], "last")):
        stopping = EarlyStopping("val_loss", min_delta=1000.0, patience=given)
        trainer = federated_trainer(tmp_path, max_rounds=9, callbacks=[stopping, *more], enable_checkpointing=True)
        trainer.fit(make(Logs), Clients((4, 8)), ckpt_path=path)
    assert (trainer.current_round, stopping.patience, stopping.wait_count) == (1 + patience, patience, patience)


@pytest.mark.slow
@pytest.mark.processes
def test_processes_stop_together(tmp_path: Path, start_warm: Callable[..., Process]) -> None:
    succeed_as_two_ranks(start_warm, SUPPORT / "early_stopping_run.py", tmp_path)
    one, other = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
    assert one == other
    assert one[0] == one[2] == run(tmp_path / "one")
    assert one[1]["rounds"] == 3


def test_the_timer_continues_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time", SimpleNamespace(monotonic=lambda: now[0]))

    def work(*_: Any) -> None:
        now[0] += 10

    for seconds, more, path in ((1000, [StopAfter(2)], None), (15, [], "last")):
        timer = Timer(timedelta(seconds=seconds))
        given = [timer, hooks(on_client_end=work), *more]
        trainer = federated_trainer(tmp_path, max_rounds=4, callbacks=given, enable_checkpointing=True)
        trainer.fit(make(Logs), Clients(), ckpt_path=path)
        assert (trainer.current_round, timer.time_elapsed()) == (2, 20)


def _scalars(folder: Path, tag: str) -> list[float]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [one.value for one in events.Scalars(tag)]


def test_the_learning_rate_reaches_tensorboard(tmp_path: Path) -> None:
    """Every epoch's rate; of several clients the mean, in rounds without some of them too."""
    monitor, _, trainer, theirs = _both(
        partial(lightning_callbacks.LearningRateMonitor, logging_interval="epoch"),
        tmp_path,
        epochs=4,
        own={"logger": True},
        theirs={"logger": TensorBoardLogger(tmp_path, name="lightning")},
    )
    rates = _scalars(Path(trainer.log_dir), "lr-SGD")
    assert rates == _scalars(Path(theirs.log_dir), "lr-SGD") == pytest.approx([0.05, 0.05, 0.025, 0.025])
    assert monitor.lrs == {"lr-SGD": pytest.approx(rates)}
    given = [lightning_callbacks.LearningRateMonitor(), lightning_callbacks.DeviceStatsMonitor(), leave_out([[0], [1]])]
    trainer = federated_trainer(tmp_path, max_rounds=2, logger=True, callbacks=given, log_every_n_steps=1)
    trainer.fit(make(Logs), Clients((4, 8)))
    assert _scalars(Path(trainer.log_dir), "lr-SGD/client_1") == pytest.approx([0.05])
    assert _scalars(Path(trainer.log_dir), "DeviceStatsMonitor.on_train_batch_start/cpu_vm_percent")[0] > 0


def test_accumulation_by_epoch(tmp_path: Path) -> None:
    _, _, trainer, theirs = _both(lambda: GradientAccumulationScheduler({1: 2, 3: 3}), tmp_path, epochs=4)
    assert trainer.client_states[0].global_step == theirs.global_step == 3 + 2 + 2 + 1
    assert trainer.global_step == theirs.global_step
    with pytest.raises(ConfigurationError, match="GradientAccumulationScheduler"):
        _both(lambda: GradientAccumulationScheduler({1: 2}), tmp_path, own={"accumulate_grad_batches": 2})


def test_hooks_of_the_run_see_the_metrics_of_all_clients_once(tmp_path: Path) -> None:
    seen: list[Any] = []

    def note(hook: str) -> Callable[..., None]:
        def noted(trainer: Any, module: Any, *_: Any) -> None:
            value = trainer.callback_metrics.get("val_loss")
            seen.append((hook, trainer.current_epoch, trainer.global_step, None if value is None else float(value)))

        return noted

    hooks = ("setup", "on_fit_start", "on_train_start", "on_validation_end", "on_train_end", "on_fit_end", "teardown")
    watching = LambdaCallback(**{hook: note(hook) for hook in hooks})
    trainer = fitted(tmp_path, make(Logs), Clients((4, 8, 4)), max_rounds=2, callbacks=watching)
    last = trainer.metrics["val"]["val_loss"].mean
    assert [one[0] for one in seen] == [*hooks[:4], *hooks[3:]]
    assert [one[1:3] for one in seen] == [(0, 0), (0, 0), (0, 0), (0, 2), (1, 4), (2, 4), (2, 4), (2, 4)]
    assert [one[3] for one in seen[4:]] == pytest.approx([last] * 4)


class Validations(pl.Callback):
    """Counts validations of all clients, and ends the run after three."""

    def __init__(self) -> None:
        self.count = 0

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.count += 1
        trainer.should_stop = self.count == 3

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


def test_a_state_without_hooks_of_a_turn_is_one_of_the_run(tmp_path: Path) -> None:
    for given, path in (([Validations(), StopAfter(2)], None), ([Validations()], "last")):
        trainer = federated_trainer(tmp_path, max_rounds=8, callbacks=given, enable_checkpointing=True)
        trainer.fit(make(Logs), Clients((4, 8)), ckpt_path=path)
    assert trainer.current_round == trainer.lightning_callbacks[0].count == 3


class Counts(Validations):
    """Counts a client's batches as well, so that its state is each client's."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.count += 10
        pl_module.log("count", float(self.count), on_step=False, on_epoch=True, reduce_fx="max")


def test_a_state_with_hooks_of_a_turn_is_each_clients(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, make(Logs), Clients((4, 8)), max_rounds=2, callbacks=[Counts()])
    assert trainer.metrics["train"]["count"].clients == {0: 21.0, 1: 41.0}


def test_a_model_summary_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federated_trainer(tmp_path, max_rounds=1, callbacks=[lightning_callbacks.RichModelSummary()]).fit(
        make(Logs), Clients()
    )
    assert "Linear" in capsys.readouterr().out


REFUSED = [
    lightning_callbacks.ModelCheckpoint(),
    lightning_callbacks.OnExceptionCheckpoint("."),
    lightning_callbacks.TQDMProgressBar(),
    lightning_callbacks.ModelPruning("l1_unstructured"),
    lightning_callbacks.BatchSizeFinder(),
    lightning_callbacks.LearningRateFinder(),
    lightning_callbacks.BackboneFinetuning(),
    lightning_callbacks.ThroughputMonitor(len),
    pytorch_lightning.callbacks.ModelCheckpoint(),
    object(),
]


@pytest.mark.parametrize("callback", REFUSED, ids=lambda one: type(one).__name__)
def test_what_means_nothing_here_is_refused_by_name(callback: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"trainer.callbacks has {type(callback).__name__}"):
        FederatedTrainer(callbacks=[callback])
