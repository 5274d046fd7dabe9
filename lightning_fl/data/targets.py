"""Find the targets of a data set (for partitions by label) and of a batch (for mixup and label noise)."""

import copy
from collections.abc import MutableMapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from lightning_fl.core.errors import DataError
from lightning_fl.data.graphs import is_graph, is_graph_dataset

#: Keys of the targets in a mapping.
TARGET_KEYS = ("y", "label", "labels", "target", "targets")

Batch = TypeVar("Batch")


def dataset_targets(dataset: Dataset | Sequence[Any]) -> Tensor:
    """The targets of all samples, shape [n] or [n, T], without loading samples that are not in memory.

    They are an attribute ``targets`` (a tensor, list or array), the last tensor of a ``TensorDataset``, ``y`` of a PyG
    ``InMemoryDataset``, or in each sample of a list (:func:`batch_targets`), also below ``Subset``, ``ConcatDataset``.
    """
    targets = _find_targets(dataset)
    if targets.ndim == 0 or len(targets) != (count := len(dataset)):  # type: ignore[arg-type]
        what = f"{type(dataset).__name__} have shape {list(targets.shape)}"
        raise DataError(f"the targets of {what} for {count} samples: there must be one entry or row for each.")
    return targets


def _find_targets(dataset: Any) -> Tensor:
    if type(dataset) is Subset:
        return dataset_targets(dataset.dataset)[torch.as_tensor(dataset.indices, dtype=torch.long)]
    if isinstance(dataset, ConcatDataset):
        return torch.cat([dataset_targets(part) for part in dataset.datasets])
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[-1]
    if (targets := getattr(dataset, "targets", None)) is not None:
        return torch.as_tensor(np.asarray(targets) if isinstance(targets, Sequence) else targets)
    if is_graph_dataset(dataset) and isinstance(targets := getattr(dataset, "y", None), Tensor):
        return targets
    if isinstance(dataset, list) and dataset:
        rows = [batch_targets(sample) for sample in dataset]
        if others := [list(row.shape) for row in rows if row.shape != rows[0].shape]:
            raise DataError(f"the samples' targets have shapes {list(rows[0].shape)} and {others[0]}: use one.")
        # A graph's y of shape [1, T] is one row; single numbers have shape [] or [1].
        return torch.cat([row if row.ndim > 1 else row.reshape(1, -1).squeeze(1) for row in rows])
    raise DataError(f"the targets of {type(dataset).__name__} cannot be found: give it an attribute `targets`.")


def batch_targets(batch: Any, key: str | int | None = None) -> Tensor:
    """The targets of a batch (or of one sample), shape [B] or [B, T].

    Args:
        batch: a tuple or list, a mapping, or a PyG ``Data`` or ``Batch``.
        key: position in a tuple (default: the last), key of a mapping (default: its one in ``TARGET_KEYS``), attribute
            of PyG data (default: ``y``).
    """
    found = batch[_target_key(batch, key)]
    if not isinstance(found, Tensor | int | float | np.ndarray | np.generic):
        raise DataError(f"the targets of a {type(batch).__name__} are a {type(found).__name__}: set `key`.")
    return torch.as_tensor(found)


def with_batch_targets(batch: Batch, new: Tensor, key: str | int | None = None) -> Batch:
    """A copy of a batch with other targets; everything else is shared with the input. See :func:`batch_targets`."""
    where = _target_key(batch, key)
    if isinstance(batch, tuple | list):
        items = list(batch)
        items[where] = new  # type: ignore[index]
        if isinstance(batch, list):
            return items  # type: ignore[return-value]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    changed: Any = copy.copy(batch)
    changed[where] = new
    return changed


def _target_key(batch: Any, key: str | int | None) -> str | int:
    kind = type(batch).__name__
    if isinstance(batch, tuple | list):
        if key is None and len(batch) < 2:
            raise DataError(f"a {kind} of {len(batch)} entries has no targets: give pairs, or the `key`.")
        position = -1 if key is None else key
        if not isinstance(position, int) or not -len(batch) <= position < len(batch):
            raise DataError(f"key={key!r} for a {kind} of {len(batch)} entries: must be from 0 to {len(batch) - 1}.")
        return position
    names: list[Any]
    wanted: list[str | int]
    if is_graph(batch):
        names, wanted = list(batch.keys()), ["y" if key is None else key]
    elif isinstance(batch, MutableMapping):
        names, wanted = list(batch), list(TARGET_KEYS) if key is None else [key]
    else:
        raise DataError(f"the targets of a {kind} cannot be found: give a tuple, list, dict or PyG data with `y`.")
    found = [name for name in wanted if name in names]
    if len(found) != 1:
        problem = "has several of" if found else "has none of"
        raise DataError(f"a {kind} with the entries {names} {problem} {wanted}: give the right one with `key`.")
    return found[0]
