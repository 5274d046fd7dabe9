"""Predictions of a module beside their targets."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.errors import DataError

#: Predictions [n, ...] and targets [n, ...].
Pair = tuple[Tensor, Tensor]
#: Those of clients.
Pairs = Mapping[int, Pair]


def pair_outputs(outputs: list[Any], targets: Tensor, *, classes: bool = False) -> Pair:
    """Predictions [n, T] (or [n, T, C]) and targets [n, T], float64, from targets [n, T] or [n].

    ``outputs`` are those of ``predict_step``, one per batch: [b, T] or [b]; with ``classes`` also [b, T, C], or [b, C]
    for one target. Others, not tensors shaped like the targets, are a DataError.
    """
    other = next((output for output in outputs if not isinstance(output, Tensor)), None)
    if other is not None:
        raise DataError(f"predict_step returned a {type(other).__name__}; return a tensor shaped like the targets.")
    columns = targets.flatten(1) if targets.ndim > 1 else targets.unsqueeze(1)
    rows = [output if output.ndim > 1 else output.reshape(-1, 1) for output in outputs]
    shapes = {row.shape[1:] for row in rows}
    if classes and len(shapes) == 1:
        (shape,) = shapes
        if len(shape) == 1 and columns.shape[1] == 1 and shape[0] > 1:
            rows = [row.unsqueeze(1) for row in rows]
        if rows[0].ndim == 3 and sum(map(len, rows)) == len(columns) and rows[0].shape[1] == columns.shape[1]:
            return torch.cat(rows).double(), columns.double()
    rows = [row.flatten(1) for row in rows]
    found = (sum(len(row) for row in rows), *{row.shape[1] for row in rows})
    if found != (expected := tuple(columns.shape)):
        raise DataError(f"predict_step returned shape {found}, the targets have {expected}: return one per target.")
    return torch.cat(rows).double(), columns.double()
