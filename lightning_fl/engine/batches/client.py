"""Interface of the batches of one client in one split, and the division of a batch."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import WarningCache
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError

_once = WarningCache()

#: A batch and its number of samples, if known.
SizedBatch = tuple[Any, int | None]


def guess_batch_size(batch: Any) -> int:
    """The size of a batch as Lightning finds it; 1, with a warning, if the batch has no tensor."""
    try:
        return extract_batch_size(batch)
    except MisconfigurationException:
        what = f"a batch of type {type(batch).__name__} has no tensor that gives its size and counts as one sample"
        _once.warn(f"{what}: set self.log(..., batch_size=...) in the step, and Silos(num_samples=...).")
        return 1


class ClientBatches(ABC):
    """One client's data in one split."""

    #: 0 if unknown.
    num_samples: int
    #: Number of the next pass, for ``set_epoch`` of samplers.
    next_pass: int = 0
    #: Whether batches are on the device already.
    on_device: bool = False

    @abstractmethod
    def epoch_length(self) -> int | None:
        """Batches in one pass; ``None`` if unknown."""

    @abstractmethod
    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        """One pass over all samples in their own order."""

    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
        """``num_batches`` batches in the training order, pass after pass; every draw comes from ``seed_path``."""
        raise NotImplementedError

    @property
    def loaders(self) -> "Sequence[ClientBatches]":
        """The loaders that are read one after another, each numbering its batches from 0; usually only itself."""
        return (self,)

    def share(self, loader: "ClientBatches", num_samples: int | None) -> int | None:
        """How many of ``num_samples`` samples (``None`` for all) come from one of the :attr:`loaders`."""
        return num_samples

    def some(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """Batches of ``num_samples`` samples (``None`` for all), or at least as many if samples cannot be picked."""
        given = 0
        for batch, size in self.once(seed_path):
            yield batch, size
            if num_samples is None or batch is None:  # steps do not get an empty batch
                continue
            given += guess_batch_size(batch) if size is None else size
            if given >= num_samples:
                return

    def singly(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """The samples of :meth:`some` one by one; its batches if samples cannot be picked."""
        return self.some(seed_path, num_samples)

    def attribute(self, name: str, seed_path: tuple[int | str, ...]) -> Tensor:
        """An attribute of this client's graphs with one row per graph, [n, ...]."""
        found = [getattr(batch, name, None) for batch, _ in self.once(seed_path)]
        parts = [part for part in found if isinstance(part, Tensor)]
        if not parts or len(parts) < len(found):
            remedy = "name them in the data's features" if name == "descriptors" else "add it to every graph"
            raise ConfigurationError(f"the training batches have no {name}: {remedy}.")
        return torch.cat(parts)

    @property
    def targets(self) -> Tensor:
        """Targets of this client's samples, shape [n, ...]."""
        raise ConfigurationError(_NO_TARGETS)

    @targets.setter
    def targets(self, targets: Tensor) -> None:
        raise ConfigurationError(_NO_TARGETS)


_NO_TARGETS = "this client's targets come from a DataLoader: change the targets in the data set itself."


def parts_of(batch: Any, size: int | None, count: int, smallest: int, who: str) -> list[SizedBatch]:
    """Divide a batch into consecutive parts of at least ``smallest`` samples, or none; the first ones get the rest.

    Tensors with a row for each sample, also in collections, and PyG's ``Batch`` are divided; anything else is copied.
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
        what = f"this {type(batch).__name__} has no tensor with one row for each of its {samples} samples"
        raise ConfigurationError(f"{who} divides every batch in {count} parts, and {what}: use plain tensors.")
    return parts
