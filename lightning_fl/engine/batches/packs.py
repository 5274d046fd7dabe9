"""Data sets held in memory as flat tensors, shared by all clients, and the batches gathered from them."""

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.pinned_memory import to_device
from lightning_fl.core.seeding import derive_seed
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch

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
    """A data set as flat tensors, shared by all clients with a part of it; on the host if too large for a GPU."""

    #: Batches gathered at once.
    batches_per_gather = 1

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.sent_to: torch.device | None = None  #: where batches go, if not to the device of the tensors

    @property
    @abstractmethod
    def held_on(self) -> torch.device:
        """Device of the tensors."""

    @property
    def device(self) -> torch.device:
        return self.sent_to or self.held_on

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
        self, indices: Tensor, sizes: Sequence[int], targets: Tensor | None = None, on_host: Tensor | None = None
    ) -> list[Any]:
        """Gather batches of consecutive samples.

        Args:
            indices: the samples [n], on the pack's device; ``on_host`` has them on the host, to read without waiting.
            targets: used instead of the samples' own, [n, ...], on the pack's device.
        """

    def to(self, device: torch.device) -> "Pack":
        return self


class TensorPack(Pack):
    """A ``TensorDataset``: batches are lists of tensors, as torch's default collation makes them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors[0].shape[0])
        self.tensors = list(tensors)

    @property
    def held_on(self) -> torch.device:
        return self.tensors[-1].device

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def targets(self) -> Tensor:
        return self.tensors[-1]

    def gather(
        self, indices: Tensor, sizes: Sequence[int], targets: Tensor | None = None, on_host: Tensor | None = None
    ) -> list[Any]:
        batches = [self.rows(part) for part in (indices.split(list(sizes)) if len(sizes) > 1 else [indices])]
        if targets is not None:
            for batch, part in zip(batches, to_device(targets, self.device).split(list(sizes)), strict=True):
                batch[-1] = part
        return batches

    def rows(self, indices: Tensor) -> list[Tensor]:
        """Rows of the tensors for some samples [n], [n, ...] each, on the device of batches."""
        return [to_device(tensor.index_select(0, indices), self.device) for tensor in self.tensors]

    def to(self, device: torch.device) -> "TensorPack":
        self.tensors = [tensor.to(device) for tensor in self.tensors]
        return self


class PackedBatches(ClientBatches):
    """A client's share of a pack.

    Args:
        indices: the client's samples, shape [n], on the host; ``None`` for all.
        shuffle: draw a new order for every pass; otherwise batches are gathered once and kept, if ``budget`` allows.
        drop_last: leave out an incomplete last batch, unless it is the only one.
    """

    on_device = True

    def __init__(
        self,
        pack: Pack,
        indices: Tensor | None,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool = False,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.pack = pack
        self._indices = indices
        self._budget = budget
        self._keeps: bool | None = None  # whether batches are kept, decided in the first pass
        self.num_samples = pack.num_samples if indices is None else len(indices)
        self._batch_size = batch_size
        full, rest = divmod(self.num_samples, batch_size)
        self._sizes = [batch_size] * full + ([rest] if rest and not (drop_last and full) else [])  # of all batches
        self._shuffle = shuffle
        self._targets: Tensor | None = None
        self._kept: list[SizedBatch] | None = None
        self._kept_tensors: list[Tensor] = []
        self._states: list[tuple[int, bool]] = []

    @property
    def targets(self) -> Tensor:
        """Targets of this client's samples; assigning replaces them for this client only."""
        return self._own(self.pack.targets) if self._targets is None else self._targets

    @targets.setter
    def targets(self, targets: Tensor) -> None:
        assert targets.shape == self.targets.shape
        self._targets, self._kept = targets.to(self.targets), None

    def attribute(self, name: str, seed_path: tuple[int | str, ...]) -> Tensor:
        values = self.pack.attribute(name)
        return super().attribute(name, seed_path) if values is None else self._own(values)

    def _own(self, values: Tensor) -> Tensor:
        return values if self._indices is None else values.index_select(0, to_device(self._indices, values.device))

    def epoch_length(self) -> int:
        return len(self._sizes)

    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        """The same batches every time: kept if memory suffices, and gathered again if a step changed their tensors."""
        if self._keeps is None:
            share = self.pack.num_bytes * self.num_samples // max(1, self.pack.num_samples)
            self._keeps = self._budget is None or self._budget.reserve(share)
        if not self._keeps:
            return self._gather(torch.arange(self.num_samples), self.pack.batches_per_gather)
        if self._kept is None or self._states != _states(self._kept_tensors):
            with torch.inference_mode(False):  # inference tensors have no versions
                self._kept = list(self._gather(torch.arange(self.num_samples), len(self._sizes)))
            values = (batch if isinstance(batch, list) else batch.to_dict().values() for batch, _ in self._kept)
            self._kept_tensors = [value for of in values for value in of if isinstance(value, Tensor)]
            self._kept_tensors += getattr(self.pack, "tensors", [])  # the user may change a data set in place
            self._states = _states(self._kept_tensors)
        # Shallow copies, so that attributes assigned by a step do not persist.
        return ((copy.copy(batch), size) for batch, size in self._kept)

    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
        if not self._shuffle:
            while num_batches > 0:
                yield from itertools.islice(self.once(seed_path), num_batches)
                num_batches -= self.epoch_length()
            return
        for order in self._orders(seed_path, num_batches):
            yield from self._gather(order, self.pack.batches_per_gather, num_batches)
            num_batches -= self.epoch_length()

    def picks(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batches of :meth:`shuffled`, each as its samples in the pack, [size], and its targets if replaced."""
        sizes = self._sizes
        for order in self._orders(seed_path, num_batches):
            _, indices, replaced = self._chosen(order[: sum(sizes)])  # without what drop_last leaves out
            targets: Sequence[Tensor | None] = [None] * len(sizes) if replaced is None else replaced.split(sizes)
            yield from itertools.islice(zip(indices.split(sizes), targets, strict=True), num_batches)
            num_batches -= len(sizes)

    def _orders(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[Tensor]:
        """The samples' order in every pass, [n], on the host."""
        draws = torch.Generator().manual_seed(derive_seed(*seed_path, "batches"))  # type: ignore[arg-type]
        for _ in range(0, num_batches, self.epoch_length()):
            if self._shuffle:
                yield torch.randperm(self.num_samples, generator=draws)
            else:
                yield torch.arange(self.num_samples)

    def some(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """A random subset without replacement; every draw comes from ``seed_path``."""
        if num_samples is None or num_samples >= self.num_samples:
            return self.once(seed_path)
        return self._subset(seed_path, num_samples, self._batch_size).once(seed_path)

    def singly(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        count = self.num_samples if num_samples is None else min(num_samples, self.num_samples)
        return self._subset(seed_path, count, 1).once(seed_path)

    def _subset(self, seed_path: tuple[int | str, ...], num_samples: int, batch_size: int) -> "PackedBatches":
        draws = torch.Generator().manual_seed(derive_seed(*seed_path, "samples"))  # type: ignore[arg-type]
        indices, _, targets = self._chosen(torch.randperm(self.num_samples, generator=draws)[:num_samples])
        subset = PackedBatches(self.pack, indices, batch_size=batch_size, shuffle=False)
        if targets is not None:
            subset.targets = targets
        return subset

    def _chosen(self, order: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Indices in the pack of some of this client's samples [n], on host and device, and their replaced targets."""
        on_host = order if self._indices is None else self._indices.index_select(0, order)
        targets = None
        if self._targets is not None:
            targets = self._targets.index_select(0, to_device(order, self._targets.device))
        return on_host, to_device(on_host, self.pack.held_on), targets

    def _gather(self, order: Tensor, at_once: int, at_most: int | None = None) -> Iterator[SizedBatch]:
        sizes, begin = self._sizes[:at_most], 0
        on_host, indices, targets = self._chosen(order[: sum(sizes)])
        for group in (sizes[i : i + at_once] for i in range(0, len(sizes), at_once)):
            part = slice(begin, begin + sum(group))
            begin = part.stop
            replaced = None if targets is None else targets[part]
            yield from zip(self.pack.gather(indices[part], group, replaced, on_host[part]), group, strict=True)


def _states(tensors: Sequence[Tensor]) -> list[tuple[int, bool]]:
    """What changes if a step changes a tensor in place or asks for its gradient."""
    return [(0 if tensor.is_inference() else tensor._version, tensor.requires_grad) for tensor in tensors]
