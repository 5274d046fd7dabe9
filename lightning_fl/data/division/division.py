"""Base class of divisions of one client's samples, the random one, and what several share: whole groups, and folds."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Generator, Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import generator
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.classes import random_parts, stratified_parts
from lightning_fl.data.partition.partitioner import Scheme, read_column, sample_rows
from lightning_fl.data.sizes import apportion, check_fractions, remaining_fractions, split_sizes

#: K of K-fold cross-validation.
Folds = Annotated[int, Ge(2)]


@dataclass(frozen=True)
class Cut:
    """Task of dividing one client's n samples, in the order of the data set."""

    size: int  #: n
    fractions: Sequence[float]  #: shares of train, val and test, with sum 1; 0 for a split that is not cut here
    own: Sequence[Split]  #: splits with samples of their own, including "train"; the others are cut
    seed: int
    client: int
    name: str  #: draws by the client's name do not depend on the other clients
    labels: Tensor | None = None  #: classes with proportions to keep, integers [n]
    copies: Tensor | None = None  #: samples with equal numbers are one molecule and stay in one part, int64 [n]
    folds: int | None = None  #: K for the parts of K-fold cross-validation; ``None`` for parts by ``fractions``
    fold: int = 0  #: the fold for testing, 0..K-1

    def generator(self, purpose: str) -> Generator:
        return generator(self.seed, "division", purpose, self.name)

    @property
    def is_cut(self) -> dict[Split, bool]:
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
        return dict(zip(SPLITS, parts, strict=True))


class Division(Scheme, ABC):
    """Divides one client's samples into training, validation and test samples.

    A custom division needs only :meth:`divide`, and :meth:`read` for what the data set knows about its samples.
    """

    #: Whether it supports cross-validation.
    takes_folds: bool = True

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[Any] | None:
        """Read one key per sample of all clients' training data for :meth:`divide`; called once.

        ``identities`` are the samples' molecules; ``None`` if not known.
        """
        return None

    @abstractmethod
    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        """Divide one client's samples: ascending, disjoint positions 0..n-1 under "train", "val" and "test".

        ``keys`` are those of the client's samples from :meth:`read`, empty if there are none. Samples may stay unused.
        """


def read_texts(dataset: Dataset, column: str | None, reader: str, *, gaps: bool = False) -> list[str]:
    """Read a column as texts; without a name, the row numbers of the samples, or their numbers from 0.

    ``gaps`` accepts empty cells, as "", of a data set with ``cells(name)``; ``reader`` is named in errors.
    """
    if column is not None and gaps and hasattr(dataset, "cells"):
        return [(value or "").strip() for value in dataset.cells(column)]
    if column is not None:
        values = read_column(dataset, column, reader)
        missing = next((place for place, value in enumerate(values) if value is None), None)
        if missing is not None and not gaps:
            raise DataError(f"{reader}.column={column!r}: sample {missing} (from 0) has no value: fill it.")
        return ["" if value is None else str(value).strip() for value in values]
    rows = sample_rows(dataset)
    return [str(row) for row in (range(len(dataset)) if rows is None else rows)]  # type: ignore[arg-type]


def check_train(parts: dict[Split, Tensor], cut: Cut, remedy: str) -> dict[Split, Tensor]:
    """Return the parts; refuse parts without training samples."""
    if len(parts["train"]) == 0:
        raise DataError(f"client {cut.name}: none of its {cut.size} samples is for training: {remedy}.")
    return parts


def group_numbers(keys: Sequence[str]) -> Tensor:
    """The group number of every sample, int64 [n]; groups are numbered in the order of their names."""
    number = {name: place for place, name in enumerate(sorted(set(keys)))}
    return torch.tensor([number[key] for key in keys], dtype=torch.long)


def grouped_parts(groups: Tensor, fractions: Sequence[float], rng: Generator, *, balanced: bool = True) -> list[Tensor]:
    """Divide samples of groups [n], integers >= 0, into training, validation and test samples without cutting a group.

    Each group in turn goes to the first of the three parts that it still fits into, else to the last with a share; the
    first group is always for training. Ties are in random order; ``balanced`` is that of
    :class:`~lightning_fl.data.division.GroupDivision`. The result does not depend on the order of the samples.
    """
    names, counts = groups.unique(return_counts=True)
    sizes = apportion(len(groups), fractions)
    order = torch.randperm(len(names), generator=rng).tolist()
    held_out = [size for size, share in zip(sizes[1:], fractions[1:], strict=True) if share > 0]
    large = min(held_out, default=0) / 2 if balanced else 0  # larger groups come first, from the largest on
    order.sort(key=lambda place: -int(counts[place]) if counts[place] > large else 0)
    last = max(part for part, share in enumerate(fractions) if share > 0)
    filled = [0, 0, 0]
    part_of = torch.empty(len(names), dtype=torch.long)
    for place in order:
        count = int(counts[place])
        fitting = [part for part in range(3) if fractions[part] > 0 and filled[part] + count <= sizes[part]]
        part = 0 if filled[0] == 0 else fitting[0] if fitting else last
        filled[part] += count
        part_of[place] = part
    owner = part_of[torch.searchsorted(names, groups)]
    return [(owner == part).nonzero()[:, 0] for part in range(3)]


