"""Divisions of all clients, each independent of the others."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.division.division import Cut, Division, RandomDivision, cut_splits, group_numbers
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.partitioner import ClientParts
from lightning_fl.data.sizes import check_fractions, remaining_fractions, split_sizes


@dataclass(frozen=True)
class ClientShares(Sequence[dict[Split, Tensor]]):
    """For every client: the split, and the ascending indices of its samples in the data set that holds the split."""

    sizes: Mapping[Split, Tensor]  #: split -> numbers of samples, int64 [N]
    divide: Callable[[int], dict[Split, Tensor]]  #: called when a client is first asked for: idle ones draw nothing
    _divided: dict[int, dict[Split, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, shares: Sequence[dict[Split, Tensor]]) -> "ClientShares":
        """The shares of a list with an entry per client."""
        return cls({split: torch.tensor([len(one[split]) for one in shares]) for split in SPLITS}, shares.__getitem__)

    def __len__(self) -> int:
        return len(self.sizes["train"])

    def __getitem__(self, client: Any) -> Any:
        if client not in self._divided:
            self._divided[client] = self.divide(range(len(self))[client])
        return self._divided[client]


@dataclass(frozen=True)
class DivisionSettings:
    """Settings for dividing clients' samples: a division, or at random by fractions, or by one of several folds."""

    division: Division | None
    fractions: Sequence[float]
    folds: int | None = None
    fold: int = 0
    stratified: bool = False

    def __post_init__(self) -> None:
        check_fractions(self.fractions)
        split, name = f"split={list(self.fractions)}", type(self.division).__name__
        if self.folds is None and self.fold != 0:
            raise ConfigurationError(f"fold={self.fold} without folds: give the number of folds too, such as folds=5.")
        if self.folds is not None and self.fold >= self.folds:
            raise ConfigurationError(f"fold={self.fold} with folds={self.folds}: must be from 0 to {self.folds - 1}.")
        if self.folds is not None and self.fractions[2] == 0:
            raise ConfigurationError(f"folds={self.folds} with {split}: the share of test must be above 0.")
        if self.folds == 2 and self.fractions[1] > 0:
            raise ConfigurationError(f"folds=2 with {split}: give at least 3 folds, or validation the share 0.")
        if self.folds is not None and self.division is not None and not self.division.takes_folds:
            raise ConfigurationError(f"folds={self.folds} with {name}: its parts follow one order. Omit one of them.")
        if self.stratified and self.division is not None and not isinstance(self.division, RandomDivision):
            raise ConfigurationError(f"stratified=True with {name}: needs a random division. Leave one of them out.")

    def describe(self) -> dict[str, object]:
        record: dict[str, object] = {} if self.division is None else {"division": self.division.describe()}
        return record if self.folds is None else record | {"folds": self.folds, "fold": self.fold}


def divide_clients(
    datasets: Mapping[Split, Dataset],
    parts: Mapping[Split, ClientParts],
    settings: DivisionSettings,
    seed: int,
    name_of: Callable[[int], str],
    labels: Tensor | None = None,
    identities: Sequence[str] | None = None,
    *,
    together: bool = False,
) -> ClientShares:
    """Cut the splits that have no data of their own from every client's training samples.

    ``parts`` are every client's ascending indices of each given split; ``name_of`` gives a client's name; ``labels``
    are the classes of all training data, if their proportions are to be kept; ``identities`` the molecule of every
    training sample, if known, whose samples stay in one part of a client if ``together``.
    """
    division = settings.division or RandomDivision()
    fractions = remaining_fractions(settings.fractions, list(parts))
    keys = division.read(datasets["train"], identities)
    copied = identities if together else None
    if type(division) is RandomDivision and settings.folds is None and labels is None and not copied:
        counts, place = parts["train"].sizes.unique(return_inverse=True)
        of_counts = torch.tensor([split_sizes(count, fractions) for count in counts.tolist()])
        given = {split: part.sizes for split, part in parts.items() if split != "train"}
        draw = partial(_divide_at_random, parts, settings.fractions, seed)
        return ClientShares(dict(zip(SPLITS, of_counts[place].T, strict=True)) | given, draw)
    shares = []
    for client, indices in enumerate(parts["train"]):
        train = indices.sort().values
        rows = train.tolist()
        cut = Cut(
            size=len(train),
            fractions=fractions,
            own=list(parts),
            seed=seed,
            client=client,
            name=name_of(client),
            labels=None if labels is None else labels[train],
            copies=None if copied is None else group_numbers([copied[row] for row in rows]),
            folds=settings.folds,
            fold=settings.fold,
        )
        found = division.divide([] if keys is None else [keys[row] for row in rows], cut)
        own = {split: part[client] for split, part in parts.items()}
        shares.append(own | {split: train[found[split]] for split in SPLITS if cut.is_cut[split]})
        if copied is not None:
            of_training = [part for split, part in shares[-1].items() if split == "train" or split not in datasets]
            divider = "the partitioner" if settings.division is None else type(division).__name__
            _check_copies([{copied[row] for row in part.tolist()} for part in of_training], cut.name, divider)
    return ClientShares.of(shares)


def _divide_at_random(
    parts: Mapping[Split, ClientParts], fractions: Sequence[float], seed: int, client: int
) -> dict[Split, Tensor]:
    """What :class:`RandomDivision` gives by default, several times faster."""
    own = {split: part[client] for split, part in parts.items()}
    return own | cut_splits(own["train"], fractions, seed, client, own=list(parts))


def _check_copies(parts: Sequence[set[str]], client: str, divider: str) -> None:
    counts = Counter(name for part in parts for name in part)
    if divided := sum(count > 1 for count in counts.values()):
        what = f"{divider} separates the copies of {divided} of {len(counts)} molecules, against duplicates='together'"
        raise DataError(f"client {client}: {what}: correct the file, merge the copies, or set duplicates: report.")
