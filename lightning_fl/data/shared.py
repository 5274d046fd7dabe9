"""One data set held in memory, shared out among clients by a partitioner and then divided inside every client."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.seeding import generator, run_seed
from lightning_fl.data.digest import data_digest
from lightning_fl.data.division import ClientShares, Division, DivisionSettings, cut_splits, divide_clients
from lightning_fl.data.module import SPLITS, FederatedDataModule, Split, default_names
from lightning_fl.data.partition import Partitioner
from lightning_fl.data.partition.partitioner import sample_rows
from lightning_fl.data.partition.sizes import check_fractions
from lightning_fl.data.partition.stratified import check_classes, stratified_parts
from lightning_fl.data.targets import dataset_targets

__all__ = [
    "ClientShares",
    "OpenedData",
    "SharedDataModule",
    "class_labels",
    "cut_splits",
    "pooled_indices",
    "warn_of_missing_parts",
]


@dataclass(frozen=True)
class OpenedData:
    """Data sets and where they come from.

    Attributes:
        datasets: ``{"train": all}``, or training data and separate validation or test data, the training data first.
        source: for :attr:`~lightning_fl.data.module.FederatedDataModule.source`.
        record: what the run's record says of them: plain numbers, strings, lists and dicts.
    """

    datasets: Mapping[Split, Dataset]
    source: str
    record: dict[str, Any]


class SharedDataModule(FederatedDataModule):
    """Samples of one data set, shared out among clients and then divided inside each client.

    ``prepare_data`` (once per machine) downloads where that is needed; ``setup`` (in every process, with the same
    result in each) reads the data and shares them out. Data may come in separate parts for training and test (or
    validation): the partitioner then shares out all parts together, so that a client's test samples follow its
    training samples, and a split that has no part of its own is cut from the client's training samples.

    A subclass says in ``_open`` where the data come from. The engine gathers batches fastest from a plain
    ``TensorDataset``; a subclass whose data sets are of another kind (because partitioners need their columns) gives
    the tensors in ``_hold``.

    Args:
        partitioner: who gets which samples; it may leave samples to nobody.
        split: shares of every client's samples for training, validation and test; they sum to 1. Where the data have
            parts of their own, the shares of the others are used in proportion.
        split_seed: seed of partition and division; ``None`` for the run's seed.
        division: by what a client's samples are divided, one of :mod:`lightning_fl.data.division`; ``None`` for at
            random.
        folds: K for K-fold cross-validation inside every client: the shares of ``split`` then only say whether there
            is validation.
        fold: which fold is tested on, 0..K-1; the next one is for validation. Where test samples are given, it is for
            validation.
        stratified: the division inside a client keeps the proportions of its classes as nearly as integers allow
            (:func:`~lightning_fl.data.partition.stratified.stratified_parts`); needs class labels, and a partitioner
            that leaves the division to this module.
        train_shares: for every client the share in (0, 1] of its training samples that it keeps, at least one sample;
            the others are used by nobody. Stratified if ``stratified``. ``None`` to keep all.
        unlabelled: what becomes of a client none of whose training samples has a target (all are NaN): "refuse" it
            with an error when training begins, or "leave_out" of the federation, which a warning says.
        **kwargs: ``batch_size``, ``eval_batch_size``, ``shuffle`` and ``drop_last`` of
            :class:`~lightning_fl.data.module.FederatedDataModule`.

    Raises:
        ConfigurationError: from the constructor, if an argument is not allowed; from ``setup``, if ``train_shares``
            does not fit the number of clients that the data tell, or the partitioner leaves nothing to stratify.
        DataError: from ``prepare_data`` and ``setup``, if the data are missing or damaged, a client gets no sample, or
            they are to be stratified and have no classes.
    """

    #: What messages call a sample.
    sample_noun: str = "sample"

    def __init__(
        self,
        *,
        partitioner: Partitioner,
        split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        split_seed: int | None = None,
        division: Division | None = None,
        folds: int | None = None,
        fold: int = 0,
        stratified: bool = False,
        train_shares: list[float] | None = None,
        unlabelled: Literal["refuse", "leave_out"] = "refuse",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_fractions(split)
        self._settings = DivisionSettings(division, split, folds, fold)
        self._settings.check(self, stratified=stratified)
        if partitioner.exact and not (self._settings.is_default and train_shares is None and not stratified):
            raise ConfigurationError(
                f"{type(partitioner).__name__} gives every client's parts as they are: leave out division, folds,"
                " stratified and train_shares."
            )

        if unlabelled not in ("refuse", "leave_out"):
            raise ConfigurationError(f"unlabelled={unlabelled!r}: give one of 'refuse', 'leave_out'.")
        if train_shares is not None:
            if not all(0 < share <= 1 for share in train_shares):
                raise ConfigurationError(
                    f"train_shares={train_shares}: give every client a share of its training samples above 0 and at"
                    " most 1."
                )
            if partitioner.num_clients is not None:
                _check_length(train_shares, partitioner.num_clients)
        self.partitioner = partitioner
        self.split = split
        self.split_seed = split_seed
        self.division = division
        self.folds = folds
        self.fold = fold
        self.stratified = stratified
        self.train_shares = train_shares
        self.unlabelled = unlabelled
        self._left_out: list[str] = []
        self._opened: OpenedData | None = None
        self._held: dict[Split, Dataset] = {}
        self._indices: ClientShares | None = None
        self._names: list[str] | None = None
        self._seed = 0
        self._pooled = False

    @abstractmethod
    def _open(self, *, allow_download: bool) -> OpenedData:
        """Find and read the data."""

    def _hold(self, datasets: Mapping[Split, Dataset], shares: ClientShares) -> Mapping[Split, Dataset]:
        """The data sets that the clients' ``Subset`` views refer to: the same samples in the same order.

        Args:
            datasets: what ``_open`` gave.
            shares: for every client and split, the client's samples; a split without a data set of its own is part
                of the training data (see :meth:`_part_of`).
        """
        return datasets

    #: Whether a client's samples of the same thing stay in one part.
    _copies_together: bool = False

    def _identities(self) -> Sequence[str] | None:
        """Which thing every training sample is of, where samples may be of the same one; ``None`` if not known."""
        return None

    def prepare_data(self) -> None:
        """Find or download the data (one process per machine)."""
        self._load(allow_download=True)

    def setup(self, stage: str | None = None) -> None:
        """Read the data and share them out (every process; the same in each). Further calls change nothing."""
        if self._indices is not None:
            return
        opened = self._load(allow_download=False)
        datasets = opened.datasets
        self._seed = seed = self.partition_seed
        self.partitioner.check_record(opened.record)
        parts = self.partitioner.partition_clients(datasets, self.split, seed)
        if self.stratified and self.train_shares is None and len(parts) == len(SPLITS) > len(datasets):
            raise ConfigurationError(
                f"stratified=True: {type(self.partitioner).__name__} divides every client's {self.sample_noun}s itself,"
                " nothing is left to be divided by class. Leave stratified out."
            )
        if not self._settings.is_default and len(parts) == len(SPLITS):
            whose = "the data have" if len(datasets) == len(SPLITS) else f"{type(self.partitioner).__name__} gives"
            raise ConfigurationError(
                f"{whose} validation and test {self.sample_noun}s, nothing is left to be divided: leave out division,"
                " folds and fold."
            )
        num_clients = len(parts["train"])
        if self.train_shares is not None:
            _check_length(self.train_shares, num_clients)
        names = self.partitioner.names or [str(client) for client in range(num_clients)]
        if self.partitioner.names is not None:
            _check_groups(parts, names)
        for name, indices in zip(names, parts["train"], strict=True):
            if len(indices) == 0:
                raise DataError(
                    f"client {name} of {num_clients} gets no {self.sample_noun} of the"
                    f" {len(datasets['train'])}: take fewer clients or a more even partition."  # type: ignore[arg-type]
                )
        labels = class_labels(datasets["train"]) if self.stratified else None
        shares = divide_clients(
            datasets,
            parts,
            self._settings,
            seed,
            names,
            labels=labels,
            identities=self._identities(),
            together=self._copies_together,
        )
        warn_of_missing_parts(names, shares)
        if self.train_shares is not None:
            for client, share in enumerate(self.train_shares):
                shares[client]["train"] = self._keep(shares[client]["train"], labels, share, client)
        self._names = self.partitioner.names
        if self.unlabelled == "leave_out":
            shares = self._labelled(shares, dataset_targets(datasets["train"]))
        self._held = dict(self._hold(datasets, shares))
        self._indices = shares

    def _load(self, *, allow_download: bool) -> OpenedData:
        if self._opened is None:
            self._opened = self._open(allow_download=allow_download)
            self.source = self._opened.source
        return self._opened

    def _keep(self, train: Tensor, labels: Tensor | None, share: float, client: int) -> Tensor:
        """The share of its training samples that a client keeps."""
        size = max(1, round(share * len(train)))
        rng = generator(self._seed, "train_shares", client)
        if labels is None:
            chosen = torch.randperm(len(train), generator=rng)[:size].sort().values
        else:
            (chosen,) = stratified_parts(labels[train], [size], rng)
        return train[chosen]

    def _labelled(self, shares: ClientShares, targets: Tensor) -> ClientShares:
        """The shares of the clients that have a target in their training samples; the others are named."""
        if not targets.is_floating_point():
            return shares
        labelled = ~targets.reshape(len(targets), -1).isnan().all(1)
        kept = [client for client, share in enumerate(shares) if labelled[share["train"]].any()]
        if len(kept) == len(shares):
            return shares
        names = self._names or default_names(len(shares))
        self._left_out = [name for client, name in enumerate(names) if client not in kept]
        if not kept:
            raise DataError(f"none of the {len(shares)} clients has a target in its training {self.sample_noun}s.")
        rank_zero_warn(
            f"{len(self._left_out)} of {len(shares)} clients have no target in their training {self.sample_noun}s and"
            f" are left out of the federation: {listed(self._left_out, 5)}."
        )
        self._names = [names[client] for client in kept]
        return [shares[client] for client in kept]

    def _part_of(self, split: Split) -> Split:
        """The part of the data that a split's samples belong to."""
        return split if split in self._data.datasets else "train"

    @property
    def partition_seed(self) -> int:
        """Seed of everything that is drawn to choose and divide samples."""
        return run_seed() if self.split_seed is None else self.split_seed

    @property
    def _data(self) -> OpenedData:
        if self._opened is None:
            raise DataError(f"the {self.sample_noun}s are not read yet: call prepare_data() and setup('fit') first.")
        return self._opened

    @property
    def _shares(self) -> ClientShares:
        if self._indices is None:
            raise DataError(
                f"the {self.sample_noun}s are not shared out yet: call prepare_data() and setup('fit') first."
            )
        return self._indices

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        if self._indices is None and self.partitioner.num_clients is not None:
            return self.partitioner.num_clients
        return len(self._shares)

    def client_data(self, client: int, split: Split) -> Subset | DataLoader | None:
        """A view of the data set that all clients share; ``None`` where the client has nothing in this split."""
        indices = self._samples(client, split)
        return Subset(self._held[self._part_of(split)], indices.tolist()) if len(indices) else None

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """Of all splits: they are in memory."""
        parts = {
            split: Subset(self._held[self._part_of(split)], self._samples(client, split))  # type: ignore[arg-type]
            for split in self._shares[client]
        }
        return {split: data_digest(part) for split, part in parts.items() if len(part)}

    def pool_training(self, pooled: bool) -> None:
        """Give the first client the training samples of all, in ascending order; or no longer."""
        self._pooled = pooled

    def _samples(self, client: int, split: Split) -> Tensor:
        """The ascending indices of a client's samples in the data set that holds the split."""
        if self._pooled and split == "train" and client == 0:
            return pooled_indices([of_client["train"] for of_client in self._shares])
        return self._shares[client][split]

    def held_rows(self, client: int) -> Mapping[Split, Sequence[int]] | None:
        """The numbers of a client's samples in each split: of rows where the data have them, else of samples from 0."""
        found: dict[Split, Sequence[int]] = {}
        for split, indices in self._shares[client].items():
            rows = sample_rows(self._data.datasets[self._part_of(split)])
            found[split] = indices.tolist() if rows is None else [rows[index] for index in indices.tolist()]
        return found

    def held_source(self) -> Mapping[str, Any]:
        """What these numbers are of."""
        record = self._data.record
        rows = sample_rows(self._data.datasets["train"])
        named = {"file": record.get("file"), "sha256": record.get("sha256")}
        return {
            "numbering": "samples from 0" if rows is None else "rows",
            "files": record.get("files") or ([named] if record.get("file") else []),
            "parts": {split: self._part_of(split) for split in SPLITS},
            "split_seed": None if self.partitioner.exact else self._seed,
        }

    def client_names(self) -> list[str]:
        """The groups' names where each group is a client."""
        return list(self._names or super().client_names())

    def client_sizes(self) -> Sequence[int]:
        """Training samples per client."""
        return self.num_samples("train")

    def num_samples(self, split: Split) -> list[int]:
        """Samples per client in a split."""
        return [len(self._samples(client, split)) for client in range(len(self._shares))]

    def describe(self) -> Mapping[str, Any]:
        """Origin, partition, division and sizes, for the run's record."""
        sizes = {split: [len(of_client[split]) for of_client in self._shares] for split in SPLITS}
        return {
            **super().describe(),
            **self._data.record,
            "partitioner": self.partitioner.describe(),
            "split": list(self.split),
            "split_seed": self._seed,
            "stratified": self.stratified,
            **self._settings.describe(),
            "train_shares": self.train_shares,
            **({"left_out": self._left_out} if self._left_out else {}),
            "client_names": self.client_names(),
            "client_sizes": sizes,
        }


