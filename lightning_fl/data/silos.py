"""Data that are separate already: for each client a data module, loaders, or data sets of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.lightning_types import AnyDataModule, is_overridden
from lightning_fl.core.seeding import run_seed, seed_default_generators
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.graphs import is_graph
from lightning_fl.data.loaders import (
    Loader,
    as_loader,
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
from lightning_fl.data.module import SPLIT_NAMES, FederatedDataModule, Split, default_names
from lightning_fl.data.partition.sizes import check_fractions
from lightning_fl.data.shared import cut_splits

__all__ = ["Silos", "are_silos", "is_splits"]

#: What a client may bring, as far as a recipe can say it.
Silo = AnyDataModule | Dataset | DataLoader


def is_splits(value: object) -> bool:
    """Whether something is a dict of loaders or data sets by split, such as ``{"train": ..., "val": ...}``."""
    return isinstance(value, Mapping) and "train" in value and all(key in SPLIT_NAMES for key in value)


def are_silos(data: Sequence[Any]) -> bool:
    """Whether a list has an entry for each silo, rather than samples.

    Raises:
        ConfigurationError: it can be read as both.
    """

    def is_silo(part: Any) -> bool:
        given = isinstance(part, AnyDataModule | Dataset) or is_loader(part)
        # Others that have samples by number, such as those of Hugging Face; not arrays, which may be samples.
        own = is_dataset(part) and not isinstance(part, list | tuple) and not hasattr(part, "ndim")
        return given or own or (is_splits(part) and all(_holds_data(value) for value in part.values()))

    found = [is_silo(part) for part in data]
    if any(found) and not all(found):
        kinds = sorted({type(part).__name__ for part in data})
        raise ConfigurationError(
            f"data is a list of {', '.join(kinds)}: give one data module, loader or data set per silo, or samples"
            " alone."
        )
    if found and not found[0] and all(isinstance(part, list) for part in data):
        inner = [sample for part in data for sample in part]
        if inner and all(is_graph(sample) or isinstance(sample, tuple | dict) for sample in inner):
            return True
        raise ConfigurationError(
            "data is a list of lists, which may be samples or one list of samples per silo: give samples as tuples, or"
            " silos by their names, such as {'north': [...], 'south': [...]}."
        )
    return bool(found) and found[0]


def _holds_data(value: Any) -> bool:
    return is_loader(value) or is_dataset(value) or holds_several(value)


class Silos(FederatedDataModule):
    """Clients with data of their own, each opened only in the process that hosts the client.

    A client brings one of these:

    - a data module: its ``prepare_data`` and ``setup`` are called when its data are first asked for, in the process
      that asks, and its transfer hooks see the client's batches. Test data are opened only when they are asked for;
    - a loader, that is a ``DataLoader`` or any other iterable of batches: training data alone;
    - a data set with a length: cut into training, validation and test samples by ``split``; one without a length
      (``IterableDataset``) gives training data alone. A list is a data set, of samples;
    - a dict of the latter two by split, ``{"train": ..., "val": ..., "test": ...}`` ("validation" is "val", too); of
      each split it may have a list or dict of several, which are combined as Lightning does.

    A client without a loader for a split has no such data.

    Args:
        datamodules: what each client brings; a dict says the clients' names, too.
        names: the clients' names; ``None`` for a dict's, or numbers.
        batch_size: samples in a local training step; ``None`` for each loader's own, or 32 for a data set.
        eval_batch_size: samples in an evaluation step; ``None`` for each loader's own, or four times ``batch_size``
            for a data set.
        shuffle: a fresh order every round; ``None`` for what each training loader does, or true for a data set.
        drop_last: leave out a last training batch that is not full; ``None`` for what each training loader does, or
            false for a data set.
        collate_fn: makes a batch of a list of samples, for data sets whose samples torch's and PyG's own collation
            cannot put together.
        split: shares of train, val and test of a data set that comes without splits, with sum 1.
        split_seed: seed of this; ``None`` for the run's seed.
        num_samples: what each client counts for in the averages, a list or name -> number; ``None`` for its number of
            training samples. Data without a length are read once for it before the first round, an endless stream
            (``trainer.local_steps``) as far as a turn goes.

    Raises:
        ConfigurationError: if there is no client, one's data are of no kind that it may bring or occur twice, or an
            argument does not fit.
    """

    #: Client i lives in process ``i % world_size``, whatever its size.
    pinned: bool = True

    def __init__(
        self,
        datamodules: list[Silo] | dict[str, Silo],
        names: list[str] | None = None,
        *,
        batch_size: int | None = None,
        eval_batch_size: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        split_seed: int | None = None,
        num_samples: list[int] | dict[str, int] | None = None,
    ) -> None:
        super().__init__(
            batch_size=32 if batch_size is None else batch_size,
            eval_batch_size=eval_batch_size,
            shuffle=True if shuffle is None else shuffle,
            drop_last=bool(drop_last),
        )
        check_numbers(self, split=split, at_least=0, at_most=1)
        check_fractions(split)
        check_counts(self, split_seed=split_seed, at_least=0, at_most=2**64 - 1)
        if not isinstance(datamodules, Mapping | list | tuple):
            raise ConfigurationError(
                f"datamodules is a {type(datamodules).__name__}: give a list with one data module, loader or data set"
                " per client, or a dict of them by name. One data set is cut into clients by Partitioned."
            )
        if isinstance(datamodules, Mapping):
            if names is not None:
                raise ConfigurationError(f"names={names}: datamodules is a dict, which has the names already.")
            if is_splits(datamodules):
                raise ConfigurationError(
                    f"datamodules is a dict of {', '.join(datamodules)}, which are splits: give the clients by name,"
                    " such as {'north': {'train': ..., 'val': ...}, 'south': ...}."
                )
            names = [str(name) for name in datamodules]
            datamodules = list(datamodules.values())
        if not datamodules:
            raise ConfigurationError("datamodules=[]: give one data module, loader or data set per client.")
        if len({id(datamodule) for datamodule in datamodules}) < len(datamodules):
            raise ConfigurationError(
                "datamodules has one object twice: make a data module, loader or data set for each client."
            )
        if names is not None and (len(names) != len(datamodules) or len(set(names)) < len(names)):
            raise ConfigurationError(
                f"names={names} for {len(datamodules)} clients: give one name for each, all different."
            )
        self.datamodules: list[Any] = list(datamodules)
        self.names = names
        for name, silo in zip(self.client_names(), datamodules, strict=True):
            _check_silo(name, silo)
        if collate_fn is not None and not any(map(_has_dataset, datamodules)):
            raise ConfigurationError(
                "collate_fn is for data sets, and every client brings a data module or loaders, which collate as they"
                " are told: give it to those."
            )
        self.split = tuple(split)
        self.split_seed = split_seed
        self._samples = self._check_samples(num_samples)
        self._collate = collate_fn
        self._given: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last}
        self._batch_sizes: dict[str, int | None] = {
            "train": batch_size,
            "val": eval_batch_size or batch_size,
            "test": eval_batch_size or batch_size,
        }
        self._told_cut = False
        self._stages: set[tuple[int, str]] = set()
        self._loaders: dict[tuple[int, Split], Any] = {}
        self._parts: dict[int, Mapping[Split, Any]] = {}

    def _check_samples(self, given: list[int] | dict[str, int] | None) -> list[int] | None:
        if given is None:
            return None
        check_counts(self, num_samples=given)
        names = self.client_names()
        fits = sorted(given) == sorted(names) if isinstance(given, Mapping) else len(given) == len(names)
        samples: list[Any] = [given[name] for name in names] if fits and isinstance(given, Mapping) else list(given)
        if not fits or not all(isinstance(number, int) and number > 0 for number in samples):
            raise ConfigurationError(
                f"num_samples={given}: give a whole number above 0 for each of the {len(names)} clients"
                f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})."
            )
        return samples

    @property
    def num_clients(self) -> int:
        """One for each that brings data."""
        return len(self.datamodules)

    def client_names(self) -> list[str]:
        """The names given, else numbers."""
        return list(self.names or super().client_names())

    def given_samples(self, client: int) -> int | None:
        """The number that was given for the client."""
        return None if self._samples is None else self._samples[client]

    def transfer_hooks(self, client: int) -> LightningDataModule:
        """The client's own data module, if it brings one."""
        silo = self.datamodules[client]
        return silo if isinstance(silo, AnyDataModule) else self

    def open(self, client: int, stage: str = "fit") -> LightningDataModule:
        """The client's data module, made ready: ``prepare_data`` and ``setup(stage)``, each called once.

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
        """Make the trainer known to every silo's data module."""
        super().see_trainer(trainer)
        for silo in self.datamodules:
            if isinstance(silo, AnyDataModule):
                silo.trainer = trainer

    def client_datamodule(self, client: int | None, stage: str) -> LightningDataModule:
        """The client's own, made ready, where it has one; without a client the first as it is."""
        silo = self.datamodules[client or 0]
        if not isinstance(silo, AnyDataModule):
            return self
        return silo if client is None else self.open(client, stage)

    def _call(self, client: int, hook: str, *arguments: Any) -> None:
        """A hook of a client's data module, whose errors name the client."""
        datamodule = self.datamodules[client]
        try:
            getattr(datamodule, hook)(*arguments)
        except Exception as error:
            error.add_note(f"This came from {type(datamodule).__name__}.{hook} of {self.client_names()[client]}.")
            raise

    def client_data(self, client: int, split: Split) -> Any:
        """The client's own loader or data set, made once and kept."""
        key = (client, split)
        if key not in self._loaders:
            silo = self.datamodules[client]
            if not isinstance(silo, AnyDataModule):
                self._loaders[key] = self._held(client, split)
            elif is_overridden(f"{split}_dataloader", silo):
                datamodule = self.open(client, "test" if split == "test" else "fit")
                self._loaders[key] = self._settle(find_loader(datamodule, split), client, split)
            else:
                self._loaders[key] = None
        return self._loaders[key]

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """Of all splits, unless a data module would have to open them."""
        if isinstance(self.datamodules[client], AnyDataModule):
            return super().data_digests(client, stage)
        return self._digests(client)

    def _held(self, client: int, split: Split) -> Any:
        """What a client without a data module has in a split."""
        if client not in self._parts:
            silo = self.datamodules[client]
            by_name = silo if is_splits(silo) else self._cut(client, silo)
            self._parts[client] = {SPLIT_NAMES[name]: data for name, data in by_name.items()}
        data = self._parts[client].get(split)
        if data is None or (is_dataset(data) and not holds_several(data)):
            return data if data is None or self._collate is None else self._collated(data, split)
        name = (self.names or default_names(self.num_clients))[client]
        source = f"{name}: the {split} data are"
        if holds_several(data):
            made = _map_parts(data, lambda part: self._collated(part, split) if is_dataset(part) else part)
            return self._settle(combined(made, split), client, split)
        return self._settle(as_loader(data, split, source), client, split)

    def _cut(self, client: int, silo: Any) -> dict[str, Any]:
        """The splits of a client that brings one loader or data set."""
        if is_loader(silo) or isinstance(silo, IterableDataset) or len(silo) == 0:
            return {"train": silo}
        seed = run_seed() if self.split_seed is None else self.split_seed
        parts = cut_splits(torch.arange(len(silo)), self.split, seed, client)
        if not self._told_cut:  # of the first client that is opened, for all
            self._told_cut = True
            counts = ", ".join(f"{len(part)} {split}" for split, part in parts.items())
            rank_zero_info(
                f"{self.client_names()[client]}: its {len(silo)} samples are cut at random into {counts}, and so are"
                " other data sets without splits. Silos(split=...) cuts otherwise; a dict such as {'train': ...,"
                " 'test': ...} brings splits."
            )
        return {split: Subset(silo, part.tolist()) for split, part in parts.items() if len(part)}

    def _collated(self, dataset: Any, split: Split) -> DataLoader:
        """A loader over a data set, with the collation that was given."""
        training = split == "train"
        return make_loader(
            dataset,
            batch_size=self.batch_size if training else self.eval_batch_size,
            shuffle=training and self.shuffle,
            drop_last=training and self.drop_last,
            collate_fn=self._collate or collate,
        )

    def _settle(self, loader: Loader | None, client: int, split: Split) -> Loader | None:
        """The loader with the batch size and order that were given; the loader itself where nothing was."""
        training = split == "train"
        batch_size = self._batch_sizes[split]
        shuffle, drop_last = (self._given["shuffle"], self._given["drop_last"]) if training else (None, None)
        if loader is None or (batch_size is None and shuffle is None and drop_last is None):
            return loader
        if isinstance(loader, CombinedLoader):
            parts = _map_parts(loader.iterables, lambda part: self._settle_part(part, client, split))
            return CombinedLoader(parts, loader._mode)
        return self._settle_part(loader, client, split)

    def _settle_part(self, loader: Any, client: int, split: Split) -> DataLoader:
        training = split == "train"
        batch_size = self._batch_sizes[split]
        shuffle, drop_last = (self._given["shuffle"], self._given["drop_last"]) if training else (None, None)
        dataset = loader.dataset if isinstance(loader, DataLoader) else loader
        if not isinstance(loader, DataLoader) or isinstance(dataset, IterableDataset):
            raise ConfigurationError(
                f"{self.client_names()[client]}: the {split} loader {'reads' if dataset is not loader else 'is'} a"
                f" {type(dataset).__name__}, which makes its batches itself: leave out batch_size, eval_batch_size,"
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
        """Source and the clients' names; nothing is opened."""
        return {**super().describe(), "clients": self.client_names()}

    def teardown(self, stage: str | None = None) -> None:
        """Of every data module that was opened."""
        for client in sorted({client for client, _ in self._stages}):
            self.datamodules[client].teardown(stage)


def _map_parts(parts: Any, change: Callable[[Any], Any]) -> Any:
    """The same list, tuple or dict of others, or the one part there is."""
    if isinstance(parts, Mapping):
        return {name: _map_parts(part, change) for name, part in parts.items()}
    if isinstance(parts, list | tuple):
        return [_map_parts(part, change) for part in parts]
    return change(parts)


def _has_dataset(silo: Any) -> bool:
    """Whether a client brings a data set that has to be put into batches."""
    if isinstance(silo, AnyDataModule):
        return False
    if isinstance(silo, Mapping):
        return any(map(_has_dataset, silo.values()))
    if holds_several(silo):
        return any(map(_has_dataset, silo))
    return is_dataset(silo)


def _check_silo(name: str, silo: Any) -> None:
    """Refuse what cannot be one client's data."""
    if isinstance(silo, FederatedDataModule):
        raise ConfigurationError(
            f"{type(silo).__name__} has clients of its own: give ordinary data modules, one per client."
        )
    if isinstance(silo, AnyDataModule):
        return
    by_split = ", such as {'train': ..., 'val': ..., 'test': ...}"
    if isinstance(silo, Mapping):
        if not is_splits(silo):
            raise ConfigurationError(
                f"{name}: the data are a dict of {', '.join(map(str, silo)) or 'nothing'}: give it by split{by_split}."
            )
        for split, data in silo.items():
            _check_data(f"{name}: the {split} data are", data)
    elif holds_several(silo):
        raise ConfigurationError(
            f"{name}: the data are a {type(silo).__name__} of {len(silo)} loaders or data sets: say what each is for by"
            f" a dict{by_split}; several of one split go into a list there."
        )
    else:
        _check_data(f"{name}: the data are", silo)


def _check_data(source: str, data: Any) -> None:
    """Refuse what is neither a loader, nor a data set, nor several of these."""
    if data is None or holds_several(data) or is_dataset(data):
        return
    if not is_loader(data):
        raise ConfigurationError(
            f"{source} a {type(data).__name__}: give a LightningDataModule, a DataLoader or another iterable of"
            " batches, or a data set."
        )
    as_loader(data, "train", source)
