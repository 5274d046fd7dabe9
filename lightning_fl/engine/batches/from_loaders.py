"""A client's batches, read from its own loaders."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader, IterableDataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.held_generators import held_generators, seed_held_generators
from lightning_fl.core.lightning_types import rank_seen
from lightning_fl.core.seeding import derive_seed, seed_default_generators
from lightning_fl.data.loaders import combined_size
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch, guess_batch_size


class LoaderBatches(ClientBatches):
    """Batches of any loader that can be iterated again; its generators are seeded before every pass."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._parts: list[Any] = loader.flattened if isinstance(loader, CombinedLoader) else [loader]
        sizes = [_num_samples(part) for part in self._parts]
        total = combined_size(loader, sizes) if isinstance(loader, CombinedLoader) else sizes[0]
        # 0 for a stream of unknown length
        self.num_samples = 0 if total is None or None in sizes else int(total)
        self._gave_batches = False
        self._held: list[Any] | None = None  # generators of data sets, samplers and collate_fn

    def epoch_length(self) -> int | None:
        lengths = [sized_len(part) for part in self._parts]
        if not isinstance(self._loader, CombinedLoader):
            return lengths[0]
        length = combined_size(self._loader, lengths)
        return None if length == float("inf") else int(length)

    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        self._seed((*seed_path, 0))
        return self._pass()

    def shuffled(self, seed_path: tuple[int | str, ...], num_batches: int) -> Iterator[SizedBatch]:
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
        """Whole passes over a loader of unknown length, fetched one batch early.

        ``before_last`` gets the number of batches before the last one of a pass, and whether it is the last of all.
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
        """Determine an unknown ``num_samples`` by reading the data, or ``num_batches`` of an endless stream, once."""
        with isolate_rng(include_cuda=False):
            batches = itertools.islice(self.once(seed_path), num_batches)
            self.num_samples = sum(
                guess_batch_size(batch) if size is None else size for batch, size in batches if batch is not None
            )

    def _pass(self) -> Iterator[SizedBatch]:
        """One pass, up to the loader's length if it has one."""
        several = isinstance(self._loader, CombinedLoader)
        gave = False
        with rank_seen(0):  # Lightning seeds worker processes by rank
            items = iter(self._loader)
        for item in itertools.islice(items, self.epoch_length()):
            gave = self._gave_batches = True
            batch = item[0] if several else item
            yield batch, getattr(batch, "num_graphs", None)
        if self._gave_batches and not gave:
            raise DataError(f"the {type(self._loader).__name__} gave batches only once: make its __iter__ restart.")

    def _seed(self, path: tuple[int | str, ...]) -> None:
        if self._held is None:
            self._held = held_generators(*self._parts)
        seed_held_generators(self._held, *path, "loader")  # type: ignore[arg-type]
        for number, loader in enumerate(self._parts):
            seed = derive_seed(*path, "loader", *([number] if number else []))  # type: ignore[arg-type]
            sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
            holders: tuple[Any, ...] = (loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
            for holder in {id(one): one for one in holders}.values():
                own = getattr(holder, "generator", None)
                if isinstance(own, torch.Generator):
                    own.manual_seed(seed)
                if hasattr(holder, "set_epoch"):
                    holder.set_epoch(self.next_pass)
                    if isinstance(getattr(holder, "seed", None), int):  # to which samplers add the number
                        holder.seed = seed & 0x7FFF_FFFF
        self.next_pass += 1
        seed_default_generators(*path, "loader")  # type: ignore[arg-type]


def _num_samples(loader: Any) -> int | None:
    """Samples in one pass over a loader; ``None`` if unknown."""
    if isinstance(loader, DataLoader):
        # A sampler may leave samples out; without batching only the data set knows.
        streamed = isinstance(loader.dataset, IterableDataset)
        return sized_len(loader.dataset if streamed or loader.batch_size is None else loader.sampler)
    return sized_len(getattr(loader, "dataset", None))


class LoadersInTurn(ClientBatches):
    """Several loaders read one after another, as validation and test data (not training data) may have them."""

    def __init__(self, loaders: Sequence[ClientBatches]) -> None:
        self._loaders = list(loaders)
        self.num_samples = sum(loader.num_samples for loader in loaders)

    @property
    def loaders(self) -> Sequence[ClientBatches]:
        return self._loaders

    def epoch_length(self) -> int | None:
        lengths = [loader.epoch_length() for loader in self._loaders]
        return None if None in lengths else sum(length or 0 for length in lengths)

    def once(self, seed_path: tuple[int | str, ...]) -> Iterator[SizedBatch]:
        return self._in_turn(lambda number, loader: loader.once((*seed_path, number)))

    def some(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        return self._in_turn(lambda k, loader: loader.some((*seed_path, k), self.share(loader, num_samples)))

    def singly(self, seed_path: tuple[int | str, ...], num_samples: int | None) -> Iterator[SizedBatch]:
        return self._in_turn(lambda k, loader: loader.singly((*seed_path, k), self.share(loader, num_samples)))

    def share(self, loader: ClientBatches, num_samples: int | None) -> int | None:
        """In proportion to their samples, rounded up."""
        if num_samples is None or not self.num_samples:
            return num_samples
        return -(-num_samples * loader.num_samples // self.num_samples)

    def _in_turn(self, read: Callable[[int, ClientBatches], Iterator[SizedBatch]]) -> Iterator[SizedBatch]:
        for number, loader in enumerate(self._loaders):
            for batch in read(number, loader):
                self.on_device = loader.on_device  # of the batch that is given next
                yield batch
