"""Random division, the default."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.seeding import generator
from lightning_fl.data.division.division import Cut, Division
from lightning_fl.data.division.parts import fold_numbers, grouped_parts
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.sizes import remaining_fractions, split_indices
from lightning_fl.data.partition.stratified import stratified_parts

__all__ = ["RandomDivision", "cut_splits"]


class RandomDivision(Division):
    """Random division, the default; if ``stratified``, classes keep their proportions, in parts of the same sizes."""

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        """Divide by :func:`~lightning_fl.data.partition.split_indices`; copies of a molecule stay together."""
        if cut.folds is not None:
            rng = cut.generator("random folds")
            return cut.by_folds(fold_numbers(cut.size, cut.folds, rng, groups=cut.copies, labels=cut.labels))
        if cut.copies is not None:
            return cut.by_fractions(grouped_parts(cut.copies, cut.fractions, cut.generator("random groups")))
        parts = split_indices(torch.arange(cut.size), cut.fractions, cut.seed, cut.client)
        if cut.labels is None:
            return parts
        sizes = [len(part) for part in parts.values()]
        rng = generator(cut.seed, "split", "stratified", cut.client)
        return cut.by_fractions(stratified_parts(cut.labels, sizes, rng))


def cut_splits(
    train: Tensor,
    fractions: Sequence[float],
    seed: int,
    client: int,
    *,
    own: Sequence[Split] = ("train",),
    labels: Tensor | None = None,
) -> dict[Split, Tensor]:
    """Cut the splits without a data set of their own from a client's training samples.

    Args:
        train: the client's samples in the training data, int64, shape [n], n >= 1.
        fractions: shares of train, val and test; those of the splits in ``own`` are ignored.
        seed: seed of the partition.
        client: number of the client.
        own: splits with samples of their own, including "train".
        labels: classes of all training data, integers, to keep their proportions; ``None`` to ignore classes.

    Returns:
        Ascending indices under "train" and under every split that is not in ``own``.
    """
    cut = Cut(
        size=len(train),
        fractions=remaining_fractions(fractions, own),
        own=own,
        seed=seed,
        client=client,
        name=str(client),
        labels=None if labels is None else labels[train],
    )
    parts = RandomDivision().divide([], cut)
    return {split: train[parts[split]] for split in SPLITS if cut.is_cut[split]}
