"""Callbacks of Lightning's that a module brings along in ``configure_callbacks``."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.pytorch import callbacks as lightning_callbacks
from reference import Clients, Fails, Linear, assert_same_weights, federated_trainer, fitted, linear, make, train_both
from torch import Tensor, nn

from lightning_fl.core.errors import TrainingError

_HOOKS = [name for name in vars(pl.Callback) if name.startswith("on_") and "checkpoint" not in name]
_HOOKS += ["setup", "teardown"]


def _noting(name: str) -> Any:
    def hook(self: Any, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        assert trainer is pl_module.trainer
        given = [*args, *kwargs.values()]
        kinds = ["str" if isinstance(one, str) else type(one).__name__ for one in given]
        pl_module.calls.append((f"callback {name}", trainer.current_epoch, *kinds))

    return hook


#: Notes its calls, and what it is given, in the module.
_Watcher: Any = type("_Watcher", (pl.Callback,), {name: _noting(name) for name in _HOOKS})


class Watched(Linear):
    """Its own hooks come after the callback's."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def configure_callbacks(self) -> Any:
        return _Watcher()

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    def on_train_epoch_start(self) -> None:
        self.calls.append("module on_train_epoch_start")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.calls.append("module on_before_optimizer_step")


def test_a_callback_that_watches_sees_what_it_sees_under_lightning(tmp_path: Path) -> None:
    own, _, reference, _ = train_both(Watched, tmp_path, epochs=2)

    def known(calls: list[Any]) -> list[Any]:
        """Validation, and what is counted by epochs, comes at other times: docs/lightning-support.md."""
        kept = [call for call in calls if "validation" not in call[0] and "train_epoch_end" not in call[0]]
        return [call for call in kept if call[0][9:] not in ("on_train_end", "on_fit_end", "teardown")]

    for own_call, call in zip(known(own.calls), known(reference.calls), strict=True):
        assert own_call == call
    names = {call[0] for call in own.calls}
    assert names == {call[0] for call in reference.calls}
    assert_same_weights(own, reference, atol=2**-46)


def test_a_callback_is_called_in_each_clients_turn(tmp_path: Path) -> None:
    seen = []

    class Notes(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append((trainer.client, batch_idx, sorted(outputs)))
            pl_module.log("rows", float(len(batch[0])))

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append((trainer.client, "validated"))

    class Brings(Linear):
        def configure_callbacks(self) -> Any:
            return [Notes()]

        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    trainer = fitted(tmp_path, make(Brings), Clients((4, 5)), max_rounds=1)
    assert seen == [(0, 0, ["loss"]), (1, 0, ["loss"]), (1, 1, ["loss"]), (0, "validated"), (1, "validated")]
    assert trainer.metrics["train"]["rows"].mean == pytest.approx((4 + (4 * 4 + 1) / 5) / 2, abs=0.3)


def test_lambda_callbacks_and_those_of_pytorch_lightning(tmp_path: Path) -> None:
    seen = []

    class Other(pytorch_lightning.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append(f"other {trainer.client}")

    class Brings(Linear):
        def configure_callbacks(self) -> Any:
            note = lightning_callbacks.LambdaCallback(
                on_train_epoch_start=lambda trainer, module: seen.append(f"lambda {trainer.client}")
            )
            return [note, Other()]

    federated_trainer(tmp_path, max_rounds=1).fit(make(Brings), Clients((4, 4)))
    assert seen == ["lambda 0", "other 0", "lambda 1", "other 1"]


class _Unfreezes(lightning_callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.01)


class Finetuned(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(3, 3)

    def configure_callbacks(self) -> Any:
        return _Unfreezes()

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(self.backbone(x)), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam([one for one in self.parameters() if one.requires_grad], lr=0.05)


def test_base_finetuning(tmp_path: Path) -> None:
    own, _, reference, _ = train_both(Finetuned, tmp_path, epochs=4)
    assert_same_weights(own, reference, atol=2**-46)
    assert not torch.equal(own.backbone.weight, make(Finetuned).backbone.weight)
    several = make(Finetuned)
    federated_trainer(tmp_path, max_rounds=3).fit(several, Clients((4, 8)))
    assert not torch.equal(several.backbone.weight, make(Finetuned).backbone.weight)


class _Writes(lightning_callbacks.BasePredictionWriter):
    """Would write predictions."""


def _brings(callback: Any) -> type[Any]:
    return linear("Brings", configure_callbacks=lambda self: [callback])


@pytest.mark.parametrize(
    ("callback", "instead"),
    [
        (lightning_callbacks.ModelCheckpoint(), "lightning_fl.callbacks.ModelCheckpoint"),
        (lightning_callbacks.OnExceptionCheckpoint("."), "lightning_fl.callbacks.ModelCheckpoint"),
        (pytorch_lightning.callbacks.ModelCheckpoint(), "lightning_fl.callbacks.ModelCheckpoint"),
        (lightning_callbacks.ThroughputMonitor(len), "trainer.profile"),
        (lightning_callbacks.TQDMProgressBar(), "trainer.enable_progress_bar"),
        (_Writes(), "trainer.predict"),
    ],
)
def test_what_the_run_does_in_its_own_way_is_left_out(callback: Any, instead: str, tmp_path: Path) -> None:
    own, plain = make(_brings(callback)), make(Linear)
    name = type(callback).__name__
    with pytest.warns(UserWarning, match=rf"Brings.configure_callbacks .*{name} \(.*{instead}"):
        federated_trainer(tmp_path, max_rounds=1).fit(own, Clients())
    federated_trainer(tmp_path, max_rounds=1).fit(plain, Clients())
    assert_same_weights(own, plain)


def test_a_module_that_brings_no_callbacks_trains(tmp_path: Path) -> None:
    module, plain = make(linear(configure_callbacks=lambda self: [])), make(Linear)
    for one in (module, plain):
        federated_trainer(tmp_path, max_rounds=1).fit(one, Clients())
    assert_same_weights(module, plain, moved=False)


def test_callbacks_hear_of_an_error(tmp_path: Path) -> None:
    seen = []

    class Hears(pl.Callback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            seen.append(type(exception).__name__)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            seen.append(stage)

    module = linear("Brings", Fails, configure_callbacks=lambda self: [Hears()])()
    with pytest.raises(TrainingError):
        federated_trainer(tmp_path, max_rounds=1).fit(module, Clients())
    assert seen == ["TrainingError", "fit"]
