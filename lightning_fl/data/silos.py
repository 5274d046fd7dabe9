"""Data module of separate clients, each with its own data module, loaders, or data sets."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.lightning_types import AnyDataModule, is_overridden
from lightning_fl.core.seeding import run_seed, seed_default_generators
from lightning_fl.core.validation import Count, Fraction, Seed, checked
from lightning_fl.data.loaders import (
    collate,
    combined,
    find_loader,
    holds_several,
    is_dataset,
    is_loader,
    is_shuffled,
    loader_like,
    make_loader,
    sampled_dataset,
)
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.data.shared import cut_splits
from lightning_fl.data.silo_kinds import as_silo, is_splits
from lightning_fl.data.sizes import check_fractions

__all__ = ["Silos"]

#: Data of one client that a recipe can express.
Silo = AnyDataModule | Dataset | DataLoader


class Silos(FederatedDataModule):
    """Clients with separate data, each opened only in the process that hosts the client.

    A client's data are one of these:

    - a data module: ``prepare_data`` and ``setup`` are called when its data are first needed, in the hosting process,
      and its transfer hooks see the client's batches. Test data are opened only when needed;
    - a loader, that is a ``DataLoader`` or any other iterable of batches: training data only;
    - a data set with a length: cut into training, validation and test samples by ``split``; without a length
      (``IterableDataset``), training data only. A list is a data set of samples;
    - a dict of the latter two by split, ``{"train": ..., "val": ..., "test": ...}`` (or "validation"). A split may be a
      list or dict of several, combined as in Lightning.

    Args:
        datamodules: data of each client; the keys of a dict are the clients' names.
        names: the clients' names; ``None`` for a dict's, or numbers.
        batch_size: samples in a local training step; ``None`` for each loader's value, or 32 for a data set.
        eval_batch_size: samples in an evaluation step; ``None`` for each loader's value, or four times ``batch_size``
            for a data set.
        shuffle: reshuffle every round; ``None`` for each training loader's setting, or true for a data set.
        drop_last: leave out a last training batch that is not full; ``None`` for each training loader's setting, or
            false for a data set.
        collate_fn: makes a batch of a list of samples, for data sets with samples that torch's and PyG's collation
            cannot handle.
        split: shares of train, val and test of a data set without splits, with sum 1.
        split_seed: seed of this division; ``None`` for the run's seed.
        num_samples: weight of each client in the averages, a list or name -> number; ``None`` for its number of
            training samples. Data without a length are read once before the first round to count them, an endless
            stream (``trainer.local_steps``) for the length of a turn.

    Raises:
        ConfigurationError: there is no client, a client's data are of the wrong kind or occur twice, or an argument
            does not fit.
    """

    #: Client i belongs to process ``i % world_size``, whatever its size.
    pinned: bool = True

    @checked
    def __init__(
        self,
        datamodules: list[Silo] | dict[str, Silo],
        names: list[str] | None = None,
        *,
        batch_size: Count | None = None,
        eval_batch_size: Count | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        split: tuple[Fraction, Fraction, Fraction] = (0.8, 0.1, 0.1),
        split_seed: Seed | None = None,
        num_samples: list[Count] | dict[str, Count] | None = None,
    ) -> None:
        super().__init__(
            batch_size=32 if batch_size is None else batch_size,
            eval_batch_size=eval_batch_size,
            shuffle=True if shuffle is None else shuffle,
            drop_last=bool(drop_last),
        )
        check_fractions(split)
        if not isinstance(datamodules, Mapping | list | tuple):
            raise ConfigurationError(
                f"datamodules is a {type(datamodules).__name__}: give a list with one data module, loader or data set"
                " per client, or a dict of them by name. Use Partitioned to divide one data set among clients."
            )
        if isinstance(datamodules, Mapping):
            if names is not None:
                raise ConfigurationError(f"names={names}: leave them out, datamodules is a dict with names.")
            if is_splits(datamodules):
                raise ConfigurationError(
                    f"datamodules is a dict of the splits {', '.join(datamodules)}: give clients by name, such as"
                    " {'north': {'train': ..., 'val': ...}, 'south': ...}."
                )
            names = [str(name) for name in datamodules]
            datamodules = list(datamodules.values())
        if not datamodules:
            raise ConfigurationError("datamodules=[]: give one data module, loader or data set per client.")
        if len({id(datamodule) for datamodule in datamodules}) < len(datamodules):
            raise ConfigurationError(
                "datamodules has an object twice: make a separate data module, loader or data set for each client."
            )
        if names is not None and (len(names) != len(datamodules) or len(set(names)) < len(names)):
            raise ConfigurationError(
                f"names={names} for {len(datamodules)} clients: give one different name per client."
            )
        self.datamodules: list[Any] = list(datamodules)
        self.names = names
        found = [as_silo(name, given) for name, given in zip(self.client_names(), datamodules, strict=True)]
        self._modules = {client: silo for client, silo in enumerate(found) if isinstance(silo, AnyDataModule)}
        self._parts = {client: silo for client, silo in enumerate(found) if isinstance(silo, dict)}
        held = [data for parts in self._parts.values() for data in parts.values()]
        flat = [part for data in held for part in (tree_leaves(data) if holds_several(data) else [data])]
        if collate_fn is not None and not any(map(is_dataset, flat)):
            raise ConfigurationError(
                "collate_fn is for data sets, but every client has a data module or loaders: give it to those."
            )
        self.split = tuple(split)
        self.split_seed = split_seed
        self._samples = self._samples_of_clients(num_samples)
        self._collate = collate_fn
        self._given: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last}
        self._batch_sizes: dict[str, int | None] = {
            "train": batch_size,
            "val": eval_batch_size or batch_size,
            "test": eval_batch_size or batch_size,
        }
        self._has_logged_cut = False
        self._stages: set[tuple[int, str]] = set()
        self._loaders: dict[tuple[int, Split], Any] = {}

    def _samples_of_clients(self, given: list[int] | dict[str, int] | None) -> list[int] | None:
        """``num_samples`` in the order of the clients."""
        if given is None:
            return None
        names = self.client_names()
        fits = sorted(given) == sorted(names) if isinstance(given, Mapping) else len(given) == len(names)
        if not fits:
            raise ConfigurationError(
                f"num_samples={given}: must have one number for each of the {len(names)} clients ({listed(names, 3)})."
            )
        return [given[name] for name in names] if isinstance(given, Mapping) else list(given)

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return len(self.datamodules)

    def client_names(self) -> list[str]:
        """The given names, else numbers."""
        return list(self.names or super().client_names())

    def given_samples(self, client: int) -> int | None:
        """The client's entry in ``num_samples``."""
        return None if self._samples is None else self._samples[client]

    def transfer_hooks(self, client: int) -> LightningDataModule:
        """The client's own data module, if it has one."""
        return self._modules.get(client, self)

    def open(self, client: int, stage: str = "fit") -> LightningDataModule:
        """The client's data module after ``prepare_data`` and ``setup(stage)``, each called once.

        Random splits that a data module draws in ``setup`` depend on the run's seed and the client only, and are the
        same for every stage.
        """
        datamodule = self.datamodules[client]
        if (client, "prepare") not in self._stages:
            self._call(client, "prepare_data")
            self._stages.add((client, "prepare"))
        if (client, stage) not in self._stages:
            with isolate_rng(include_cuda=False):
                seed_default_generators(run_seed(), "silo", client)
                self._call(client, "setup", stage)
            self._stages.add((client, stage))
        return datamodule

    def see_trainer(self, trainer: Any) -> None:
        """Set the trainer here and in every client's data module."""
        super().see_trainer(trainer)
        for module in self._modules.values():
            module.trainer = trainer

    def client_datamodule(self, client: int | None, stage: str) -> LightningDataModule:
        """The client's own data module, opened, if it has one; without a client the first one, unopened."""
        if (client or 0) not in self._modules:
            return self
        return self._modules[0] if client is None else self.open(client, stage)

    def _call(self, client: int, hook: str, *arguments: Any) -> None:
        """Call a hook of a client's data module; errors name the client."""
        datamodule = self.datamodules[client]
        try:
            getattr(datamodule, hook)(*arguments)
        except Exception as error:
            error.add_note(f"This came from {type(datamodule).__name__}.{hook} of {self.client_names()[client]}.")
            raise

    def client_data(self, client: int, split: Split) -> Any:
        """The client's own loader or data set, made once."""
        key = (client, split)
        if key not in self._loaders:
            if client in self._parts:
                self._loaders[key] = self._held(client, split)
            elif is_overridden(f"{split}_dataloader", self._modules[client]):
                datamodule = self.open(client, "test" if split == "test" else "fit")
                self._loaders[key] = self._with_settings(find_loader(datamodule, split), client, split)
            else:
                self._loaders[key] = None
        return self._loaders[key]

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """Digests of all splits, unless a data module would have to open them."""
        return self._digests(client) if client in self._parts else super().data_digests(client, stage)

    def _held(self, client: int, split: Split) -> Any:
        """The data of a client without a data module in a split."""
        if self.datamodules[client] is self._parts[client].get("train"):  # one data set, not yet cut
            self._parts[client] = self._cut(client, self.datamodules[client])
        data = self._parts[client].get(split)
        if data is None or (is_dataset(data) and not holds_several(data)):
            return data if data is None or self._collate is None else self._collated(data, split)
        if holds_several(data):
            made = tree_map(lambda part: self._collated(part, split) if is_dataset(part) else part, data)
            data = combined(made, split)
        return self._with_settings(data, client, split)

    def _cut(self, client: int, silo: Any) -> dict[Split, Any]:
        """Divide a client's data set; a loader or stream is training data only."""
        if is_loader(silo) or isinstance(silo, IterableDataset) or len(silo) == 0:
            return {"train": silo}
        seed = run_seed() if self.split_seed is None else self.split_seed
        parts = cut_splits(torch.arange(len(silo)), self.split, seed, client)
        if not self._has_logged_cut:  # once, for all clients
            self._has_logged_cut = True
            counts = ", ".join(f"{len(part)} {split}" for split, part in parts.items())
            rank_zero_info(
                f"{self.client_names()[client]}: {len(silo)} samples are divided at random into {counts}, and other"
                " data sets without splits alike. Set other shares by Silos(split=...), or give splits as a dict such"
                " as {'train': ..., 'test': ...}."
            )
        return {split: Subset(silo, part.tolist()) for split, part in parts.items() if len(part)}

    def _collated(self, dataset: Any, split: Split) -> DataLoader:
        """A loader over a data set, with ``collate_fn``."""
        training = split == "train"
        return make_loader(
            dataset,
            batch_size=self.batch_size if training else self.eval_batch_size,
            shuffle=training and self.shuffle,
            drop_last=training and self.drop_last,
            collate_fn=self._collate or collate,
        )

    def _with_settings(self, loader: Any, client: int, split: Split) -> Any:
        """The loader with the user's batch size and order; the loader itself if nothing is set."""
        training = split == "train"
        batch_size = self._batch_sizes[split]
        shuffle, drop_last = (self._given["shuffle"], self._given["drop_last"]) if training else (None, None)
        if loader is None or (batch_size is None and shuffle is None and drop_last is None):
            return loader
        if isinstance(loader, CombinedLoader):
            parts = tree_map(lambda part: self._with_settings(part, client, split), loader.iterables)
            return CombinedLoader(parts, loader._mode)
        dataset = loader.dataset if isinstance(loader, DataLoader) else loader
        if not isinstance(loader, DataLoader) or isinstance(dataset, IterableDataset):
            raise ConfigurationError(
                f"{self.client_names()[client]}: the {split} loader {'reads' if dataset is not loader else 'is'} a"
                f" {type(dataset).__name__}, which makes its own batches: leave out batch_size, eval_batch_size,"
                " shuffle and drop_last."
            )
        try:
            dataset = sampled_dataset(
                loader, split, replace_order=shuffle is not None, replace_batches=batch_size is not None
            )
        except (ConfigurationError, DataError) as error:
            raise type(error)(f"{self.client_names()[client]}: {error}") from error
        return loader_like(
            loader,
            dataset,
            batch_size=batch_size or loader.batch_size or 1,
            shuffle=is_shuffled(loader) and training if shuffle is None else shuffle,
            drop_last=loader.drop_last if drop_last is None else drop_last,
        )

    def describe(self) -> Mapping[str, Any]:
        """Source and the clients' names, without opening any data."""
        return {**super().describe(), "clients": self.client_names()}

    def teardown(self, stage: str | None = None) -> None:
        """Call ``teardown`` of every opened data module."""
        for client in sorted({client for client, _ in self._stages}):
            self.datamodules[client].teardown(stage)