def fold_numbers(
    num_samples: int, num_folds: int, rng: Generator, *, groups: Tensor | None = None, labels: Tensor | None = None
) -> Tensor:
    """The fold 0..K-1 of every sample, int64 [n]; folds have equal sizes, as nearly as whole groups allow.

    Groups [n], from the largest on, each go to the fold with the fewest samples (like scikit-learn's ``GroupKFold``),
    ties in random order. Without groups, the proportions of ``labels`` [n] are kept in every fold.
    """
    count, noun = (num_samples, "samples") if groups is None else (len(groups.unique()), "groups")
    if count < num_folds:
        raise DataError(f"{count} {noun} for folds={num_folds}: use fewer folds, or larger clients.")
    folds = torch.empty(num_samples, dtype=torch.long)
    if groups is None:
        sizes = apportion(num_samples, [1.0] * num_folds)
        for fold, part in enumerate(random_parts(num_samples, sizes, rng, labels)):
            folds[part] = fold
        return folds
    names, counts = groups.unique(return_counts=True)
    filled = torch.zeros(num_folds, dtype=torch.long)
    fold_of = torch.empty(len(names), dtype=torch.long)
    order = torch.randperm(len(names), generator=rng).tolist()
    for place in sorted(order, key=lambda place: -int(counts[place])):
        fold_of[place] = int(filled.argmin())
        filled[fold_of[place]] += counts[place]
    return fold_of[torch.searchsorted(names, groups)]


class RandomDivision(Division):
    """Random division, the default; if ``stratified``, classes keep their proportions, in parts of the same sizes."""

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        if cut.folds is not None:
            rng = cut.generator("random folds")
            return cut.by_folds(fold_numbers(cut.size, cut.folds, rng, groups=cut.copies, labels=cut.labels))
        if cut.copies is not None:
            return cut.by_fractions(grouped_parts(cut.copies, cut.fractions, cut.generator("random groups")))
        return split_indices(torch.arange(cut.size), cut.fractions, cut.seed, cut.client, labels=cut.labels)


def cut_splits(
    train: Tensor,
    fractions: Sequence[float],
    seed: int,
    client: int,
    *,
    own: Sequence[Split] = ("train",),
    labels: Tensor | None = None,
) -> dict[Split, Tensor]:
    """Cut the splits that are not in ``own`` from a client's ascending samples of the training data.

    The shares of splits in ``own`` are ignored. ``labels``, classes of all training data, keep their proportions.
    """
    of_client = None if labels is None else labels[train]
    parts = split_indices(train, remaining_fractions(fractions, own), seed, client, labels=of_client)
    return {split: part for split, part in parts.items() if split == "train" or split not in own}


def split_indices(
    indices: Tensor, fractions: Sequence[float], seed: int, client: int, *, labels: Tensor | None = None
) -> dict[Split, Tensor]:
    """Divide one client's samples [n] at random into ascending training, validation and test samples.

    Depends on the set of indices, the seed and the client; sizes are :func:`~lightning_fl.data.sizes.split_sizes`. With
    ``labels``, classes [n] of ascending samples, their proportions are kept in every part.
    """
    check_fractions(fractions)
    total = len(indices)
    if total == 0:
        raise DataError(f"client {client} has no samples to split: use fewer clients, or another partitioner.")
    sizes = split_sizes(total, fractions)
    if labels is not None:
        parts = stratified_parts(labels, sizes, generator(seed, "split", "stratified", client))
        return {split: indices[part] for split, part in zip(SPLITS, parts, strict=True)}
    # Nothing is drawn where all samples train. NumPy sorts a small client's samples many times faster than torch.
    drawn = None if sizes[0] == total else torch.randperm(total, generator=generator(seed, "split", client)).numpy()
    ordered, starts = np.sort(indices.numpy()), [0, *itertools.accumulate(sizes)]
    return {
        split: torch.from_numpy(ordered[start:end] if drawn is None else ordered[np.sort(drawn[start:end])])
        for split, (start, end) in zip(SPLITS, itertools.pairwise(starts), strict=True)
    }
