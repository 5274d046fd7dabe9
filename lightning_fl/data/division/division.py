"""Base class of divisions of one client's samples into training, validation and test samples."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import generator
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.partitioner import read_column, sample_rows
from lightning_fl.data.scheme import Scheme

#: K of K-fold cross-validation.
Folds = Annotated[int, Ge(2)]


@dataclass(frozen=True)
class Cut:
    """Task of dividing one client's samples.

    Attributes:
        size: samples of the client, n >= 1, in the order of the data set.
        fractions: shares of train, val and test, with sum 1; 0 for a split that is not cut here.
        own: splits with samples of their own, including "train"; the others are cut.
        seed: seed of the partition.
        client: number of the client.
        name: name of the client; draws by name do not depend on the other clients.
        labels: classes with proportions to keep, integers [n]; ``None`` to ignore classes.
        copies: samples with equal numbers are the same molecule and stay in one part, int64 [n]; ``None`` to ignore
            copies.
        folds: K for the parts of K-fold cross-validation; ``None`` for parts by ``fractions``.
        fold: the fold for testing, 0..K-1.
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

        Fold ``fold`` is for testing and the next one (cyclically) for validation, unless validation has no share. If
        the test samples are given, fold ``fold`` is for validation.
        """
        held_out: dict[Split, int] = {}
        if self.is_cut["test"]:
            held_out["test"] = self.fold
            if self.is_cut["val"] and self.fractions[1] > 0:
                held_out["val"] = (self.fold + 1) % (self.folds or 1)
        elif self.is_cut["val"]:
            held_out["val"] = self.fold
        parts = {split: (folds == number).nonzero()[:, 0] for split, number in held_out.items()}
        rest = ~torch.isin(folds, torch.tensor(list(held_out.values()), dtype=torch.long))
        return {split: parts.get(split, folds.new_empty(0)) for split in SPLITS} | {"train": rest.nonzero()[:, 0]}

    def by_fractions(self, parts: Sequence[Tensor]) -> dict[Split, Tensor]:
        """The parts train, val and test by name."""
        return dict(zip(SPLITS, parts, strict=True))


class Division(Scheme, ABC):
    """Divides one client's samples into training, validation and test samples.

    A custom division needs only :meth:`divide`, and :meth:`read` if it depends on something that the data set knows
    about its samples.
    """

    #: Whether it supports cross-validation.
    takes_folds: bool = True

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[Any] | None:
        """Read one key per sample of all clients' training data for :meth:`divide`; called once.

        ``identities`` are the samples' molecules, for divisions that keep copies together; ``None`` if not known.
        """
        return None

    @abstractmethod
    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        """Divide one client's samples.

        Args:
            keys: keys of the client's samples from :meth:`read`; empty if there are none.
            cut: sizes, shares and randomness.

        Returns:
            Ascending positions 0..n-1 under "train", "val" and "test", disjoint; other samples stay unused.
        """


def read_texts(dataset: Dataset, column: str | None, reader: str, *, gaps: bool = False) -> list[str]:
    """Read a column as texts; without a name, the row numbers of the samples, or their numbers from 0.

    ``gaps`` accepts empty cells, as "", if the data set has a method ``cells(name)``; ``reader`` is named in errors.
    """
    if column is not None and gaps and hasattr(dataset, "cells"):
        return [(value or "").strip() for value in dataset.cells(column)]
    if column is not None:
        return [str(value).strip() for value in read_column(dataset, column, reader)]
    rows = sample_rows(dataset)
    return [str(row) for row in (range(len(dataset)) if rows is None else rows)]  # type: ignore[arg-type]


def check_train(parts: dict[Split, Tensor], cut: Cut, remedy: str) -> dict[Split, Tensor]:
    """Return the parts; refuse parts without training samples."""
    if len(parts["train"]) == 0:
        raise DataError(f"client {cut.name}: none of its {cut.size} samples is for training: {remedy}.")
    return parts
