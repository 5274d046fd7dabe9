"""Division of a batch into parts of nearly equal size."""

import sys
from itertools import pairwise
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.batches.client import SizedBatch, guess_batch_size

__all__ = ["parts_of"]


def parts_of(batch: Any, size: int | None, count: int, smallest: int, who: str) -> list[SizedBatch]:
    """Divide a batch into consecutive parts; the first ones get the remaining samples.

    Args:
        batch: tensors with a row for each sample, also in lists, tuples, dicts and data classes, or PyG's ``Batch``.
            Anything else, such as a tensor of another length, is copied to every part.
        smallest: least number of samples per part; a smaller batch gives no parts.
    """
    samples = guess_batch_size(batch) if size is None else size
    if samples < count * smallest:
        return []
    bounds = [0, *[int(part[-1]) + 1 for part in torch.arange(samples).tensor_split(count)]]
    kinds: tuple[type, ...] = (Tensor,)
    if "torch_geometric.data" in sys.modules:  # else no batch is PyG's
        kinds += (sys.modules["torch_geometric.data"].Batch,)
    divided = False

    def cut(value: Any, begin: int, end: int) -> Any:
        nonlocal divided
        graphs = not isinstance(value, Tensor)
        if (value.num_graphs if graphs else len(value) if value.ndim else 0) != samples:
            return value
        divided = True
        return type(value).from_data_list(value[torch.arange(begin, end)]) if graphs else value[begin:end]

    parts: list[SizedBatch] = [
        (apply_to_collection(batch, kinds, cut, begin, end), end - begin) for begin, end in pairwise(bounds)
    ]
    if not divided:
        raise ConfigurationError(
            f"{who} divides every batch in {count} parts, and this {type(batch).__name__} has no tensor with one row"
            f" for each of its {samples} samples: use tensors, lists or dicts of tensors, or PyG's Batch."
        )
    return parts
