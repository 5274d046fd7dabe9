"""Data sets held in memory as flat tensors, from which whole batches are gathered."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.pinned_memory import to_device

__all__ = ["MemoryBudget", "Pack", "TensorPack", "channels_last"]

#: Share of a GPU's free memory for data; the rest is for models and activations.
_SHARE_OF_DATA = 0.5


class MemoryBudget:
    """Memory that data may take on a device: half of a GPU's initially free memory, no limit elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken = 0

    def reserve(self, num_bytes: int) -> bool:
        """Reserve memory; returns whether there was enough."""
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            if self._taken + num_bytes > _SHARE_OF_DATA * (free + self._taken):
                return False
        self._taken += num_bytes
        return True


class Pack(ABC):
    """A data set as flat tensors, shared by all clients with a part of it.

    A pack that is too large for the GPU stays on the host, where batches are gathered and sent while the GPU works
    (:meth:`send_to`).
    """

    #: Batches gathered at once.
    batches_per_gather = 1

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self._sent_to: torch.device | None = None

    @property
    @abstractmethod
    def held_on(self) -> torch.device:
        """Device of the tensors."""

    @property
    def device(self) -> torch.device:
        """Device of gathered batches."""
        return self._sent_to or self.held_on

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Size of all tensors."""

    @property
    @abstractmethod
    def targets(self) -> Tensor:
        """Targets of all samples, shape [n, ...], on the pack's device."""

    def attribute(self, name: str) -> Tensor | None:
        """An attribute with one row per sample, [n, ...]; ``None`` for others."""
        return None

    @abstractmethod
    def gather(
        self,
        indices: Tensor,
        sizes: Sequence[int],
        targets: Tensor | None = None,
        on_host: Tensor | None = None,
    ) -> list[Any]:
        """Gather batches.

        Args:
            indices: the samples [n], on the pack's device.
            sizes: of the batches, which take consecutive samples.
            targets: replacement of their own, [n, ...], on the pack's device.
            on_host: ``indices`` in the host's memory, if available: some packs would wait for them.
        """

    def send_to(self, device: torch.device) -> "Pack":
        """Send batches to ``device``; the tensors stay."""
        self._sent_to = device
        return self

    def to(self, device: torch.device) -> "Pack":
        """Move the tensors to ``device``."""
        return self

    def to_channels_last(self) -> "Pack":
        """Store images, shape [n, c, ...], with the channels of a pixel adjacent in memory."""
        return self


class TensorPack(Pack):
    """A ``TensorDataset``: batches are lists of tensors, as torch's default collation makes them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors[0].shape[0])
        self.tensors = list(tensors)
        self._channels_last = False

    @property
    def held_on(self) -> torch.device:
        """Device of the tensors."""
        return self.tensors[-1].device

    @property
    def num_bytes(self) -> int:
        """Size of all tensors."""
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
        """Rows of the tensors for some samples [n], [n, ...] each, on the device of batches."""
        return [to_device(self._select(tensor, indices), self.device) for tensor in self.tensors]

    def _select(self, tensor: Tensor, indices: Tensor) -> Tensor:
        if self._channels_last and _are_images(tensor):  # index_select alone would change the memory format
            return tensor.movedim(1, -1).index_select(0, indices).movedim(-1, 1)
        return tensor.index_select(0, indices)

    def to(self, device: torch.device) -> "TensorPack":
        """Move the tensors."""
        self.tensors = [tensor.to(device) for tensor in self.tensors]
        return self

    def to_channels_last(self) -> "TensorPack":
        """Convert the images once."""
        self.tensors = [channels_last(tensor) for tensor in self.tensors]
        self._channels_last = True
        return self


def _are_images(tensor: Tensor) -> bool:
    """Whether a tensor can be images [n, c, h, w] or volumes [n, c, d, h, w]."""
    return tensor.is_floating_point() and tensor.ndim in (4, 5)


def channels_last(tensor: Tensor) -> Tensor:
    """Convert images [n, c, h, w] and volumes [n, c, d, h, w] to channels-last memory; other tensors are unchanged."""
    if not _are_images(tensor):
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last if tensor.ndim == 4 else torch.channels_last_3d)
