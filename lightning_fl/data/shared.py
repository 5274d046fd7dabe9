"""Data module of one data set in memory, partitioned among clients and then divided inside every client."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_fl.core.client_names import are_many, default_names, recorded_names
from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.metrics import percentiles
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Fraction, Seed, Size, checked_fields
from lightning_fl.data.digest import data_digest
from lightning_fl.data.division.clients import ClientShares, DivisionSettings, divide_clients
from lightning_fl.data.division.division import Division, Folds
from lightning_fl.data.module import SPLITS, FederatedDataModule, Split
from lightning_fl.data.partition import Partitioner
from lightning_fl.data.partition.classes import check_classes, random_parts
from lightning_fl.data.partition.partitioner import ClientParts, row_numbers, sample_rows
from lightning_fl.data.targets import dataset_targets


@dataclass(frozen=True)
class OpenedData:
    """Data sets, ``{"train": all}`` or with separate validation or test data, and their origin."""

    datasets: Mapping[Split, Any]  #: while they are being read, they may be tables
    source: str  #: that of a data module
    record: dict[str, Any]  #: plain values for the run's record


@checked_fields
class SharedDataModule(FederatedDataModule):
    """Samples of one data set, partitioned among clients and then divided inside each client.

    If the data have separate parts for training and test (or validation), the partitioner divides them together, so
    that a client's test samples match its training samples. A split without its own part is cut from the client's
    training samples. The engine gathers batches fastest from a plain ``TensorDataset``.

    Args:
        partitioner: divides the samples among clients; it may leave samples unused.
        split: shares of a client's samples for train, val and test, with sum 1; ignored for parts that the data have.
        split_seed: seed of partition and division; ``None`` for the run's seed.
        division: how a client's samples are divided, one of :mod:`lightning_fl.data.division`; ``None`` for at random.
        folds: K of K-fold cross-validation in every client; ``split`` only says if there is validation (then K > 2).
        fold: the fold for testing, 0..K-1; the next is for validation. With test samples given, it is for validation.
        stratified: keep a client's class proportions in its splits as nearly as integers allow; for random divisions.
        train_shares: for every client, the share of its training samples that it keeps, at least one sample; the others
            stay unused. Stratified if ``stratified``. ``None`` to keep all.
        unlabelled: "refuse" a client without any target in its training samples (all are NaN) with an error before
            its first turn (before training, if validated), or "leave_out" such clients with a warning.
    """

    partitioner: Partitioner
    split: tuple[Fraction, Fraction, Fraction] = (0.8, 0.1, 0.1)
    split_seed: Seed | None = None
    division: Division | None = None
    folds: Folds | None = None
    fold: Size = 0
    stratified: bool = False
    train_shares: list[Annotated[float, Gt(0), Le(1)]] | None = None
    unlabelled: Literal["refuse", "leave_out"] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings = DivisionSettings(self.division, self.split, self.folds, self.fold, self.stratified)
        name, cuts = type(self.partitioner).__name__, self.division is not None or self.folds is not None
        if self.partitioner.exact and (cuts or self.stratified):
            raise ConfigurationError(f"{name} fixes every client's splits: omit division, folds and stratified.")
        if self.partitioner.exact and self.train_shares is not None:
            raise ConfigurationError(f"train_shares with {name}: leave it out.")
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

    def _hold(self, datasets: Mapping[Split, Any], shares: ClientShares) -> Mapping[Split, Dataset]:
        """Convert the data sets of ``_open`` to those behind the clients' views; samples and order stay the same."""
        return datasets

    #: Whether a client's samples of one identity stay in one part.
    _copies_together = False

    def _identities(self) -> Sequence[str] | None:
        """Identity (such as the molecule) of every training sample; ``None`` if not known."""
        return None

    def prepare_data(self) -> None:
        self._load(allow_download=True)

    def setup(self, stage: str | None = None) -> None:
        """Read and partition the data, with the same result in every process. Further calls change nothing."""
        if self._indices is not None:
            if stage == "fit" and (seed := self.partition_seed) != self._seed:
                kind = type(self).__name__
                rank_zero_warn(f"the data stay divided by seed {self._seed}, not {seed}: make a new {kind}.")
            return
        opened = self._load(allow_download=False)
        datasets = opened.datasets
        self._seed = seed = self.partition_seed
        if opened.record:
            self.partitioner.check_record(opened.record)
        found = self.partitioner.partition_clients(datasets, self.split, seed)
        parts = {split: ClientParts.of(part) for split, part in found.items()}
        if self.stratified and self.train_shares is None and len(parts) == len(SPLITS) > len(datasets):
            name = type(self.partitioner).__name__
            raise ConfigurationError(f"stratified=True: {name} already divides every client's samples; omit it.")
        if len(parts) == len(SPLITS) and (self.division is not None or self.folds is not None):
            raise ConfigurationError("the data have validation and test samples: leave out division, folds and fold.")
        num_clients = len(parts["train"])
        if self.train_shares is not None and len(self.train_shares) != num_clients:
            raise ConfigurationError(f"train_shares has {len(self.train_shares)} entries for {num_clients} clients.")
        names = self.partitioner.names
        name_of = str if names is None else names.__getitem__
        if names is not None:
            _check_groups({split: parts[split] for split in datasets}, names)
        if (empty := parts["train"].sizes == 0).any():
            raise DataError(f"client {name_of(int(empty.nonzero()[0]))} gets no training sample: use fewer clients.")
        labels = class_labels(datasets["train"]) if self.stratified else None
        shares = divide_clients(
            datasets, parts, self._settings, seed, name_of, labels, self._identities(), together=self._copies_together
        )
        warn_of_missing_parts(name_of, shares)
        if self.train_shares is not None:
            kept = [self._keep(shares[i]["train"], labels, share, i) for i, share in enumerate(self.train_shares)]
            shares = ClientShares.of([of | {"train": train} for of, train in zip(shares, kept, strict=True)])
        self._names = names
        if self.unlabelled == "leave_out":
            shares = self._leave_out_unlabelled(shares, dataset_targets(datasets["train"]))
        self._held = dict(self._hold(datasets, shares))
        self._indices = shares

    def _load(self, *, allow_download: bool) -> OpenedData:
        if self._opened is None:
            self._opened = self._open(allow_download=allow_download)
            self.source = self._opened.source
        return self._opened

    def _keep(self, train: Tensor, labels: Tensor | None, share: float, client: int) -> Tensor:
        size = max(1, round(share * len(train)))
        rng = generator(self._seed, "train_shares", client)
        (chosen,) = random_parts(len(train), [size], rng, None if labels is None else labels[train])
        return train[chosen]

    def _leave_out_unlabelled(self, shares: ClientShares, targets: Tensor) -> ClientShares:
        if not targets.is_floating_point():
            return shares
        labelled = ~targets.reshape(len(targets), -1).isnan().all(1)
        kept = [client for client, share in enumerate(shares) if labelled[share["train"]].any()]
        if len(kept) == len(shares):
            return shares
        names = self._names or default_names(len(shares))
        self._left_out = [name for client, name in enumerate(names) if client not in kept]
        if not kept:
            raise DataError(f"none of the {len(shares)} clients has a target in its training samples.")
        what = f"{len(self._left_out)} of {len(shares)} clients have no target in their training samples"
        rank_zero_warn(f"{what} and are left out of the federation: {listed(self._left_out, 5)}.")
        self._names = [names[client] for client in kept]
        return ClientShares.of([shares[client] for client in kept])

    def _part_of(self, split: Split) -> Split:
        return split if split in self._data.datasets else "train"

    @property
    def partition_seed(self) -> int:
        """Seed of everything that is drawn to choose and divide samples."""
        repeated = self.partitioner.repeated_seed
        return self.seed_of(self.split_seed if repeated is None else repeated)

    @property
    def _data(self) -> OpenedData:
        if self._opened is None:
            raise DataError("the samples are not read yet: call prepare_data() and setup('fit') first.")
        return self._opened

    @property
    def _shares(self) -> ClientShares:
        if self._indices is None:
            raise DataError("the samples are not partitioned yet: call prepare_data() and setup('fit') first.")
        return self._indices

    @property
    def num_clients(self) -> int:
        if self._indices is None and self.partitioner.num_clients is not None:
            return self.partitioner.num_clients
        return len(self._shares)

    def client_data(self, client: int, split: Split) -> Subset | DataLoader | None:
        indices = self._samples(client, split)
        return Subset(self._held[self._part_of(split)], indices.tolist()) if len(indices) else None

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        parts = self._shares[client] | {"train": self._samples(client, "train")}
        return {
            split: data_digest(Subset(self._held[self._part_of(split)], indices))
            for split, indices in parts.items()
            if len(indices)
        }

    def pool_training(self, pooled: bool) -> None:
        self._pooled = pooled

    def _samples(self, client: int, split: Split) -> Tensor:
        """The ascending indices of a client's samples in the data set that holds the split."""
        if self._pooled and split == "train" and client == 0:
            return pooled_indices([of_client["train"] for of_client in self._shares])
        return self._shares[client][split]

    def held_rows(self, client: int) -> Mapping[Split, Sequence[int]] | None:
        return {
            split: row_numbers(self._data.datasets[self._part_of(split)], indices)
            for split, indices in self._shares[client].items()
        }

    def held_source(self) -> Mapping[str, Any]:
        record = self._data.record
        rows = sample_rows(self._data.datasets["train"])
        named = {"file": record.get("file"), "sha256": record.get("sha256") or record.get("names_and_sizes_sha256")}
        return {
            "numbering": "samples from 0" if rows is None else "rows",
            "files": record.get("files") or ([named] if record.get("file") else []),
            "parts": {split: self._part_of(split) for split in SPLITS},
            "sizes": {part: len(dataset) for part, dataset in self._data.datasets.items()},
            "split_seed": self._seed,
        }

    def client_names(self) -> list[str]:
        return list(self._names or super().client_names())

    def client_sizes(self) -> Sequence[int] | None:
        return None if self._indices is None else self.num_samples("train")

    def num_samples(self, split: Split) -> list[int]:
        sizes = self._shares.sizes[split].tolist()
        return [len(self._samples(0, split)), *sizes[1:]]  # client 0 has the pooled samples, if they are pooled

    def describe(self) -> Mapping[str, Any]:
        sizes_of = percentiles if are_many(self.num_clients) else Tensor.tolist
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
            "client_names": recorded_names(self.client_names()),
            "client_sizes": {split: sizes_of(self._shares.sizes[split]) for split in SPLITS},
        }


