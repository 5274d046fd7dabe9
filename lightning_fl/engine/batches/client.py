"""The batches of one client: gathered from a shared pack where its data fit in memory, else from a ``DataLoader``."""

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from lightning_fl.data.graphs import is_graph, is_graph_dataset
from lightning_fl.data.loaders import has_plain_batches
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches.packing import pack_dataset
from lightning_fl.engine.batches.packs import Pack
from lightning_fl.engine.hooks import Hooks
from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.seeding import derive_seed, seed_default_generators

__all__ = ["BatchFactory", "ClientBatches", "PackedBatches", "SizedBatch"]

#: A batch and its number of samples, ``None`` where only the batch itself tells.
SizedBatch = tuple[Any, int | None]


class ClientBatches(ABC):
    """One client's data in one split."""

    num_samples: int
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

    def some(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """Batches of ``num_samples`` samples, those of :meth:`once` where there are no more or it is ``None``.

        Where samples cannot be picked, the first whole batches that hold as many.
        """
        given = 0
        for batch, size in self.once(seed_path):
            yield batch, size
            if num_samples is None or batch is None:  # an empty batch, which the step is not given
                continue
            given += extract_batch_size(batch) if size is None else size
            if given >= num_samples:
                return

    def singly(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """The samples of :meth:`some`, each a batch of its own; where samples cannot be picked, its batches."""
        return self.some(seed_path, num_samples)

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


class PackedBatches(ClientBatches):
    """A client's share of a pack.

    Args:
        pack: the shared data.
        indices: the client's samples, shape [n], on the pack's device; ``None`` for all.
        batch_size: samples in a batch.
        shuffle: a fresh order for every pass; otherwise batches are gathered once and kept.
        drop_last: leave out a last batch that is not full, unless it is the only one.
    """

    on_device = True

    def __init__(
        self, pack: Pack, indices: Tensor | None, *, batch_size: int, shuffle: bool, drop_last: bool = False
    ) -> None:
        self.pack = pack
        self._indices = indices
        self.num_samples = pack.num_samples if indices is None else len(indices)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last and self.num_samples > batch_size
        self._targets: Tensor | None = None
        self._kept: list[SizedBatch] | None = None
        self._kept_tensors: list[Tensor] = []
        self._versions: list[int] = []

    @property
    def targets(self) -> Tensor:
        """Targets of this client's samples; assigning replaces them for this client alone."""
        if self._targets is not None:
            return self._targets
        targets = self.pack.targets
        return targets if self._indices is None else targets.index_select(0, self._indices)

    @targets.setter
    def targets(self, targets: Tensor) -> None:
        assert targets.shape == self.targets.shape
        self._targets, self._kept = targets.to(self.targets), None

    def epoch_length(self) -> int:
        """Batches in one pass."""
        full, rest = divmod(self.num_samples, self._batch_size)
        return full + (1 if rest and not self._drop_last else 0)

    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        """The same batches every time: gathered once and kept, and again if a step changed their tensors in place."""
        if self._kept is None or self._versions != [tensor._version for tensor in self._kept_tensors]:
            with torch.inference_mode(False):  # whose tensors have no versions
                order = torch.arange(self.num_samples, device=self.pack.device)
                self._kept = list(self._gather(order, len(self._sizes())))
            self._kept_tensors = _tensors_of(self._kept)
            self._versions = [tensor._version for tensor in self._kept_tensors]
        # Shallow copies, so that what a step assigns to its batch is not there the next time.
        return ((copy.copy(batch), size) for batch, size in self._kept)

    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
        """Passes without replacement, each in an order of its own."""
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
        sizes = self._sizes()
        for order in self._orders(seed_path, num_batches):
            order = order[: sum(sizes)]  # without what drop_last leaves out
            indices = order if self._indices is None else self._indices.index_select(0, order)
            targets: Sequence[Tensor | None] = [None] * len(sizes)
            if self._targets is not None:
                targets = self._targets.index_select(0, order).split(sizes)
            yield from itertools.islice(zip(indices.split(sizes), targets, strict=True), num_batches)
            num_batches -= len(sizes)

    def _orders(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[Tensor]:
        """The samples' order in every pass, [n]."""
        draws = torch.Generator().manual_seed(derive_seed(*seed_path, "batches"))  # type: ignore[arg-type]
        for _ in range(0, num_batches, self.epoch_length()):
            if self._shuffle:
                yield torch.randperm(self.num_samples, generator=draws).to(self.pack.device)
            else:
                yield torch.arange(self.num_samples, device=self.pack.device)

    def some(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """A random subset without replacement; every draw comes from ``seed_path``."""
        if num_samples is None or num_samples >= self.num_samples:
            return self.once(seed_path)
        return self._subset(seed_path, num_samples, self._batch_size).once(seed_path)

    def singly(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """The samples of :meth:`some`, each a batch of its own."""
        count = self.num_samples if num_samples is None else min(num_samples, self.num_samples)
        return self._subset(seed_path, count, 1).once(seed_path)

    def _subset(self, seed_path: tuple[int | str, ...], num_samples: int, batch_size: int) -> "PackedBatches":
        draws = torch.Generator().manual_seed(derive_seed(*seed_path, "samples"))  # type: ignore[arg-type]
        chosen = torch.randperm(self.num_samples, generator=draws)[:num_samples].to(self.pack.device)
        indices = chosen if self._indices is None else self._indices.index_select(0, chosen)
        subset = PackedBatches(self.pack, indices, batch_size=batch_size, shuffle=False)
        if self._targets is not None:
            subset.targets = self._targets.index_select(0, chosen)
        return subset

    def _sizes(self) -> list[int]:
        length = self.epoch_length()
        return [min(self._batch_size, self.num_samples - b * self._batch_size) for b in range(length)]

    def _gather(self, order: Tensor, at_once: int, at_most: int | None = None) -> Iterator[SizedBatch]:
        sizes, begin = self._sizes()[:at_most], 0
        for group in itertools.batched(sizes, at_once) if hasattr(itertools, "batched") else _groups(sizes, at_once):
            positions = order[begin : begin + sum(group)]
            begin += sum(group)
            indices = positions if self._indices is None else self._indices.index_select(0, positions)
            targets = None if self._targets is None else self._targets.index_select(0, positions)
            yield from zip(self.pack.gather(indices, list(group), targets), group, strict=True)


def _tensors_of(batches: list[SizedBatch]) -> list[Tensor]:
    """The tensors of packed batches; their versions tell how often each was changed in place."""
    values = (batch if isinstance(batch, list) else batch.to_dict().values() for batch, _ in batches)
    return [value for value in itertools.chain.from_iterable(values) if isinstance(value, Tensor)]


def _groups(sizes: list[int], at_once: int) -> Iterator[list[int]]:
    return (sizes[i : i + at_once] for i in range(0, len(sizes), at_once))


class LoaderBatches(ClientBatches):
    """A ``DataLoader``, kept alive across rounds; its generators are seeded before every pass."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        streamed = isinstance(loader.dataset, IterableDataset)
        counted: Any = loader.dataset if streamed or loader.batch_size is None else loader.sampler
        try:
            self.num_samples = len(counted)  # a sampler may leave samples out
        except TypeError:
            self.num_samples = 0  # a stream without a length

    def epoch_length(self) -> int | None:
        """The loader's own length."""
        try:
            return len(self._loader)
        except TypeError:
            return None

    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        """One pass, in the loader's own order."""
        self._seed((*seed_path, 0))
        return ((batch, getattr(batch, "num_graphs", None)) for batch in self._loader)

    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
        """Pass after pass, in the loader's own order."""
        given = 0
        for epoch in itertools.count():
            self._seed((*seed_path, epoch))
            before = given
            for batch in self._loader:
                given += 1
                yield batch, getattr(batch, "num_graphs", None)
                if given == num_batches:
                    return
            if given == before:  # an empty loader
                return

    def _seed(self, path: tuple[int | str, ...]) -> None:
        seed = derive_seed(*path, "loader")  # type: ignore[arg-type]
        loader: Any = self._loader
        inner = getattr(loader.batch_sampler, "sampler", None)
        holders: tuple[Any, ...] = (loader, loader.sampler, loader.batch_sampler, inner)
        for holder in holders:
            own = getattr(holder, "generator", None)
            if isinstance(own, torch.Generator):
                own.manual_seed(seed)
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(seed & 0x7FFF_FFFF)
        seed_default_generators(*path, "loader")  # type: ignore[arg-type]


class BatchFactory:
    """Turns what a data module returns for a client into :class:`ClientBatches`, packing shared data once.

    Args:
        data: the data module.
        device: where packed data are held.
        channels_last: whether packed images are held in the channels-last memory format.
        hooks: who wants to change a client's data when they are opened (``on_client_data``).
    """

    def __init__(
        self,
        data: FederatedDataModule,
        device: torch.device,
        channels_last: bool = False,
        hooks: Hooks | None = None,
    ) -> None:
        self._data = data
        self._hooks = hooks or Hooks()
        self._device = device
        self._channels_last = channels_last
        self._packs: dict[int, tuple[Any, Pack | None]] = {}
        self._made: dict[tuple[int, Split], ClientBatches | None] = {}
        self._loaders: dict[tuple[int, Split], Any] = {}

    def batches(self, client: int, split: Split) -> ClientBatches | None:
        """A client's batches in one split, ``None`` where it has no such data; made once.

        Raises:
            ConfigurationError: the data module returned several data sets or loaders.
            DataError: a client has no training samples.
        """
        key = (client, split)
        if key not in self._made:
            data = self._data.client_data(client, split)
            _refuse_several(data, f"{type(self._data).__name__}.client_data({client}, {split!r})")
            made = self._make(data, split)
            if made is not None and made.num_samples == 0 and made.epoch_length() == 0:
                made = None
            if made is None and split == "train":
                raise DataError(
                    f"client {client} ({self._data.client_names()[client]}) has no training samples: use fewer"
                    " clients, another partitioner or another split seed, or leave the client out."
                )
            if made is not None:
                self._hooks.call("on_client_data", client, split, made)
            self._made[key] = made
        return self._made[key]

    def loader(self, client: int, split: Split) -> Any:
        """What a client's module is shown as its loader of a split, ``None`` where it has no such data.

        The data module's own loader, or one made over the client's data set, with an order of its own.
        """
        batches = self.batches(client, split)
        if batches is None:
            return None
        key = (client, split)
        if key not in self._loaders:
            data: Any = self._data.client_data(client, split)
            samples = isinstance(data, Dataset | list | tuple)
            self._loaders[key] = self._loader_over(data, split) if samples else data
        return self._loaders[key]

    def _loader_over(self, data: Any, split: Split) -> DataLoader:
        """A loader over a client's data set, as the data module says."""
        module, training = self._data, split == "train"
        length = len(data) if hasattr(data, "__len__") else None
        batch_size = module.batch_size if training else module.eval_batch_size
        return DataLoader(
            data,
            batch_size=batch_size,
            shuffle=training and module.shuffle and not isinstance(data, IterableDataset) and bool(length),
            drop_last=training and module.drop_last and (length is None or length > batch_size),
            collate_fn=_collate,
            generator=torch.Generator(),
        )

    def _make(self, data: Dataset | DataLoader | None, split: Split) -> ClientBatches | None:
        module = self._data
        if data is None:
            return None
        if isinstance(data, DataLoader):
            options = _plain_options(data)
            if options is None:
                return LoaderBatches(data)
            packed = self._packed(data.dataset, **options)
            return packed or LoaderBatches(data)
        batch_size = module.batch_size if split == "train" else module.eval_batch_size
        shuffle, drop_last = split == "train" and module.shuffle, split == "train" and module.drop_last
        stream = isinstance(data, IterableDataset)
        packed = None if stream else self._packed(data, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
        if packed is not None:
            return packed
        return LoaderBatches(self._loader_over(data, split))

    def _packed(self, dataset: Any, **options: Any) -> PackedBatches | None:
        indices: Tensor | None = None
        held: Any = dataset
        while type(dataset) is Subset:
            own = torch.as_tensor(dataset.indices, dtype=torch.long)
            indices = own if indices is None else own[indices]
            held = dataset = dataset.dataset
        if is_graph_dataset(dataset):  # views share their data, but each has its own transform
            if dataset.transform is not None:
                return None
            held = dataset._data
            if dataset._indices is not None:
                own = torch.as_tensor(list(dataset._indices), dtype=torch.long)
                indices = own if indices is None else own[indices]
        if id(held) not in self._packs:
            pack = pack_dataset(dataset)
            if pack is not None and self._channels_last:
                pack = pack.to_channels_last()
            # What is packed is kept beside its pack, so that its id stays its own.
            self._packs[id(held)] = (held, None if pack is None else pack.to(self._device))
        pack = self._packs[id(held)][1]
        if pack is None:
            return None
        return PackedBatches(pack, None if indices is None else indices.to(self._device), **options)


def _refuse_several(data: Any, source: str) -> None:
    parts = list(data.values()) if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else []
    if isinstance(data, Mapping) or any(isinstance(part, DataLoader | Dataset) for part in parts):
        raise ConfigurationError(
            f"{source} returned a {type(data).__name__} of {len(parts)}: a client has one data set or DataLoader per"
            " split; join data sets with torch.utils.data.ConcatDataset."
        )


def _plain_options(loader: DataLoader) -> dict[str, Any] | None:
    """Batch size, order and drop_last of a loader that does nothing else; ``None`` for any other."""
    sampler = loader.sampler
    plain_order = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    )
    if (
        isinstance(loader.dataset, IterableDataset)
        or type(loader).__iter__ is not DataLoader.__iter__
        or type(loader.batch_sampler) is not BatchSampler
        or not has_plain_batches(loader)
        or not plain_order
        or len(sampler) != len(loader.dataset)  # type: ignore[arg-type]
        or loader.batch_size is None
    ):
        return None
    return {
        "batch_size": loader.batch_size,
        "shuffle": type(sampler) is RandomSampler,
        "drop_last": bool(loader.drop_last),
    }


def _collate(samples: list[Any]) -> Any:
    """PyG's collation for samples that are or hold graphs, torch's for all others."""
    first = samples[0]
    parts = first.values() if isinstance(first, Mapping) else first if isinstance(first, tuple | list) else (first,)
    if any(is_graph(part) for part in parts):
        from torch_geometric.loader.dataloader import Collater

        return Collater(samples)(samples)
    return default_collate(samples)
