"""What a division is: it divides the samples of one client into training, validation and test samples."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.partitioner import read_column, sample_rows

__all__ = ["Cut", "Division", "check_folds", "read_texts"]


@dataclass(frozen=True)
class Cut:
    """What is to be divided, and into what: of one client alone, so that no client's division depends on another.

    Attributes:
        size: samples of the client, n >= 1, in the order of the data set.
        fractions: shares of train, val and test, with sum 1; 0 for a split that is not cut here.
        own: splits that have samples of their own, "train" among them: the others are cut.
        seed: of the partition.
        client: number of the client.
        name: the client's name: what is drawn by it stays the same whoever else takes part.
        labels: classes, integers [n], whose proportions are kept; ``None`` if they do not matter.
        copies: samples with the same number are the same thing (molecule) and are to stay in one part, int64 [n];
            ``None`` if that does not matter.
        folds: K for the parts of K-fold cross-validation; ``None`` for parts by ``fractions``.
        fold: which of them, 0..K-1.
    """

    size: int
    fractions: Sequence[float]
    own: Sequence[Split]
    seed: int
    client: int
    name: str
    labels: Tensor | None = None
    copies: Tensor | None = None
    folds: int | None = None
    fold: int = 0

    def generator(self, purpose: str) -> torch.Generator:
        """The client's generator for a purpose."""
        return generator(self.seed, "division", purpose, self.name)

    @property
    def is_cut(self) -> dict[Split, bool]:
        """Whether a split is cut here."""
        return {split: split == "train" or split not in self.own for split in SPLITS}

    def by_folds(self, folds: Tensor) -> dict[Split, Tensor]:
        """The parts, from the fold of every sample [n].

        Fold ``fold`` is tested on and the next one (after the last the first) is for validation, unless validation
        has no share. Where the test samples are given already, fold ``fold`` is for validation.
        """
        assert self.folds is not None
        held_out: dict[Split, int] = {}
        if self.is_cut["test"]:
            held_out["test"] = self.fold
            if self.is_cut["val"] and self.fractions[1] > 0:
                held_out["val"] = (self.fold + 1) % self.folds
        elif self.is_cut["val"]:
            held_out["val"] = self.fold
        parts = {split: (folds == number).nonzero()[:, 0] for split, number in held_out.items()}
        rest = ~torch.isin(folds, torch.tensor(list(held_out.values()), dtype=torch.long))
        return {split: parts.get(split, folds.new_empty(0)) for split in SPLITS} | {"train": rest.nonzero()[:, 0]}

    def by_fractions(self, parts: Sequence[Tensor]) -> dict[Split, Tensor]:
        """The parts train, val and test by name."""
        return dict(zip(SPLITS, parts, strict=True))


class Division(ABC):
    """Divides one client's samples into training, validation and test samples.

    A division of one's own needs :meth:`divide` only, and :meth:`read` where it goes by something that the data set
    knows of its samples.
    """

    #: Whether the parts may be those of cross-validation.
    takes_folds: bool = True

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[Any] | None:
        """What the division goes by, one entry per sample of the whole data set; asked for once.

        Args:
            dataset: the training data of all clients.
            identities: which thing every sample is of (the molecule), for divisions that keep copies together; ``None``
                where samples are not known to be the same.
        """
        return None

    @abstractmethod
    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        """Divide one client's samples.

        Args:
            keys: of :meth:`read`, for the client's samples; empty where there are none.
            cut: sizes, shares and randomness.

        Returns:
            Ascending positions 0..n-1 under "train", "val" and "test", disjoint; those in none are used by nobody.
        """

    def describe(self) -> dict[str, Any]:
        """Name and arguments, for the run's record."""
        return {"name": type(self).__name__} | {
            name: value for name, value in vars(self).items() if not name.startswith("_")
        }


def check_folds(folds: int | None, fold: int, fractions: Sequence[float]) -> None:
    """Refuse a fold that is none of the folds, and folds that leave nothing to train on.

    Args:
        folds: K, a whole number of at least 2, or ``None``.
        fold: which, a whole number of at least 0.
        fractions: shares of train, val and test.
    """
    if folds is None:
        if fold != 0:
            raise ConfigurationError(f"fold={fold} without folds: give the number of folds too, such as folds=5.")
        return
    if fold >= folds:
        raise ConfigurationError(f"fold={fold} with folds={folds}: give a number from 0 to {folds - 1}.")
    if fractions[2] == 0:
        raise ConfigurationError(
            f"folds={folds} with split={list(fractions)}: a fold is tested on, so give test a share above 0 (its size"
            " does not matter)."
        )
    if folds == 2 and fractions[1] > 0:
        raise ConfigurationError(
            f"folds=2 with split={list(fractions)}: a fold for test and one for validation leave nothing to train on."
            " Give at least 3 folds, or validation the share 0."
        )


def read_texts(dataset: Dataset, column: str | None, reader: str, *, gaps: bool = False) -> list[str]:
    """A column of the data set as texts; without a name, the numbers of the samples' rows, else of the samples.

    Args:
        dataset: has a method ``column(name)``, which refuses empty cells.
        column: name of the column, or ``None``.
        reader: who needs it, for the message.
        gaps: take empty cells, as "", where the data set tells them by a method ``cells(name)``.

    Raises:
        DataError: there is no such column.
    """
    if column is not None and gaps and hasattr(dataset, "cells"):
        return [(value or "").strip() for value in dataset.cells(column)]
    if column is not None:
        return [str(value).strip() for value in read_column(dataset, column, reader)]
    rows = sample_rows(dataset)
    return [str(row) for row in (range(len(dataset)) if rows is None else rows)]  # type: ignore[arg-type]


def check_train(parts: dict[Split, Tensor], cut: Cut, mend: str) -> dict[Split, Tensor]:
    """The parts, if there is something to train on."""
    if len(parts["train"]) == 0:
        raise DataError(f"client {cut.name}: none of its {cut.size} samples is for training: {mend}.")
    return parts
