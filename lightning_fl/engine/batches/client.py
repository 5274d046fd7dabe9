"""The batches of one client in one split: what the engine asks of them, wherever they come from."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError

__all__ = ["ClientBatches", "SizedBatch", "guess_batch_size"]


#: A batch and its number of samples, ``None`` where only the batch itself tells.
SizedBatch = tuple[Any, int | None]


def guess_batch_size(batch: Any) -> int:
    """The size of a batch as Lightning finds it; 1, with a warning, where there is no tensor to tell."""
    try:
        return extract_batch_size(batch)
    except MisconfigurationException:
        if "batch" not in _warned:
            _warned.add("batch")
            rank_zero_warn(
                f"a batch, a {type(batch).__name__}, holds no tensor that tells its size: it counts as one sample. Give"
                " self.log(..., batch_size=...) in the step, and Silos(num_samples=...) for the clients' weights."
            )
        return 1


#: What has been warned of in this process.
_warned: set[str] = set()


class ClientBatches(ABC):
    """One client's data in one split."""

    #: 0 where it is not known.
    num_samples: int
    #: The number of the next pass, as samplers are told it (``set_epoch``).
    next_pass: int = 0
    #: Whether a batch lies on the device already.
    on_device: bool = False

    @abstractmethod
    def epoch_length(self) -> int | None:
        """Batches in one pass; ``None`` where it has no known length."""

    @abstractmethod
    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        """One pass over all samples in their own order."""

    @abstractmethod
    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
        """``num_batches`` batches in the training order, pass after pass; every draw comes from ``seed_path``."""

    @property
    def loaders(self) -> "Sequence[ClientBatches]":
        """The loaders that are read one after another, each with batches numbered from 0; usually one, itself."""
        return (self,)

    def share(self, loader: "ClientBatches", num_samples: int | None) -> int | None:
        """How many of ``num_samples`` samples, ``None`` for all, come from one of the :attr:`loaders`."""
        return num_samples

    def some(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """Batches of ``num_samples`` samples, those of :meth:`once` where there are no more or it is ``None``.

        Where samples cannot be picked, the first whole batches that hold as many.
        """
        given = 0
        for batch, size in self.once(seed_path):
            yield batch, size
            if num_samples is None or batch is None:  # an empty batch, which the step is not given
                continue
            given += guess_batch_size(batch) if size is None else size
            if given >= num_samples:
                return

    def singly(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """The samples of :meth:`some`, each a batch of its own; where samples cannot be picked, its batches."""
        return self.some(seed_path, num_samples)

    def attribute(self, name: str, seed_path: tuple[int | str, ...]) -> Tensor:
        """An attribute of this client's graphs that has one row for each, [n, ...].

        Raises:
            ConfigurationError: a batch has none of this name.
        """
        found = [getattr(batch, name, None) for batch, _ in self.once(seed_path)]
        parts = [part for part in found if isinstance(part, Tensor)]
        if not parts or len(parts) < len(found):
            raise ConfigurationError(f"the training batches have no {name}: give every graph some.")
        return torch.cat(parts)

    @property
    def targets(self) -> Tensor:
        """Targets of this client's samples, shape [n, ...]."""
        raise ConfigurationError(_NO_TARGETS)

    @targets.setter
    def targets(self, targets: Tensor) -> None:
        raise ConfigurationError(_NO_TARGETS)


_NO_TARGETS = (
    "the targets of this client's data are not at hand: its samples come one by one from a DataLoader. Give a"
    " TensorDataset, a list of PyG Data or an InMemoryDataset (with default collation and no workers) instead, or"
    " change the targets in the data set itself."
)
