"""Data module of separate clients, each with its own data module, loaders, or data sets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.lightning_types import AnyDataModule, is_overridden
from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.core.validation import Count, Fraction, Seed, checked
from lightning_fl.data import loaders
from lightning_fl.data.division.division import cut_splits
from lightning_fl.data.graphs import is_graph
from lightning_fl.data.loaders import as_loader, find_loader, holds_several, is_dataset, is_loader
from lightning_fl.data.module import SPLIT_NAMES, FederatedDataModule, Split
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
        eval_batch_size: samples in evaluation; ``None``: 4 times ``batch_size``; loaders: ``batch_size`` or their own.
        shuffle: reshuffle every round; ``None`` for each training loader's setting, or true.
        drop_last: leave out a last training batch that is not full; ``None`` for each loader's setting, or false.
        collate_fn: makes a batch of a list of samples, where torch's and PyG's collation cannot.
        split: shares of train, val and test of a data set without splits, with sum 1.
        split_seed: seed of this division; ``None`` for the run's seed.
        num_samples: weight of each client in the averages, a list or name -> number; ``None`` for its number of
            training samples. Data without a length are read once before the first round to count them.
    """

    #: Client i belongs to process ``i % world_size``, whatever its size.
    pinned = True

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
            raise ConfigurationError(f"datamodules is a {type(datamodules).__name__}: give a list, or use Partitioned.")
        if isinstance(datamodules, Mapping):
            if names is not None:
                raise ConfigurationError(f"names={names}: leave them out, datamodules is a dict with names.")
            if is_splits(datamodules):
                splits = ", ".join(datamodules)
                advice = "give clients by name, such as {'north': {'train': ..., 'val': ...}}"
                raise ConfigurationError(f"datamodules is a dict of the splits {splits}: {advice}.")
            names = [str(name) for name in datamodules]
            datamodules = list(datamodules.values())
        if not datamodules:
            raise ConfigurationError("datamodules=[]: give one data module, loader or data set per client.")
        if len({id(datamodule) for datamodule in datamodules}) < len(datamodules):
            raise ConfigurationError("datamodules has an object twice: make a separate one for each client.")
        if names is not None and (len(names) != len(datamodules) or len(set(names)) < len(names)):
            raise ConfigurationError(f"names={names} for {len(datamodules)} clients: give each a different name.")
        self.datamodules: list[Any] = list(datamodules)
        self.names = names
        self._silos = [Silo(name, given) for name, given in zip(self.client_names(), datamodules, strict=True)]
        if collate_fn is not None and not any(silo.has_datasets for silo in self._silos):
            raise ConfigurationError("collate_fn is for data sets, but every client has loaders: give it to those.")
        self.split = tuple(split)
        self.split_seed = split_seed
        self._samples = self._samples_of_clients(num_samples)
        self._collate = collate_fn
        evaluation = (eval_batch_size or batch_size, None, None)
        #: Batch size, shuffle and drop_last that the user set, by split.
        self._given = {"train": (batch_size, shuffle, drop_last), "val": evaluation, "test": evaluation}
        self._has_logged_cut = False
        self._setup_seed: int | None = None
        self._loaders: dict[tuple[int, Split], Any] = {}

    def _samples_of_clients(self, given: list[int] | dict[str, int] | None) -> list[int] | None:
        if given is None:
            return None
        names = self.client_names()
        if not (sorted(given) == sorted(names) if isinstance(given, Mapping) else len(given) == len(names)):
            raise ConfigurationError(f"num_samples={given}: must have one number for each of the {len(names)} clients.")
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
        if self._setup_seed is None:  # one for all runs, so that a random split drawn in each is the same
            self._setup_seed = self.seed_of(None)
        silo.call("setup", stage, seed=(self._setup_seed, "silo", client))
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
        seed, length = self.seed_of(self.split_seed), len(silo.undivided)
        parts = cut_splits(torch.arange(length), self.split, seed, client)
        silo.divide(parts)
        if not self._has_logged_cut:  # once, for all clients
            self._has_logged_cut = True
            counts = ", ".join(f"{len(part)} {split}" for split, part in parts.items())
            what = f"{silo.name}: {length} samples are divided at random into {counts}"
            rank_zero_info(f"{what}, as are other clients' data. Set other shares by Silos(split=...), or give splits.")

    def _collated(self, dataset: Any, split: Split) -> DataLoader:
        return loaders.make_loader(dataset, collate_fn=self._collate or loaders.collate, **self.loader_options(split))

    def _with_settings(self, part: Any, name: str, split: Split) -> Any:
        """A client's data with the user's batch size, order and collation; unchanged if nothing is set."""
        if loaders.holds_several(part):
            parts = tree_map(lambda one: self._collated(one, split) if loaders.is_dataset(one) else one, part)
            return self._with_settings(loaders.combined(parts, split), name, split)
        if part is None or loaders.is_dataset(part):
            return part if part is None or self._collate is None else self._collated(part, split)
        batch_size, shuffle, drop_last = self._given[split]
        if batch_size is None and shuffle is None and drop_last is None:
            return part
        if isinstance(part, CombinedLoader):
            return CombinedLoader(
                tree_map(lambda one: self._with_settings(one, name, split), part.iterables), part._mode
            )
        if not isinstance(part, DataLoader) or isinstance(part.dataset, IterableDataset):
            kind = type(part.dataset if isinstance(part, DataLoader) else part).__name__
            what = f"{name}: the {split} loader reads a {kind}, which makes its own batches"
            raise ConfigurationError(f"{what}: leave out batch_size, eval_batch_size, shuffle and drop_last.")
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
            shuffle=loaders.is_shuffled(part) and split == "train" if shuffle is None else shuffle,
            drop_last=part.drop_last if drop_last is None else drop_last,
        )

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "clients": self.client_names()}

    def teardown(self, stage: str | None = None) -> None:
        for silo in self._silos:
            silo.teardown(stage)
        self._loaders = {key: part for key, part in self._loaders.items() if self._silos[key[0]].module is None}


