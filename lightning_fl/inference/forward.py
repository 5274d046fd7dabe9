"""Predictions of one model for chunks of new samples, and their conversion to table columns."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, TypeAlias

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.validation import Count, checked
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.data.unlabelled import Unlabelled
from lightning_fl.engine.batches.factory import pack_dataset
from lightning_fl.engine.batches.transfer import BatchTransfer
from lightning_fl.engine.turn.services import takes_batch_index
from lightning_fl.recipe.predictions import check_count, join_outputs, numbered_columns

#: Outputs for k samples: name -> values [k, ...] on the CPU; "" is the name of a single tensor.
Outputs: TypeAlias = dict[str, Tensor]

#: Maximum number of units (atoms) of a batch, divided by ``batch_size``.
_UNITS = 64


def cut_batches(count: int, batch_size: int, sizes: Sequence[int] | None = None) -> list[int]:
    """Numbers of samples in consecutive batches, positive with sum ``count``.

    ``sizes`` are units (atoms) of each sample; a batch has at most ``64 * batch_size`` units or a single sample.
    """
    most, batches, units = _UNITS * batch_size, [0], 0
    for size in [0] * count if sizes is None else sizes:
        if batches[-1] and (batches[-1] == batch_size or units + size > most):
            batches.append(0)
            units = 0
        batches[-1] += 1
        units += size
    return [number for number in batches if number]


class Predictor:
    """One model, moved to its device; a module without ``predict_step`` and ``forward`` is a ConfigurationError.

    ``data`` is the run's data module, with its batch hooks; ``precision`` is Fabric's, such as "32-true".
    ``batch_size`` is a maximum, by default that of the run's evaluations.
    """

    @checked
    def __init__(
        self,
        module: LightningModule,
        data: FederatedDataModule,
        *,
        accelerator: str = "auto",
        precision: Any = None,
        batch_size: Count | None = None,
    ) -> None:
        if not is_overridden("predict_step", module) and not is_overridden("forward", module):
            raise ConfigurationError(f"{type(module).__name__} must define predict_step or forward for predictions.")
        self.batch_size = batch_size or data.loader_options("test")["batch_size"]
        self._takes_index = takes_batch_index(module, "predict_step")
        fabric = Fabric(accelerator=accelerator, devices=1, precision=precision)
        self.device = fabric.device
        self.module = module
        self._transfer = BatchTransfer(module, data, fabric.device, fabric.strategy.precision)
        self._callable = fabric.setup_module(module)
        self._callable.mark_forward_method("predict_step")
        self._callable.eval()

    def __call__(self, chunk: Unlabelled) -> Outputs:
        """Outputs for the k samples of a chunk, k >= 1: tensors with one row per sample."""
        with torch.inference_mode():
            outputs = join_outputs(map(self._predict, count(), self._batches(chunk)))
        check_count(outputs, len(chunk.kept))
        return outputs

    def _predict(self, number: int, batch: Any) -> Any:
        batch = self._transfer(batch, False, 0)
        return self._callable.predict_step(*((batch, number) if self._takes_index else (batch,)))

    def _batches(self, chunk: Unlabelled) -> Iterator[Any]:
        if isinstance(chunk.data, DataLoader):
            yield from chunk.data
            return
        sizes = cut_batches(len(chunk.kept), self.batch_size, chunk.sizes)
        pack = pack_dataset(chunk.data)
        for places in torch.arange(len(chunk.kept)).split(sizes):
            if pack is not None:
                yield pack.gather(places, [len(places)])[0]
            else:
                yield default_collate([chunk.data[place] for place in places.tolist()])


@dataclass(frozen=True)
class Naming:
    """Names of T targets, and of the classes of a single target (may be empty)."""

    targets: tuple[str, ...]
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Naming":
        """Names in the record of a run's data."""
        classes = record.get("classes")
        targets = record.get("target_names")
        if isinstance(targets, list) and targets:
            return cls(tuple(map(str, targets)))
        target = None if record.get("event") else record.get("target")  # of survival, hazards are predicted, not times
        names = tuple(map(str, classes)) if isinstance(classes, list) else ()
        return cls((str(target) if isinstance(target, str) else ("label" if names else "prediction"),), names)


def model_columns(outputs: Outputs, naming: Naming) -> dict[str, np.ndarray]:
    """Convert one model's outputs for k samples to columns of k values.

    ====================================  =======================================================================
    output                                columns
    ====================================  =======================================================================
    [k, T], T targets                     ``TARGET`` for each: values in the data's units, or probabilities
    [k, C], one target with C classes     ``TARGET``, the likeliest class's name, and ``TARGET=CLASS`` for each
    [k, T, C]                             the same for each target, classes as numbers from 0
    [k] of whole numbers, C classes       ``TARGET``, the class's name
    any other                             ``prediction``, or ``prediction_0``, ``prediction_1``, ...
    a dict of tensors                     as above with ``_KEY`` added, ``KEY`` for any other
    ====================================  =======================================================================
    """
    columns: dict[str, np.ndarray] = {}
    for key, values in outputs.items():
        columns |= _columns(values, naming, key)
    return columns


def mean_outputs(outputs: Sequence[Outputs]) -> Outputs:
    """Mean over models, entry by entry; integer outputs are left out."""
    return {
        name: torch.stack([of_model[name].double() for of_model in outputs]).mean(dim=0).to(values.dtype)
        for name, values in outputs[0].items()
        if values.is_floating_point() and all(of_model[name].shape == values.shape for of_model in outputs)
    }


def free_name(name: str, taken: Collection[str]) -> str:
    """The first unused name of NAME, ``NAME_predicted``, ``NAME_predicted_2``, ..."""
    names = chain([name, f"{name}_predicted"], (f"{name}_predicted_{number}" for number in count(2)))
    return next(one for one in names if one not in taken)


def _columns(values: Tensor, naming: Naming, key: str) -> dict[str, np.ndarray]:
    targets, classes = naming.targets, naming.classes
    end = f"_{key}" if key else ""
    if values.ndim == 1 and classes and not values.is_floating_point():
        if bool(((values >= 0) & (values < len(classes))).all()):
            return {f"{targets[0]}{end}": np.asarray(classes, dtype=object)[values.numpy()]}
    elif values.ndim == 2 and len(targets) == 1 and len(classes) == values.shape[1] > 1:
        return _class_columns(values, f"{targets[0]}{end}", classes)
    elif values.ndim == 3 and values.shape[1] == len(targets):
        numbers = [str(number) for number in range(values.shape[2])]
        return {
            name: column
            for place, target in enumerate(targets)
            for name, column in _class_columns(values[:, place], f"{target}{end}", numbers).items()
        }
    wide = values.reshape(len(values), -1)
    if wide.shape[1] == len(targets) and not classes:
        return {f"{target}{end}": wide[:, place].numpy() for place, target in enumerate(targets)}
    return numbered_columns(key or "prediction", wide)


def _class_columns(values: Tensor, target: str, classes: Sequence[str]) -> dict[str, np.ndarray]:
    label = np.asarray(classes, dtype=object)[values.argmax(dim=1).numpy()]
    return {target: label} | {f"{target}={name}": values[:, place].numpy() for place, name in enumerate(classes)}
