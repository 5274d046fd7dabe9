"""One data set, or the data of an ordinary ``LightningDataModule``, shared out among simulated clients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.lightning_types import AnyDataModule, is_overridden
from lightning_fl.core.seeding import run_seed, seed_default_generators
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.division import Division, DivisionSettings, divide_clients
from lightning_fl.data.loaders import (
    divisible_loader,
    has_plain_batches,
    is_shuffled,
    loader_like,
    make_loader,
    sampled_dataset,
)
from lightning_fl.data.module import BATCH_HOOKS, SPLITS, FederatedDataModule, Split
from lightning_fl.data.partition import Partitioner
from lightning_fl.data.partition.partitioner import sample_rows
from lightning_fl.data.partition.sizes import check_fractions
from lightning_fl.data.shared import pooled_indices, warn_of_missing_parts

__all__ = ["Partitioned"]


class Partitioned(FederatedDataModule):
    """Clients made from one data set by a partitioner; each client's samples are then split inside the client.

    A data module's own validation and test data are shared out along with its training data; a split that it lacks is
    cut from each client's training samples. Clients hold ``Subset`` objects of the shared data sets, so data are in
    memory once. Where the data module's loader collates in its own way or has workers, clients get such a loader.

    Args:
        data: a data module, or a data set with a length (a list of samples will do).
        partitioner: who gets which samples.
        split: shares of train, val and test inside a client, with sum 1. Of these, a data module uses those it lacks
            a loader for, in proportion.
        split_seed: seed of the partition and of the splits; ``None`` for the run's seed.
        division: by what a client's samples are divided, one of :mod:`lightning_fl.data.division`; ``None`` for at
            random.
        folds: K for K-fold cross-validation inside every client; see
            :class:`~lightning_fl.data.shared.SharedDataModule`.
        fold: which fold, 0..K-1.
        batch_size: samples in a local training step; ``None`` for the training loader's own, or 32 for a data set.
        eval_batch_size: samples in an evaluation step; ``None`` for the evaluation loader's own, or four
            times ``batch_size``.
        shuffle: a fresh order every round; ``None`` for what the training loader does, or true for a data set.
        drop_last: leave out a last training batch that is not full; ``None`` for what the training loader does, or
            false for a data set.
        collate_fn: makes a batch of a list of samples, for a data set whose samples torch's and PyG's own collation
            cannot put together.

    Raises:
        ConfigurationError: if an argument is out of range, or the data module's loaders cannot be divided.
        DataError: if the data are too few or cannot be partitioned, or a client has no training samples.
    """

    def __init__(
        self,
        data: AnyDataModule | Dataset,
        partitioner: Partitioner,
        *,
        split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        split_seed: int | None = None,
        division: Division | None = None,
        folds: int | None = None,
        fold: int = 0,
        batch_size: int | None = None,
        eval_batch_size: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
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
        self._settings = DivisionSettings(division, tuple(split), folds, fold)
        self._settings.check(self)
        if partitioner.exact and not self._settings.is_default:
            raise ConfigurationError(
                f"{type(partitioner).__name__} gives every client's parts as they are: leave out division and folds."
            )
        if isinstance(data, FederatedDataModule):
            raise ConfigurationError(f"data is a {type(data).__name__}, which has clients already: use it as it is.")
        if collate_fn is not None and isinstance(data, AnyDataModule):
            raise ConfigurationError(
                f"collate_fn is for a data set, and data is a {type(data).__name__}, whose loaders collate as they are"
                " told: give it to those."
            )
        if isinstance(data, IterableDataset) or not (isinstance(data, AnyDataModule) or hasattr(data, "__len__")):
            raise ConfigurationError(
                f"data is a {type(data).__name__} without a length, which cannot be divided among clients: give a"
                " map-style data set or a LightningDataModule, or each client a data module of its own, with Silos."
            )
        self.data = data
        self.partitioner = partitioner
        self.split = tuple(split)
        self.split_seed = split_seed
        self.division = division
        self.folds = folds
        self.fold = fold
        self._collate = collate_fn
        self._given = {
            "batch_size": batch_size,
            "eval_batch_size": eval_batch_size,
            "shuffle": shuffle,
            "drop_last": drop_last,
        }
        self._seed: int | None = None  # known once set up
        self._names: list[str] | None = None
        self._datasets: dict[Split, Dataset] = {}  # the splits that have a data set of their own
        self._loaders: dict[Split, DataLoader] = {}  # the data module's loaders whose settings clients keep
        self._indices: list[dict[Split, Tensor]] = []
        self._kept: dict[tuple[int, Split], Dataset | DataLoader] = {}
        self._pooled = False
        if isinstance(data, AnyDataModule):
            for hook in BATCH_HOOKS:
                if is_overridden(hook, data):
                    setattr(self, hook, getattr(data, hook))

    def prepare_data(self) -> None:
        """The data module's own."""
        if isinstance(self.data, AnyDataModule):
            self.data.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Open the data (the data module's ``setup`` for "fit" and, where it has test data, "test") and partition them.

        All splits are partitioned at once whatever the stage, so that training and test samples never overlap. Further
        calls change nothing. A data module's own random splits are the same in every process.
        """
        if self._indices:
            return
        seed = run_seed() if self.split_seed is None else self.split_seed
        if isinstance(self.data, AnyDataModule):
            self._open(self.data, seed)
        else:
            self._datasets["train"] = self.data
        if isinstance(source := getattr(self.data, "source", None), str):
            self.source = source
        parts = self.partitioner.partition_clients(self._datasets, self.split, seed)
        self._names = self.partitioner.names
        if not self._settings.is_default and len(parts) == len(SPLITS):
            raise ConfigurationError(
                "every client has validation and test samples, nothing is left to be divided: leave out division, folds"
                " and fold."
            )
        for client, train in enumerate(parts["train"]):
            if len(train) == 0:
                name = self._names[client] if self._names else client
                raise DataError(
                    f"client {name} has no training samples: take fewer clients, another partitioner or another"
                    " split_seed."
                )
        names = self._names or list(map(str, range(len(parts["train"]))))
        indices = divide_clients(self._datasets, parts, self._settings, seed, names)
        warn_of_missing_parts(names, indices)
        self._indices, self._seed = indices, seed

    def _open(self, datamodule: LightningDataModule, seed: int) -> None:
        """Take over the data sets and settings of the data module's loaders."""
        given = self._given
        for split in SPLITS:
            if split == "train" or (split == "test" and is_overridden("test_dataloader", datamodule)):
                # One seed for both stages: a random split that is drawn in each must be the same in each.
                with isolate_rng(include_cuda=False):
                    seed_default_generators(seed, "setup")
                    datamodule.setup("fit" if split == "train" else "test")
            loader = divisible_loader(datamodule, split)
            if loader is None:
                if split == "train":
                    raise ConfigurationError(
                        f"{type(datamodule).__name__} has no train_dataloader: clients need training data."
                    )
                continue
            batch_size = given["batch_size" if split == "train" else "eval_batch_size"]
            self._datasets[split] = sampled_dataset(
                loader,
                split,
                replace_order=split == "train" and given["shuffle"] is not None,
                replace_batches=batch_size is not None,
            )
            if split == "train":
                self.batch_size = given["batch_size"] or loader.batch_size or self.batch_size
                self.eval_batch_size = given["eval_batch_size"] or 4 * self.batch_size
                self.shuffle = is_shuffled(loader) if given["shuffle"] is None else self.shuffle
                self.drop_last = loader.drop_last if given["drop_last"] is None else self.drop_last
            elif given["eval_batch_size"] is None:
                self.eval_batch_size = loader.batch_size or self.batch_size
            self._loaders[split] = loader

    @property
    def num_clients(self) -> int:
        """Number of clients N; where the data tell, after ``setup``."""
        if self._indices:
            return len(self._indices)
        if self.partitioner.num_clients is None:
            raise DataError("the number of clients is not known yet, it depends on the data: call setup() first.")
        return self.partitioner.num_clients

    def client_data(self, client: int, split: Split) -> Dataset | DataLoader | None:
        """The client's samples: a ``Subset`` of a shared data set, or the user's kind of loader over it."""
        indices = self._samples(client, split)
        if len(indices) == 0:
            return None
        if (client, split) not in self._kept:
            source = self._source(split)
            subset, loader = _subset(self._datasets[source], indices), self._loaders.get(source)
            training = split == "train"
            options: dict[str, Any] = {
                "batch_size": self.batch_size if training else self.eval_batch_size,
                "shuffle": training and self.shuffle,
                "drop_last": training and self.drop_last,
            }
            if self._collate is not None:
                self._kept[client, split] = make_loader(subset, collate_fn=self._collate, **options)
            elif loader is None or has_plain_batches(loader):
                self._kept[client, split] = subset
            else:
                self._kept[client, split] = loader_like(loader, subset, **options)
        return self._kept[client, split]

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """Of all splits: they are opened together."""
        return self._digests(client)

    def pool_training(self, pooled: bool) -> None:
        """Give the first client the training samples of all, in ascending order; or no longer."""
        self._pooled = pooled
        self._kept.pop((0, "train"), None)

    def _samples(self, client: int, split: Split) -> Tensor:
        """The ascending indices of a client's samples in the data set that holds the split."""
        shares = self._set_up()
        if self._pooled and split == "train" and client == 0:
            return pooled_indices([of_client["train"] for of_client in shares])
        return shares[client][split]

    def see_trainer(self, trainer: Any) -> None:
        """Make the trainer known to the data module that is divided."""
        super().see_trainer(trainer)
        if isinstance(self.data, AnyDataModule):
            self.data.trainer = trainer

    def client_datamodule(self, client: int | None, stage: str) -> LightningDataModule:
        """The data module that was divided, if it is one."""
        return self.data if isinstance(self.data, AnyDataModule) else self

    def client_names(self) -> list[str]:
        """The names of the groups, where each group is a client."""
        return list(self._names or super().client_names())

    def client_sizes(self) -> Sequence[int] | None:
        """Training samples per client, after ``setup``."""
        return self.num_samples("train") if self._indices else None

    def num_samples(self, split: Split) -> list[int]:
        """Samples of every client in a split."""
        return [len(self._samples(client, split)) for client in range(len(self._set_up()))]

    def describe(self) -> Mapping[str, Any]:
        """Source, partitioner, seed and sizes."""
        sizes = {split: [len(of_client[split]) for of_client in self._set_up()] for split in SPLITS}
        return {
            **super().describe(),
            "partitioner": self.partitioner.describe(),
            "split_seed": self._seed,
            **self._settings.describe(),
            "num_samples": sizes,
        }

    def held_rows(self, client: int) -> Mapping[Split, Sequence[int]] | None:
        """The numbers of a client's samples in each split: of rows where the data have them, else of samples from 0."""
        found: dict[Split, Sequence[int]] = {}
        for split, indices in self._set_up()[client].items():
            rows = sample_rows(self._datasets[self._source(split)])
            found[split] = indices.tolist() if rows is None else [rows[index] for index in indices.tolist()]
        return found

    def held_source(self) -> Mapping[str, Any]:
        """What these numbers are of."""
        rows = sample_rows(self._datasets["train"])
        return {
            "numbering": "samples from 0" if rows is None else "rows",
            "files": [],
            "parts": {split: self._source(split) for split in SPLITS},
            "split_seed": self._seed,
        }

    def _source(self, split: Split) -> Split:
        """The split whose data set a split's samples are of."""
        return split if split in self._datasets else "train"

    def teardown(self, stage: str | None = None) -> None:
        """The data module's own."""
        if isinstance(self.data, AnyDataModule):
            self.data.teardown(stage)  # type: ignore[arg-type]

    def _set_up(self) -> list[dict[Split, Tensor]]:
        if not self._indices:
            raise DataError("the data are not partitioned yet: call setup() first.")
        return self._indices


def _subset(dataset: Any, indices: Tensor) -> Subset:
    """A subset of the data set at the bottom, so that data which several splits share are one object."""
    while type(dataset) is Subset:
        indices = torch.as_tensor(dataset.indices, dtype=torch.long)[indices]
        dataset = dataset.dataset
    return Subset(dataset, indices.tolist())
