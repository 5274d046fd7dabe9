"""Batches from what a data module returns for a client: gathered from a shared pack if possible, else read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.graphs import is_graph, is_graph_dataset
from lightning_fl.data.loaders import (
    as_loader,
    collate,
    combined,
    has_plain_batches,
    has_plain_order,
    holds_several,
    is_dataset,
    is_shuffled,
    make_loader,
)
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.engine.batches.from_loaders import LoaderBatches, LoadersInTurn
from lightning_fl.engine.batches.packs import MemoryBudget, Pack, PackedBatches, TensorPack
from lightning_fl.engine.hooks import Hooks


class BatchFactory:
    """Factory of :class:`ClientBatches` that packs shared data once, on a device if they fit in its memory."""

    def __init__(self, data: FederatedDataModule, device: torch.device, hooks: Hooks | None = None) -> None:
        self.data = data
        self._hooks = hooks or Hooks()
        self._device = device
        self._budget = MemoryBudget(device)
        self._warned = False  # that data do not fit
        self._packs: dict[int, tuple[Any, Pack | None]] = {}
        self._made: dict[tuple[int, Split], ClientBatches | None] = {}
        self._loaders: dict[tuple[int, Split], Any] = {}

    def batches(self, client: int, split: Split) -> ClientBatches | None:
        """A client's batches in one split, created once; ``None`` if it has no such data."""
        key = (client, split)
        if key not in self._made:
            source = f"{type(self.data).__name__}.client_data({client}, {split!r}) returned"
            made = self._make(self.data.client_data(client, split), split, source)
            samples = 0 if made is None else made.num_samples
            if made is not None and made.epoch_length() == 0:
                made = None
            if made is None and split == "train":
                few = f"{samples} training samples, which its loader with drop_last leaves out"
                what = f"{self._name_of(client)} has {few if samples else 'no training samples'}"
                raise DataError(f"{what}: use fewer clients, another split seed, or leave the client out.")
            if made is not None:
                if split == "train" and isinstance(made, PackedBatches):
                    self._check_labels(made, client)
                self._hooks.call("on_client_data", client, split, made)
            self._made[key] = made
        return self._made[key]

    def loader(self, client: int, split: Split) -> Any:
        """The loader of a split that a client's module sees: its own, or over its data set; ``None`` without data."""
        if self.batches(client, split) is None:
            return None
        key = (client, split)
        if key not in self._loaders:
            data: Any = self.data.client_data(client, split)
            if holds_several(data):
                data = self._loaders_of(data, split)
            elif is_dataset(data):
                data = self._loader_of(data, split)
            self._loaders[key] = data
        return self._loaders[key]

    def release(self) -> None:
        """Free the device's memory; batches are created again when needed."""
        self._packs.clear()
        self._made.clear()
        self._budget = MemoryBudget(self._device)

    def _name_of(self, client: int) -> str:
        return f"client {client} ({self.data.client_names()[client]})"

    def _check_labels(self, batches: PackedBatches, client: int) -> None:
        """Refuse training samples without any target (all NaN), whose masked loss would be 0."""
        try:
            targets = batches.targets
        except ConfigurationError:  # graphs without y
            return
        if targets.is_floating_point() and bool(targets.isnan().all()):
            what = f"all targets of the {batches.num_samples} training samples of {self._name_of(client)} are missing"
            raise DataError(f"{what}: fill some in, or leave the client out (unlabelled: leave_out).")

    def _make(self, data: Any, split: Split, source: str) -> ClientBatches | None:
        if holds_several(data) and split == "train":
            data = combined(self._loaders_of(data, split), split)
        elif holds_several(data):
            return _in_turn([self._make(part, split, source) for part in combined(data, split).flattened])
        if is_dataset(data):
            options = self.data.loader_options(split)
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
        options = plain_options(loader) if isinstance(loader, DataLoader) else None
        return (None if options is None else self._packed(loader.dataset, **options)) or LoaderBatches(loader)

    def _loader_of(self, data: Any, split: Split) -> DataLoader:
        """The engine's own loader over a data set."""
        pin = self._device.type == "cuda"
        return make_loader(data, collate_fn=collate, pin_memory=pin, **self.data.loader_options(split))

    def _loaders_of(self, data: Any, split: Split) -> Any:
        """Replace data sets by loaders, in the structure that the data module returned."""
        return tree_map(lambda part: self._loader_of(part, split) if is_dataset(part) else part, data)

    def _packed(self, dataset: Any, **options: Any) -> PackedBatches | None:
        indices: Tensor | None = None
        held: Any = dataset
        while type(dataset) is Subset:
            own = torch.from_numpy(np.asarray(dataset.indices, dtype=np.int64))  # a list takes torch far longer
            own = torch.where(own < 0, own + len(dataset.dataset), own)  # type: ignore[arg-type]
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
            # Keep the packed object alive, so that its id is not reused.
            self._packs[id(held)] = (held, None if pack is None else self._placed(pack))
        pack = self._packs[id(held)][1]
        if pack is None:
            return None
        return PackedBatches(pack, None if indices is None else indices.cpu(), budget=self._budget, **options)

    def _placed(self, pack: Pack) -> Pack:
        if self._budget.reserve(pack.num_bytes):
            return pack.to(self._device)
        if not self._warned:
            size = f"the data ({pack.num_bytes / 2**30:.3g} GiB)"
            rank_zero_info(f"{size} would take over half of the free memory of {self._device}: they stay on the host.")
        self._warned = True
        pack.sent_to = self._device
        return pack


def pack_dataset(dataset: Dataset | Sequence[Any]) -> Pack | None:
    """Pack a ``TensorDataset``, PyG ``Data`` or an ``InMemoryDataset``; ``None`` if samples must be fetched singly."""
    if type(dataset) is TensorDataset:
        return TensorPack(dataset.tensors)
    if is_graph_dataset(dataset) or (isinstance(dataset, list) and dataset and is_graph(dataset[0])):
        from lightning_fl.engine.batches.graph_packs import pack_graphs  # imports PyG

        return pack_graphs(dataset)
    return None


def plain_options(loader: DataLoader) -> dict[str, Any] | None:
    """Batch size, order and drop_last of a plain loader; ``None`` for any other."""
    if (
        isinstance(loader.dataset, IterableDataset)
        or type(loader).__iter__ is not DataLoader.__iter__
        or type(loader.batch_sampler) is not BatchSampler
        or not has_plain_batches(loader)
        or not has_plain_order(loader)
        or len(loader.sampler) != len(loader.dataset)  # type: ignore[arg-type]
        or loader.batch_size is None
    ):
        return None
    return {"batch_size": loader.batch_size, "shuffle": is_shuffled(loader), "drop_last": bool(loader.drop_last)}


def _in_turn(loaders: Sequence[ClientBatches | None]) -> ClientBatches | None:
    held = [loader for loader in loaders if loader is not None]
    return LoadersInTurn(held) if len(held) > 1 else next(iter(held), None)
