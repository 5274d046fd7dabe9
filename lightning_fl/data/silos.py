"""Data module of separate clients, each with its own data module, loaders, or data sets."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.lightning_types import AnyDataModule
from lightning_fl.core.seeding import run_seed
from lightning_fl.core.validation import Count, Fraction, Seed, checked
from lightning_fl.data import loaders
from lightning_fl.data.division import cut_splits
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.data.silo_kinds import Silo, is_splits
from lightning_fl.data.sizes import check_fractions

#: Data of one client that a recipe can express.
Given = AnyDataModule | Dataset | DataLoader


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
        eval_batch_size: samples in an evaluation step; ``None`` for each loader's value, or four times ``batch_size``.
        shuffle: reshuffle every round; ``None`` for each training loader's setting, or true.
        drop_last: leave out a last training batch that is not full; ``None`` for each loader's setting, or false.
        collate_fn: makes a batch of a list of samples, for data sets with samples that torch's and PyG's collation
            cannot handle.
        split: shares of train, val and test of a data set without splits, with sum 1.
        split_seed: seed of this division; ``None`` for the run's seed.
        num_samples: weight of each client in the averages, a list or name -> number; ``None`` for its number of
            training samples. Data without a length are read once before the first round to count them, an endless
            stream (``trainer.local_steps``) for the length of a turn.
    """

    #: Client i belongs to process ``i % world_size``, whatever its size.
    pinned: bool = True

    @checked
    def __init__(
        self,
        datamodules: list[Given] | dict[str, Given],
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
        self._silos = [Silo(name, given) for name, given in zip(self.client_names(), datamodules, strict=True)]
        if collate_fn is not None and not any(silo.has_datasets for silo in self._silos):
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
        self._loaders: dict[tuple[int, Split], Any] = {}

    def _samples_of_clients(self, given: list[int] | dict[str, int] | None) -> list[int] | None:
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
        return len(self.datamodules)

    def client_names(self) -> list[str]:
        return list(self.names or super().client_names())

    def given_samples(self, client: int) -> int | None:
        return None if self._samples is None else self._samples[client]

    def transfer_hooks(self, client: int) -> LightningDataModule:
        return self._silos[client].module or self

    def open(self, client: int, stage: str = "fit") -> LightningDataModule:
        """The client's data module (or this one) after ``prepare_data`` and ``setup(stage)``, each called once."""
        silo = self._silos[client]
        silo.call("prepare_data")
        silo.call("setup", stage, seed=(run_seed(), "silo", client))
        return silo.module or self

    def see_trainer(self, trainer: Any) -> None:
        super().see_trainer(trainer)
        for silo in self._silos:
            if silo.module is not None:
                silo.module.trainer = trainer

    def client_datamodule(self, client: int | None, stage: str) -> LightningDataModule:
        """The client's own data module, opened, if it has one; without a client the first one, unopened."""
        return self.transfer_hooks(0) if client is None else self.open(client, stage)

    def client_data(self, client: int, split: Split) -> Any:
        key, silo = (client, split), self._silos[client]
        if key not in self._loaders:
            if silo.undivided is not None and len(silo.undivided):
                self._divide(client)
            part = None
            if silo.has(split):
                self.open(client, "test" if split == "test" else "fit")
                part = self._with_settings(silo.part(split), silo.name, split)
            self._loaders[key] = part
        return self._loaders[key]

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        return self._digests(client) if self._silos[client].module is None else super().data_digests(client, stage)

    def _divide(self, client: int) -> None:
        silo = self._silos[client]
        seed, length = run_seed() if self.split_seed is None else self.split_seed, len(silo.undivided)
        parts = cut_splits(torch.arange(length), self.split, seed, client)
        silo.divide(parts)
        if not self._has_logged_cut:  # once, for all clients
            self._has_logged_cut = True
            counts = ", ".join(f"{len(part)} {split}" for split, part in parts.items())
            rank_zero_info(
                f"{silo.name}: {length} samples are divided at random into {counts}, and other data sets without splits"
                " alike. Set other shares by Silos(split=...), or give splits as a dict such as {'train': ..., 'test':"
                " ...}."
            )

    def _collated(self, dataset: Any, split: Split) -> DataLoader:
        return loaders.make_loader(dataset, collate_fn=self._collate or loaders.collate, **self.loader_options(split))

    def _with_settings(self, part: Any, name: str, split: Split) -> Any:
        """A client's data with the user's batch size, order and collation; unchanged if nothing is set."""
        if loaders.holds_several(part):
            made = tree_map(lambda one: self._collated(one, split) if loaders.is_dataset(one) else one, part)
            return self._with_settings(loaders.combined(made, split), name, split)
        if part is None or loaders.is_dataset(part):
            return part if part is None or self._collate is None else self._collated(part, split)
        training = split == "train"
        batch_size = self._batch_sizes[split]
        shuffle, drop_last = (self._given["shuffle"], self._given["drop_last"]) if training else (None, None)
        if batch_size is None and shuffle is None and drop_last is None:
            return part
        if isinstance(part, CombinedLoader):
            return CombinedLoader(
                tree_map(lambda one: self._with_settings(one, name, split), part.iterables), part._mode
            )
        if not isinstance(part, DataLoader) or isinstance(part.dataset, IterableDataset):
            source = part.dataset if isinstance(part, DataLoader) else part
            raise ConfigurationError(
                f"{name}: the {split} loader {'reads' if source is not part else 'is'} a {type(source).__name__}, which"
                " makes its own batches: leave out batch_size, eval_batch_size, shuffle and drop_last."
            )
        try:
            dataset = loaders.sampled_dataset(
                part, split, replace_order=shuffle is not None, replace_batches=batch_size is not None
            )
        except (ConfigurationError, DataError) as error:
            raise type(error)(f"{name}: {error}") from error
        return loaders.loader_like(
            part,
            dataset,
            batch_size=batch_size or part.batch_size or 1,
            shuffle=loaders.is_shuffled(part) and training if shuffle is None else shuffle,
            drop_last=part.drop_last if drop_last is None else drop_last,
        )

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "clients": self.client_names()}

    def teardown(self, stage: str | None = None) -> None:
        for silo in self._silos:
            silo.teardown(stage)
