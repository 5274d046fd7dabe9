"""Data sets held in memory as flat tensors, from which batches are gathered without visiting single samples."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Pack", "TensorPack", "channels_last"]


class Pack(ABC):
    """A data set as flat tensors on one device, shared by all clients that hold a part of it."""

    #: Batches that are gathered in one go.
    batches_per_gather = 1

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the tensors are."""

    @property
    @abstractmethod
    def targets(self) -> Tensor:
        """Targets of all samples, shape [n, ...]."""

    def attribute(self, name: str) -> Tensor | None:
        """What all samples have under a name, one row each, [n, ...]; ``None`` where it does not lie there so."""
        return None

    @abstractmethod
    def gather(self, indices: Tensor, sizes: Sequence[int], targets: Tensor | None = None) -> list[Any]:
        """Batches of ``sizes`` samples: consecutive parts of ``indices``, with other ``targets`` where given."""

    def to(self, device: torch.device) -> "Pack":
        """The same pack, its tensors moved to ``device``."""
        return self

    def to_channels_last(self) -> "Pack":
        """The same pack; batches hold images, shape [n, c, ...], with the channels of a pixel beside each other."""
        return self


class TensorPack(Pack):
    """A ``TensorDataset``: batches are lists of tensors, as torch's default collation makes them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors[0].shape[0])
        self.tensors = list(tensors)
        self._channels_last = False

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.tensors[-1].device

    @property
    def targets(self) -> Tensor:
        """The last tensor."""
        return self.tensors[-1]

    def gather(self, indices: Tensor, sizes: Sequence[int], targets: Tensor | None = None) -> list[Any]:
        """Lists of tensors [size, ...]."""
        batches = []
        for part in indices.split(list(sizes)):
            batches.append([self._select(tensor, part) for tensor in self.tensors])
        if targets is not None:
            for batch, part in zip(batches, targets.split(list(sizes)), strict=True):
                batch[-1] = part
        return batches

    def _select(self, tensor: Tensor, indices: Tensor) -> Tensor:
        if self._channels_last and _are_images(tensor):  # index_select by itself would lay them out anew
            return tensor.movedim(1, -1).index_select(0, indices).movedim(-1, 1)
        return tensor.index_select(0, indices)

    def to(self, device: torch.device) -> "TensorPack":
        """Move the tensors."""
        self.tensors = [tensor.to(device) for tensor in self.tensors]
        return self

    def to_channels_last(self) -> "TensorPack":
        """Lay the images out anew, once."""
        self.tensors = [channels_last(tensor) for tensor in self.tensors]
        self._channels_last = True
        return self


def _are_images(tensor: Tensor) -> bool:
    """Whether a tensor can be images [n, c, h, w] or volumes [n, c, d, h, w]."""
    return tensor.is_floating_point() and tensor.ndim in (4, 5)


def channels_last(tensor: Tensor) -> Tensor:
    """Images [n, c, h, w] and volumes [n, c, d, h, w] with the channels last in memory; any other tensor as it is."""
    if not _are_images(tensor):
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last if tensor.ndim == 4 else torch.channels_last_3d)
