"""The default: at random."""

from typing import Any

import torch
from torch import Tensor

from lightning_fl.data.division.division import Cut, Division
from lightning_fl.data.division.parts import fold_numbers, grouped_parts
from lightning_fl.data.module import Split
from lightning_fl.data.partition.sizes import split_indices
from lightning_fl.data.partition.stratified import split_stratified

__all__ = ["RandomDivision"]


class RandomDivision(Division):
    """At random, as without a division; with ``stratified`` the classes keep their proportions."""

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        """See :func:`~lightning_fl.data.partition.split_indices`; copies are put as whole groups."""
        if cut.folds is not None:
            rng = cut.generator("random folds")
            return cut.by_folds(fold_numbers(cut.size, cut.folds, rng, groups=cut.copies, labels=cut.labels))
        if cut.copies is not None:
            return cut.by_fractions(grouped_parts(cut.copies, cut.fractions, cut.generator("random groups")))
        samples = torch.arange(cut.size)
        if cut.labels is None:
            return split_indices(samples, cut.fractions, cut.seed, cut.client)
        return split_stratified(samples, cut.labels, cut.fractions, cut.seed, cut.client)