def is_splits(value: object) -> bool:
    """Whether a value is a dict of loaders or data sets by split, such as ``{"train": ..., "val": ...}``."""
    return isinstance(value, Mapping) and "train" in value and all(key in SPLIT_NAMES for key in value)


def are_silos(data: Sequence[Any]) -> bool:
    """Whether a list holds silos rather than samples; ``ConfigurationError`` if both are possible."""

    def is_silo(part: Any) -> bool:
        given = isinstance(part, AnyDataModule | Dataset) or is_loader(part)
        # Others with samples by number, such as those of Hugging Face; not arrays, which may be samples.
        own = is_dataset(part) and not isinstance(part, list | tuple) and not hasattr(part, "ndim")
        if given or own or not is_splits(part):
            return given or own
        return all(is_loader(one) or is_dataset(one) or holds_several(one) for one in part.values())

    found = [is_silo(part) for part in data]
    if any(found) and not all(found):
        kinds = ", ".join(sorted({type(part).__name__ for part in data}))
        raise ConfigurationError(f"data is a list of {kinds}: give a module, loader or data set per silo, or samples.")
    if found and not found[0] and all(isinstance(part, list) for part in data):
        inner = [sample for part in data for sample in part]
        if inner and all(is_graph(sample) or isinstance(sample, tuple | dict) for sample in inner):
            return True
        raise ConfigurationError("data is a list of lists: give samples as tuples, or silos as a dict by name.")
    return bool(found) and found[0]


class Silo:
    """One client's data in one form: a data module, or by split a data set, a loader, several of these, or none.

    ``module`` is the data module, whose hooks see the batches; ``undivided`` a data set with a length that has no
    splits yet; ``has_datasets`` tells whether batches are made from a data set here, not by a loader.
    """

    def __init__(self, name: str, given: Any) -> None:
        if isinstance(given, FederatedDataModule):
            raise ConfigurationError(f"{name}: {type(given).__name__} has clients itself: use it directly.")
        self.name = name
        self.module: LightningDataModule | None = given if isinstance(given, AnyDataModule) else None
        self.has_datasets = False
        self._called: set[str] = set()
        self._given = {} if self.module is not None else self._by_split(given)
        whole = not isinstance(given, Mapping) and is_dataset(given) and not isinstance(given, IterableDataset)
        self.undivided: Any = given if whole else None

    def _by_split(self, given: Any) -> dict[Split, Any]:
        if holds_several(given) if not isinstance(given, Mapping) else not is_splits(given):
            names = f" of {', '.join(map(str, given))}" if isinstance(given, Mapping) else f" of {len(given)}"
            what = f"{self.name}: the data are a {type(given).__name__}{names}"
            raise ConfigurationError(f"{what}: give a dict by split, such as {{'train': ..., 'val': ...}}.")
        parts = given if isinstance(given, Mapping) else {"train": given}
        return {SPLIT_NAMES[key]: self._checked(SPLIT_NAMES[key], part) for key, part in parts.items()}

    def _checked(self, split: Split, part: Any) -> Any:
        self.has_datasets |= any(map(is_dataset, tree_leaves(part) if holds_several(part) else [part]))
        if part is None or holds_several(part) or is_dataset(part):
            return part
        source = f"{self.name}: the {split} data are"
        if is_loader(part):
            return as_loader(part, split, source)
        raise ConfigurationError(f"{source} a {type(part).__name__}: give a data module, batches, or a data set.")

    def divide(self, parts: Mapping[Split, Tensor]) -> None:
        self._given = {split: Subset(self.undivided, part.tolist()) for split, part in parts.items() if len(part)}
        self.undivided = None

    def call(self, hook: str, *arguments: Any, seed: tuple[int | str, ...] = ()) -> None:
        """Call ``prepare_data`` or ``setup`` of the data module, once for each argument; errors name the owner.

        Random splits that a data module draws in ``setup`` depend on the seed only, and are the same for every stage.
        """
        if self.module is None or (key := " ".join((hook, *arguments))) in self._called:
            return
        try:
            with isolate_rng(include_cuda=False):
                if seed:
                    seed_default_generators(*seed)  # type: ignore[arg-type]
                getattr(self.module, hook)(*arguments)
        except Exception as error:
            error.add_note(f"This came from {type(self.module).__name__}.{hook} of {self.name}.")
            raise
        self._called.add(key)

    def has(self, split: Split) -> bool:
        """Whether there may be data in a split; nothing is opened."""
        if self.module is None:
            return self._given.get(split) is not None
        return is_overridden(f"{split}_dataloader", self.module)

    def part(self, split: Split) -> Any:
        return self._given.get(split) if self.module is None else find_loader(self.module, split)

    def teardown(self, stage: str | None) -> None:
        """Tear the data module down; the next run sets it up again."""
        if self.module is not None and self._called - {"prepare_data"}:
            self.module.teardown(stage)  # type: ignore[arg-type]
            self._called &= {"prepare_data"}
