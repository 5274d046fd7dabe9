"""Data sets held in memory as flat tensors, from which batches are gathered without visiting single samples."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.pinned_memory import to_device

__all__ = ["MemoryBudget", "Pack", "TensorPack", "channels_last"]

#: The part of a GPU's free memory that data may take; the rest is for models and what a step makes.
_SHARE_OF_DATA = 0.5


class MemoryBudget:
    """How much of a device's memory data may take: of a GPU's half of what was free before they came.

    Args:
        device: where they would lie.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken = 0

    def reserve(self, num_bytes: int) -> bool:
        """Whether there is budget for so many bytes more, which are then taken."""
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            if self._taken + num_bytes > _SHARE_OF_DATA * (free + self._taken):
                return False
        self._taken += num_bytes
        return True


class Pack(ABC):
    """A data set as flat tensors, shared by all clients that hold a part of it.

    Its batches arrive where it lies, unless it is too large for a GPU: then it stays on the host, where batches are
    gathered and sent off while the GPU works (:meth:`send_to`).
    """

    #: Batches that are gathered in one go.
    batches_per_gather = 1

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self._sent_to: torch.device | None = None

    @property
    @abstractmethod
    def held_on(self) -> torch.device:
        """Where the tensors are."""

    @property
    def device(self) -> torch.device:
        """Where batches arrive."""
        return self._sent_to or self.held_on

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Of all tensors."""

    @property
    @abstractmethod
    def targets(self) -> Tensor:
        """Targets of all samples, shape [n, ...], where the pack is held."""

    def attribute(self, name: str) -> Tensor | None:
        """What all samples have under a name, one row each, [n, ...]; ``None`` where it does not lie there so."""
        return None

    @abstractmethod
    def gather(
        self,
        indices: Tensor,
        sizes: Sequence[int],
        targets: Tensor | None = None,
        on_host: Tensor | None = None,
    ) -> list[Any]:
        """Batches of some samples.

        Args:
            indices: the samples [n], where the pack is held.
            sizes: of the batches, which have consecutive parts of the samples.
            targets: in place of their own, [n, ...], where the pack is held.
            on_host: ``indices`` in the host's memory, if they are at hand there: some packs would wait for them.
        """

    def send_to(self, device: torch.device) -> "Pack":
        """The same pack; its tensors stay, and its batches arrive on ``device``."""
        self._sent_to = device
        return self

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
    def held_on(self) -> torch.device:
        """Where the tensors are."""
        return self.tensors[-1].device

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def targets(self) -> Tensor:
        """The last tensor."""
        return self.tensors[-1]

    def gather(
        self,
        indices: Tensor,
        sizes: Sequence[int],
        targets: Tensor | None = None,
        on_host: Tensor | None = None,
    ) -> list[Any]:
        """Lists of tensors [size, ...]."""
        batches = [self.rows(part) for part in indices.split(list(sizes))]
        if targets is not None:
            for batch, part in zip(batches, to_device(targets, self.device).split(list(sizes)), strict=True):
                batch[-1] = part
        return batches

    def rows(self, indices: Tensor) -> list[Tensor]:
        """The tensors' rows of some samples [n], [n, ...] each, where batches arrive."""
        return [to_device(self._select(tensor, indices), self.device) for tensor in self.tensors]

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