def pooled_indices(parts: Sequence[Tensor]) -> Tensor:
    """The samples of all clients, each once, ascending: clients may share some."""
    return torch.cat(list(parts)).unique(sorted=True)


def class_labels(dataset: Dataset) -> Tensor:
    """The classes of a data set by which clients' samples are divided, integers, shape [n].

    Raises:
        DataError: its targets cannot be found, or are not one integer per sample.
    """
    labels = dataset_targets(dataset)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    check_classes(labels)
    return labels


def warn_of_missing_parts(names: Sequence[str], shares: ClientShares) -> None:
    """Say, in one line, who has no validation or test samples where others have some: a client of one or two samples.

    Args:
        names: the clients'.
        shares: for every client the samples in each split.
    """
    words = []
    for split in SPLITS:
        without = [name for name, of_client in zip(names, shares, strict=True) if not len(of_client[split])]
        if 0 < len(without) < len(names):
            words.append(f"{len(without)} of {len(names)} clients have no {split} samples ({listed(without, 5)})")
    if words:
        rank_zero_warn(f"{', '.join(words)}: they train, and are not in the figures of that split.")


def _check_length(train_shares: list[float], num_clients: int) -> None:
    if len(train_shares) != num_clients:
        raise ConfigurationError(
            f"train_shares has {len(train_shares)} entries for {num_clients} clients: give one for each client."
        )


def _check_groups(parts: Mapping[Split, list[Tensor]], names: list[str]) -> None:
    """Refuse clients that are groups of which the training data have nothing, or the other parts nothing of any."""
    for split, of_clients in parts.items():
        held = [len(indices) > 0 for indices in of_clients]
        unknown = [name for name, has, train in zip(names, held, parts["train"], strict=True) if has and not len(train)]
        if unknown or not any(held):
            who = f"{len(unknown)} clients, such as {unknown[0]}, have" if unknown else "no client has"
            lack = " but none in the train part" if unknown else ""
            raise DataError(
                f"{who} samples in the {split} part of the data{lack}: put the parts together (ImageData's"
                " pooled: true), or take data whose groups are in every part (of LEAF's, those made with -t sample)."
            )