def pooled_indices(parts: Sequence[Tensor]) -> Tensor:
    """The samples of all clients, ascending, each once: clients may share some."""
    return torch.cat(list(parts)).unique(sorted=True)


def class_labels(dataset: Dataset) -> Tensor:
    """The classes of a data set for a stratified division, integers, shape [n]."""
    labels = dataset_targets(dataset)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    check_classes(labels)
    return labels


def warn_of_missing_parts(name_of: Callable[[int], str], shares: ClientShares) -> None:
    """Warn of clients without validation or test samples (those with one or two samples) if others have some."""
    missing = []
    for split in SPLITS:
        without = [name_of(client) for client in (shares.sizes[split] == 0).nonzero().flatten().tolist()]
        if 0 < len(without) < len(shares):
            missing.append(f"{len(without)} of {len(shares)} clients have no {split} samples ({listed(without, 5)})")
    if missing:
        rank_zero_warn(f"{', '.join(missing)}: they train, but do not count in the metrics of that split.")


def _check_groups(parts: Mapping[Split, ClientParts], names: list[str]) -> None:
    """Refuse groups as clients if the training data lack one, or another part lacks all."""
    for split, of_clients in parts.items():
        held = of_clients.sizes > 0
        unknown = (held & (parts["train"].sizes == 0)).nonzero().flatten().tolist()
        if unknown or not held.any():
            who = f"{len(unknown)} clients, such as {names[unknown[0]]}, have" if unknown else "no client has"
            lack = " but none in the train part" if unknown else ""
            raise DataError(f"{who} samples in the {split} part{lack}: join the parts (pooled: true in ImageData).")
