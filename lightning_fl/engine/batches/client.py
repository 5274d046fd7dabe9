"""The batches of one client: gathered from a shared pack where its data fit in memory, else from a ``DataLoader``."""

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from lightning_fl.data.graphs import is_graph_dataset
from lightning_fl.data.loaders import (
    as_loader,
    collate,
    combined,
    combined_size,
    has_plain_batches,
    holds_several,
    is_dataset,
    make_loader,
)
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches.packing import pack_dataset
from lightning_fl.engine.batches.packs import Pack
from lightning_fl.engine.hooks import Hooks
from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.seeding import derive_seed, seed_default_generators

__all__ = ["BatchFactory", "ClientBatches", "LoaderBatches", "PackedBatches", "SizedBatch", "guess_batch_size"]

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
    """A loader, kept alive across rounds; its generators are seeded before every pass.

    Args:
        loader: a ``DataLoader``, Lightning's ``CombinedLoader``, or any iterable that begins anew every time.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._parts: list[Any] = loader.flattened if isinstance(loader, CombinedLoader) else [loader]
        sizes = [_num_samples(part) for part in self._parts]
        total = combined_size(loader, sizes) if isinstance(loader, CombinedLoader) else sizes[0]
        # 0 where a stream tells no length
        self.num_samples = 0 if total is None or None in sizes else int(total)
        self._gave_batches = False

    def epoch_length(self) -> int | None:
        """The loader's own length."""
        lengths = [sized_len(part) for part in self._parts]
        if not isinstance(self._loader, CombinedLoader):
            return lengths[0]
        length = combined_size(self._loader, lengths)
        return None if length == float("inf") else int(length)

    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        """One pass, in the loader's own order."""
        self._seed((*seed_path, 0))
        return self._pass()

    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
        """Pass after pass, in the loader's own order."""
        given = 0
        for epoch in itertools.count():
            self._seed((*seed_path, epoch))
            before = given
            for batch in self._pass():
                given += 1
                yield batch
                if given == num_batches:
                    return
            if given == before:  # an empty loader
                return

    def passes(
        self, seed_path: tuple[int | str, ...], num_passes: int, before_last: Callable[[int, bool], None]
    ) -> Iterator[SizedBatch]:
        """Whole passes over a loader whose length shows only at its end; each batch is fetched one early, therefore.

        Args:
            seed_path: every draw comes from it.
            num_passes: how many.
            before_last: called before the last batch of each pass is given, with the number of batches given before it
                in all passes, and whether it is the last one of all.
        """
        given = 0
        for epoch in range(num_passes):
            self._seed((*seed_path, epoch))
            batches = self._pass()
            batch = next(batches, None)
            while batch is not None:
                following = next(batches, None)
                if following is None:
                    before_last(given, epoch == num_passes - 1)
                yield batch
                given, batch = given + 1, following

    def count(self, seed_path: tuple[int | str, ...], num_batches: int | None) -> None:
        """Make ``num_samples`` known where no length tells it: the data are read once.

        Args:
            seed_path: of the pass; global generators are left alone.
            num_batches: batches that are read, of a stream that may be endless; ``None`` for all.
        """
        with isolate_rng(include_cuda=False):
            batches = itertools.islice(self.once(seed_path), num_batches)
            self.num_samples = sum(
                guess_batch_size(batch) if size is None else size for batch, size in batches if batch is not None
            )

    def _pass(self) -> Iterator[SizedBatch]:
        """The loader from its beginning."""
        several = isinstance(self._loader, CombinedLoader)
        gave = False
        for item in self._loader:
            gave = self._gave_batches = True
            batch = item[0] if several else item
            yield batch, getattr(batch, "num_graphs", None)
        if self._gave_batches and not gave:
            raise DataError(
                f"the {type(self._loader).__name__} gave batches once, and none when it was iterated again: its"
                " __iter__ must begin anew every time, since a client reads its data every round."
            )

    def _seed(self, path: tuple[int | str, ...]) -> None:
        for number, loader in enumerate(self._parts):
            seed = derive_seed(*path, "loader", *([number] if number else []))  # type: ignore[arg-type]
            sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
            inner = getattr(batch_sampler, "sampler", None)
            holders: tuple[Any, ...] = (loader, sampler, batch_sampler, inner)
            for holder in holders:
                own = getattr(holder, "generator", None)
                if isinstance(own, torch.Generator):
                    own.manual_seed(seed)
                if hasattr(holder, "set_epoch"):
                    holder.set_epoch(seed & 0x7FFF_FFFF)
        seed_default_generators(*path, "loader")  # type: ignore[arg-type]


def _num_samples(loader: Any) -> int | None:
    """The samples in one pass over a loader; ``None`` where nothing tells."""
    if isinstance(loader, DataLoader):
        # A sampler may leave samples out; a data set that is not put into batches is asked itself.
        streamed = isinstance(loader.dataset, IterableDataset)
        return sized_len(loader.dataset if streamed or loader.batch_size is None else loader.sampler)
    return sized_len(getattr(loader, "dataset", None))


