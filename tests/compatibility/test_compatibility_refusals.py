"""What cannot work is refused by an error that names the hook, option or tensor at fault."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from reference import (
    Batches,
    Clients,
    Holds,
    Linear,
    OneClient,
    federated_trainer,
    linear,
    loader,
    logs_from,
    make,
    samples,
    step,
)
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, MeanSquaredError

from lightning_fl import Silos
from lightning_fl.callbacks import DROClientSampling
from lightning_fl.core.errors import ConfigurationError, DataError, TrainingError


def _row(
    make_module: Callable[[], Any],
    error: Any,
    *names: str,
    data: Callable[[], Any] = Clients,
    stage: str = "fit",
    id: str | None = None,
    marks: Any = (),
    **options: Any,
) -> Any:
    """A run of ``stage`` that raises ``error``, whose message has all ``names``."""
    return pytest.param(make_module, error, names, data, stage, options, id=id, marks=marks)


def _nothing(self: Any, *_: Any) -> None: ...


# -- what is given to the trainer -----------------------------------------------------------------------------------

GIVEN = [
    *(
        _row(Linear, ConfigurationError, f"trainer.precision='{name}'", precision=name)
        for name in ("16-mixed", "16-true", "transformer-engine", "8")
    ),
    *(
        _row(
            lambda model=model: model,
            ConfigurationError,
            f"the model is {'the class Linear' if model is Linear else f'a {type(model).__name__}'}",
        )
        for model in (nn.Linear(3, 1), Linear, None)
    ),
    _row(
        lambda: torch.compile(nn.Linear(3, 1), backend="eager"),
        ConfigurationError,
        "the model is a Linear",
        marks=pytest.mark.slow,
    ),
    *(
        _row(Linear, ConfigurationError, f"the data are a {type(data).__name__}", data=lambda data=data: data)
        for data in (OneClient(Clients()), samples(0, 4), DataLoader(samples(0, 4)))
    ),
]

# -- steps and hooks of the module ----------------------------------------------------------------------------------


def _takes_iterator(self: Any, dataloader_iter: Any) -> None: ...


def _needs_name(self: Any, batch: Any, *, temperature: float) -> Any:
    return temperature * self.loss(batch)


def _forgets_closure(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
    optimizer.step()


def _computes_in_floats(self: Any, batch: Any, batch_idx: int) -> Any:
    return nn.functional.mse_loss(self.net(batch[0].float()), batch[1])


def _updates_mse(self: Any, batch: Any, batch_idx: int) -> Any:
    self.mse.update(batch[0], 2 * batch[0])
    self.log("mse", self.mse, on_step=False, on_epoch=True)
    return self.loss(batch)


_MANUAL = linear("Manual", automatic_optimization=False)
STEPS = [
    _row(linear("Shards", configure_sharded_model=_nothing), ConfigurationError, "Shards.configure_sharded_model"),
    *(
        _row(linear("Iterates", **{name: _takes_iterator}), ConfigurationError, f"Iterates.{name}", "dataloader_iter")
        for name in ("training_step", "validation_step", "test_step", "predict_step")
    ),
    _row(linear("Needs", training_step=_needs_name), ConfigurationError, "Needs.training_step", "temperature"),
    *(
        _row(linear(training_step=lambda *_, output=output: output), TrainingError, "training_step", name)
        for output, name in ((3.0, "float"), ({"prediction": 1}, "prediction"), ({"loss": 3.0}, "float"))
    ),
    _row(linear("Forgets", optimizer_step=_forgets_closure), TrainingError, "Forgets.optimizer_step"),
    _row(
        linear(training_step=_computes_in_floats), TrainingError, "trainer.precision=bf16-true", precision="bf16-true"
    ),
    _row(_MANUAL, ConfigurationError, "trainer.gradient_clip_val=1.0", gradient_clip_val=1.0),
    _row(_MANUAL, ConfigurationError, "trainer.accumulate_grad_batches=2", accumulate_grad_batches=2),
    _row(
        _MANUAL,
        ConfigurationError,
        "DROClientSampling",
        "Manual",
        data=lambda: Clients((8, 8)),
        callbacks=[DROClientSampling(step_size=0.1)],
        max_rounds=2,
        local_steps=2,
    ),
]

# -- optimisers, schedulers and loaders that a hook uses ------------------------------------------------------------


def _two_optimizers(self: Any) -> Any:
    return [SGD([self.net.weight], 0.1), SGD([self.net.bias], 0.1)]


def _stray_scheduler(self: Any) -> Any:
    first, second = SGD(self.parameters(), 0.1), SGD(self.parameters(), 0.1)
    return [first], [lr_scheduler.StepLR(second, 1)]


OPTIMIZERS = [
    _row(linear(configure_optimizers=_two_optimizers), TrainingError, "multiple optimizers"),
    _row(linear(configure_optimizers=_stray_scheduler), TrainingError, "optimizer that wasn't returned"),
    _row(
        linear(on_train_start=lambda self: self.trainer.estimated_stepping_batches),
        ConfigurationError,
        "estimated_stepping_batches",
    ),
    _row(
        linear(on_train_start=lambda self: len(self.trainer.train_dataloader)),
        ConfigurationError,
        "self.trainer.train_dataloader",
    ),
    _row(
        linear(on_train_start=lambda self: self.trainer.num_training_batches),
        ConfigurationError,
        "self.trainer.num_training_batches",
    ),
    _row(linear(on_train_start=lambda self: self.optimizers()), ConfigurationError, "self.trainer.optimizers"),
]

# -- logging --------------------------------------------------------------------------------------------------------

_PREDICTS = linear("Predicts", predict_step=lambda self, batch, batch_idx: self.net(batch[0]))
LOGGING = [
    _row(
        linear(training_step=step(lambda self: self.log("loss", 1.0, reduce_fx="median"))),
        TrainingError,
        "reduce_fx='median'",
    ),
    _row(
        linear(build=lambda self: setattr(self, "mse", MeanSquaredError(num_outputs=3)), training_step=_updates_mse),
        TrainingError,
        "'mse'",
        "shape (3,)",
    ),
    *(
        _row(
            linear(
                build=lambda self: setattr(self, "known", MeanMetric()),
                training_step=step(lambda self, value=value: self.log("a", value())),
            ),
            TrainingError,
            name,
        )
        for value, name in (
            (lambda: torch.zeros(2), "single element"),
            (lambda: {"b": {"c": 1.0}}, "nested dictionaries"),
            (lambda: "text", "`str`"),
            (MeanMetric, "`LightningModule` attribute"),
        )
    ),
    *(
        _row(logs_from(hook), (MisconfigurationException, TrainingError), f"`{hook}`")
        for hook in ("on_fit_start", "on_fit_end", "on_train_end", "configure_optimizers", "setup")
    ),
    *(
        _row(logs_from(hook, _PREDICTS), MisconfigurationException, "support logging", stage="predict")
        for hook in ("predict_step", "on_predict_epoch_end")
    ),
]

# -- tensors --------------------------------------------------------------------------------------------------------


def _overlaps(part: Callable[[Any], Any]) -> type[Any]:
    def build(self: Any) -> None:
        self.net = nn.Linear(3, 4)
        self.part = nn.Parameter(part(self.net.weight.data))

    return linear("Overlaps", build=build)


def _buffer(name: str, value: torch.Tensor, **members: Any) -> type[Any]:
    return linear(build=lambda self: self.register_buffer(name, value.clone()), **members)


def _grow(self: Any, *_: Any) -> None:
    self.extra = nn.Linear(3, 1)


def _grow_once(self: Any) -> None:
    if not hasattr(self, "extra"):
        _grow(self)


def _grow_later(self: Any) -> None:
    if self.current_epoch == 1:
        _grow(self)


def _replace_later(self: Any) -> None:
    if self.current_epoch == 1:
        self.net = nn.Linear(3, 1)


_EXTRA, _NET = ("'extra.weight'", "'extra.bias'"), ("'net.weight'", "'net.bias'")
TENSORS = [
    *(
        _row(_overlaps(part), ConfigurationError, "'net.weight'", "'part'", "share", id=f"overlap-{index}")
        for index, part in enumerate((lambda w: w[1:], lambda w: w[:, 1:], lambda w: w[::2]))
    ),
    _row(_buffer("odd", torch.ones(2, dtype=torch.complex64)), ConfigurationError, "'odd'", "complex"),
    _row(_buffer("odd", torch.eye(2).to_sparse()), ConfigurationError, "'odd'", "torch.sparse_coo"),
    _row(
        _buffer(
            "queue",
            torch.zeros(2),
            on_train_epoch_end=lambda self: setattr(self, "queue", torch.cat([self.queue, torch.ones(1)])),
        ),
        TrainingError,
        "'queue'",
        id="another-shape",
    ),
    *(
        _row(
            linear(validation_step=_nothing, **{hook: act}),
            TrainingError,
            *tensors,
            f"appeared in {place}",
            data=lambda: Clients((8, 8)),
            max_rounds=2,
        )
        for hook, act, tensors, place in (
            ("training_step", step(_grow_once), _EXTRA, "the turn of client 0"),
            ("on_train_epoch_start", _grow_later, _EXTRA, "on_train_epoch_start of client 0"),
            ("on_train_epoch_start", _replace_later, _NET, "on_train_epoch_start of client 0"),
            ("on_validation_epoch_end", _grow, _EXTRA, "the validation of client 0"),
            ("on_validation_start", _grow, _EXTRA, "on_validation_start"),
            (
                "training_step",
                step(lambda self: self.register_buffer("seen", torch.ones(2))),
                ("'seen'",),
                "the turn of client 0",
            ),
        )
    ),
]

# -- loaders --------------------------------------------------------------------------------------------------------


def _two_for_validation() -> Any:
    return Silos([Holds(lambda: loader(0, 4), lambda: [loader(0, 6, "val"), loader(1, 3, "val")])])


def _silo(data: Any) -> Any:
    return Silos([data])


def _same(value: Any) -> Any:
    return value


def _validates_without_index(self: Any, batch: Any, batch_idx: int) -> None: ...


def _validates_with_index(self: Any, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
    self.log("val_loss", self.loss(batch), add_dataloader_idx=False)


LOADERS = [
    _row(
        linear(validation_step=_validates_with_index),
        (ConfigurationError, TrainingError),
        "'val_loss', add_dataloader_idx=False",
        "loaders 0 and 1",
        data=_two_for_validation,
    ),
    _row(
        linear("Lacks", validation_step=_validates_without_index),
        ConfigurationError,
        "Lacks.validation_step",
        "dataloader_idx",
        data=_two_for_validation,
    ),
    _row(
        linear("Needs", validation_step=_validates_with_index),
        ConfigurationError,
        "Needs.validation_step",
        "dataloader_idx",
        data=lambda: Silos([{"train": samples(0, 4), "val": samples(0, 4)}]),
    ),
    _row(
        Linear,
        ConfigurationError,
        "train_dataloader",
        "CombinedLoader",
        "'sequential'",
        data=lambda: Silos([Holds(lambda: CombinedLoader([loader(0, 10), loader(1, 5)], "sequential"))]),
    ),
    _row(Linear, DataError, "client 0 (client_0)", data=lambda: _silo(Batches(0, 0))),
    *(
        _row(Linear, ConfigurationError, place, type(wrong).__name__, data=partial(_silo, data))
        for wrong in (3, "data.csv", torch.zeros(3))
        for place, data in (("Holds.train_dataloader()", Holds(partial(_same, wrong))), ("client_0", wrong))
    ),
]

# -- callbacks of the module ----------------------------------------------------------------------------------------


class _KeepsPath(pl.Callback):
    def on_train_epoch_start(self, *_: Any) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"path": Path()}


BROUGHT = [
    _row(
        linear("Brings", configure_callbacks=lambda self, callback=callback: [callback]),
        ConfigurationError,
        "Brings.configure_callbacks",
        type(callback).__name__,
        instead,
    )
    for callback, instead in (
        (lightning_callbacks.BackboneFinetuning(), "add_param_group"),
        (lightning_callbacks.ModelPruning("l1_unstructured"), "prune before fit"),
        (lightning_callbacks.BatchSizeFinder(), "the batch size"),
        (lightning_callbacks.LearningRateFinder(), "the rate"),
        (torch, "not a callback"),
    )
] + [_row(linear(configure_callbacks=lambda self: _KeepsPath()), ConfigurationError, "_KeepsPath")]


@pytest.mark.parametrize(
    ("make_module", "error", "names", "data", "stage", "options"),
    [*GIVEN, *STEPS, *OPTIMIZERS, *LOGGING, *TENSORS, *LOADERS, *BROUGHT],
)
def test_refused(
    make_module: Callable[[], Any],
    error: Any,
    names: tuple[str, ...],
    data: Callable[[], Any],
    stage: str,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong configuration is refused before anything is trained."""
    trained: list[int] = []
    monkeypatch.setattr(Linear, "training_step", step(lambda self: trained.append(1)))
    with pytest.raises(error) as caught:
        getattr(federated_trainer(tmp_path, **{"max_rounds": 1} | options), stage)(make(make_module), data())
    assert [name for name in names if name not in str(caught.value)] == []
    assert not (trained and error is ConfigurationError)


def test_predictions_need_a_step_or_a_forward_pass(tmp_path: Path) -> None:
    mute = pl.LightningModule()
    with pytest.raises(ConfigurationError, match="LightningModule must define predict_step or forward"):
        federated_trainer(tmp_path, max_rounds=1).predict(mute, Clients())


@pytest.mark.parametrize("missing", ["training_step", "configure_optimizers"])
def test_a_fit_needs_a_whole_module_and_a_test_does_not(missing: str, tmp_path: Path) -> None:
    incomplete = linear("Incomplete", **{missing: getattr(pl.LightningModule, missing)})()
    with pytest.raises(ConfigurationError, match=f"Incomplete .*{missing}"):
        federated_trainer(tmp_path).fit(incomplete, Clients())
    federated_trainer(tmp_path).validate(incomplete, Clients())
