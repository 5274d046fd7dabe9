"""Conversion of models' outputs to table columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_fl.inference.forward import Outputs
from lightning_fl.recipe.predictions import numbered_columns

__all__ = ["Naming", "free_name", "mean_outputs", "model_columns"]


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
        target = record.get("target")
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