class LoadersInTurn(ClientBatches):
    """Several loaders that are read one after another, as validation and test data may have them.

    Args:
        loaders: at least one.
    """

    def __init__(self, loaders: Sequence[ClientBatches]) -> None:
        self._loaders = list(loaders)
        self.num_samples = sum(loader.num_samples for loader in loaders)

    @property
    def loaders(self) -> Sequence[ClientBatches]:
        """All of them."""
        return self._loaders

    def epoch_length(self) -> int | None:
        """Batches of all."""
        lengths = [loader.epoch_length() for loader in self._loaders]
        return None if None in lengths else sum(length or 0 for length in lengths)

    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        """One pass over each."""
        for number, loader in enumerate(self._loaders):
            yield from self._on_device(loader, loader.once((*seed_path, number)))

    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
        """Pass after pass, in their own order."""
        for epoch in itertools.count():
            given = 0
            for batch in itertools.islice(self.once((*seed_path, epoch)), num_batches):
                given += 1
                yield batch
            num_batches -= given
            if not given or not num_batches:
                return

    def some(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """Of each loader its share."""
        for number, loader in enumerate(self._loaders):
            yield from self._on_device(loader, loader.some((*seed_path, number), self.share(loader, num_samples)))

    def singly(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        """Of each loader its share."""
        for number, loader in enumerate(self._loaders):
            yield from self._on_device(loader, loader.singly((*seed_path, number), self.share(loader, num_samples)))

    def share(self, loader: ClientBatches, num_samples: int | None) -> int | None:
        """In proportion to their samples, rounded up."""
        if num_samples is None or not self.num_samples:
            return num_samples
        return -(-num_samples * loader.num_samples // self.num_samples)

    def _on_device(self, loader: ClientBatches, batches: Iterator[SizedBatch]) -> Iterator[SizedBatch]:
        for batch in batches:
            self.on_device = loader.on_device  # of the batch that is given next
            yield batch


def _in_turn(loaders: Sequence[ClientBatches | None]) -> ClientBatches | None:
    held = [loader for loader in loaders if loader is not None]
    return (held[0] if held else None) if len(held) < 2 else LoadersInTurn(held)


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
            DataError: a client has no training samples.
        """
        key = (client, split)
        if key not in self._made:
            source = f"{type(self._data).__name__}.client_data({client}, {split!r}) returned"
            made = self._make(self._data.client_data(client, split), split, source)
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
            self._loaders[key] = self._shown(data, split)
        return self._loaders[key]

    def _shown(self, data: Any, split: Split) -> Any:
        """Loaders in place of data sets, in the form in which the data module gave them."""
        if holds_several(data):
            return self._loaders_of(data, split)
        return self._loader_of(data, split) if is_dataset(data) else data

    def _make(self, data: Any, split: Split, source: str) -> ClientBatches | None:
        if holds_several(data) and split == "train":
            data = combined(self._loaders_of(data, split), split)
        elif holds_several(data):
            return _in_turn([self._make(part, split, source) for part in combined(data, split).flattened])
        if is_dataset(data):
            options = self._options(split)
            stream = isinstance(data, IterableDataset)
            return (None if stream else self._packed(data, **options)) or LoaderBatches(self._loader_of(data, split))
        loader = as_loader(data, split, source)
        if not isinstance(loader, CombinedLoader):
            return None if loader is None else self._of_loader(loader)
        parts = loader.flattened
        if loader.iterables is parts[0]:  # one iterable, not in a list
            return self._of_loader(parts[0])
        if split == "train" or loader._mode != "sequential":
            return LoaderBatches(loader)
        return _in_turn(list(map(self._of_loader, parts)))

    def _of_loader(self, loader: Any) -> ClientBatches:
        """The batches of one loader, without it where they can be packed."""
        options = _plain_options(loader) if isinstance(loader, DataLoader) else None
        return (None if options is None else self._packed(loader.dataset, **options)) or LoaderBatches(loader)

    def _options(self, split: Split) -> dict[str, Any]:
        module, training = self._data, split == "train"
        return {
            "batch_size": module.batch_size if training else module.eval_batch_size,
            "shuffle": training and module.shuffle,
            "drop_last": training and module.drop_last,
        }

    def _loader_of(self, data: Any, split: Split) -> DataLoader:
        """The engine's own loader over a data set."""
        return make_loader(data, collate_fn=collate, **self._options(split))

    def _loaders_of(self, data: Any, split: Split) -> Any:
        """A list, tuple or dict with a loader in place of every data set."""
        return tree_map(lambda part: self._loader_of(part, split) if is_dataset(part) else part, data)

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
