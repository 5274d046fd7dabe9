"""Pure functions that several divisions of one client's samples share: whole groups, and folds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.data.partition.stratified import stratified_parts
from lightning_fl.data.sizes import apportion


def group_numbers(keys: Sequence[str]) -> Tensor:
    """The group number of every sample, int64 [n]; groups are numbered in the order of their names."""
    number = {name: place for place, name in enumerate(sorted(set(keys)))}
    return torch.tensor([number[key] for key in keys], dtype=torch.long)


def grouped_parts(
    groups: Tensor, fractions: Sequence[float], rng: torch.Generator, *, balanced: bool = True
) -> list[Tensor]:
    """Divide samples of groups [n], integers >= 0, into training, validation and test samples without cutting a group.

    Each group in turn goes to the first of the three parts that it still fits into, else to the last with a share; the
    first group is always for training. Ties are in random order; ``balanced`` is that of
    :class:`~lightning_fl.data.division.GroupDivision`. The result does not depend on the order of the samples.
    """
    names, counts = groups.unique(return_counts=True)
    sizes = apportion(len(groups), fractions)
    order = torch.randperm(len(names), generator=rng).tolist()
    if balanced:
        held_out = [size for size, share in zip(sizes[1:], fractions[1:], strict=True) if share > 0]
        large = min(held_out, default=0) / 2
        order.sort(key=lambda place: -int(counts[place]) if counts[place] > large else 0)
    else:
        order.sort(key=lambda place: -int(counts[place]))
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
    num_samples: int,
    num_folds: int,
    rng: torch.Generator,
    *,
    groups: Tensor | None = None,
    labels: Tensor | None = None,
) -> Tensor:
    """The fold of every sample; folds have equal sizes, as nearly as whole groups allow.

    Args:
        num_samples: n.
        num_folds: K.
        rng: generator of the draws.
        groups: the group of every sample, [n]: from the largest on, each goes to the fold with the fewest samples (like
            scikit-learn's ``GroupKFold``), ties in random order.
        labels: classes of the samples, integers, [n], to keep their proportions in every fold; without ``groups``.

    Returns:
        Folds 0..K-1, int64 [n].
    """
    folds = torch.empty(num_samples, dtype=torch.long)
    if groups is None:
        _check_units(num_samples, num_folds, "samples")
        sizes = apportion(num_samples, [1.0] * num_folds)
        parts = (
            torch.randperm(num_samples, generator=rng).split(sizes)
            if labels is None
            else stratified_parts(labels, sizes, rng)
        )
        for fold, part in enumerate(parts):
            folds[part] = fold
        return folds
    names, counts = groups.unique(return_counts=True)
    _check_units(len(names), num_folds, "groups")
    filled = torch.zeros(num_folds, dtype=torch.long)
    fold_of = torch.empty(len(names), dtype=torch.long)
    order = torch.randperm(len(names), generator=rng).tolist()
    for place in sorted(order, key=lambda place: -int(counts[place])):
        fold_of[place] = int(filled.argmin())
        filled[fold_of[place]] += counts[place]
    return fold_of[torch.searchsorted(names, groups)]


def _check_units(count: int, num_folds: int, noun: str) -> None:
    if count < num_folds:
        raise DataError(f"{count} {noun} for folds={num_folds}: use fewer folds, or larger clients.")
