"""What the training targets are, from counts and ranges alone: which task they ask for, their scale, their classes."""

from typing import Literal

import torch
from torch import Tensor

from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.models.task_metrics import TaskName

__all__ = [
    "class_counts",
    "class_weights_of",
    "infer_task",
    "pool_moments",
    "pool_ranges",
    "target_moments",
    "target_ranges",
]

#: Whole numbers of so few values may well be classes.
_MOST_CLASSES = 20


def target_moments(targets: Tensor) -> Tensor:
    """Count, mean and sum of squared deviations of the present entries of each target, in float64.

    Args:
        targets: [n, T], NaN where a value is missing.

    Returns:
        [3, T]; mean and deviations are 0 where the count is 0.
    """
    targets = targets.double()
    count = (~targets.isnan()).sum(dim=0)
    mean = targets.nansum(dim=0) / count.clamp(min=1)
    return torch.stack([count, mean, (targets - mean).square().nansum(dim=0)])


def pool_moments(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [T] and population standard deviation [T] of several parts' :func:`target_moments` [parts, 3, T].

    By Chan, Golub and LeVeque 1983: the squared deviations are those within the parts plus those of their means.
    NaN for a target with no value.
    """
    count, mean, deviations = moments.unbind(dim=1)
    total = count.sum(dim=0)
    pooled_mean = (count * mean).sum(dim=0) / total
    pooled_deviations = (deviations + count * (mean - pooled_mean).square()).sum(dim=0)
    return pooled_mean, (pooled_deviations / total).sqrt()


def target_ranges(targets: Tensor) -> Tensor:
    """Count, least, largest and number of values that are not whole of each target, in float64.

    Args:
        targets: [n, T], NaN where a value is missing.

    Returns:
        [4, T]; least and largest are inf and -inf where the count is 0.
    """
    targets = targets.double()
    missing = targets.isnan()
    return torch.stack(
        [
            (~missing).sum(dim=0),
            targets.masked_fill(missing, torch.inf).amin(dim=0),
            targets.masked_fill(missing, -torch.inf).amax(dim=0),
            (targets != targets.round()).logical_and(~missing).sum(dim=0),
        ]
    )


def pool_ranges(ranges: Tensor) -> Tensor:
    """The :func:`target_ranges` [4, T] of all parts' [parts, 4, T] together."""
    count, least, largest, fractions = ranges.unbind(dim=1)
    return torch.stack([count.sum(0), least.amin(0), largest.amax(0), fractions.sum(0)])


def class_counts(targets: Tensor, num_classes: int) -> Tensor:
    """Samples of each class of each target, float64 [T, C]; targets are [n, T], NaN where a label is missing."""
    return torch.stack([(targets == kind).sum(dim=0) for kind in range(num_classes)], dim=1).double()


def infer_task(ranges: Tensor, task: TaskName | None) -> tuple[TaskName, int, str]:
    """The task that targets ask for, where none is named, and whether they fit the one that is.

    Args:
        ranges: [4, T] of all training targets.
        task: the user's choice, or ``None``.

    Returns:
        The task, its number of classes (2 for a classification, 1 for a regression), and what was taken, in words.

    Raises:
        DataError: a target has no value, or the values are no labels of the named task.
    """
    count, least, largest, fractions = ranges
    empty = (count == 0).nonzero().flatten().tolist()
    if empty:
        raise DataError(
            f"targets {empty} (counted from 0) have no value in any client's training data: leave these columns out."
        )
    low, high, whole = float(least.min()), float(largest.max()), not bool(fractions.any())
    binary = whole and low >= 0 and high <= 1
    targets = "1 target" if len(count) == 1 else f"{len(count)} targets"
    if task == "classification" and not binary:
        raise DataError(
            f"task='classification': the training targets lie between {low:g} and {high:g}, and must be 0 or 1. Take"
            " task='multiclass' for numbers of classes from 0 on, or task='regression'."
        )
    if task == "multiclass":
        if not whole or low < 0:
            raise DataError(
                f"task='multiclass': the training targets lie between {low:g} and {high:g}"
                f"{'' if whole else ', some of them no whole numbers'}, and must be numbers of classes from 0 on."
            )
        classes = max(2, int(high) + 1)
        return "multiclass", classes, f"multiclass, {targets} of {classes} classes"
    if task == "classification" or (task is None and binary):
        why = "" if task else ", for all training targets are 0 or 1"
        return "classification", 2, f"classification, {targets}{why}"
    hint = ""
    if task is None and whole and low >= 0 and high < _MOST_CLASSES:
        hint = f"; they are whole numbers up to {high:g}: give task='multiclass' if they are classes"
    return "regression", 1, f"regression, {targets} between {low:g} and {high:g}{hint}"


def class_weights_of(counts: Tensor, choice: Literal["balanced"] | float | list[float] | None, binary: bool) -> Tensor:
    """Factors of the losses of classes.

    Args:
        counts: training samples of each class of each target, [T, C].
        choice: ``"balanced"`` for n / (C n_c) (of two classes: n_0 / n_1 for class 1); a number or one for each target
            for class 1 of two; ``None`` for 1.
        binary: of two classes, of which class 1 alone is weighted.

    Returns:
        [T] where ``binary``, else [T, C]. A class without a sample has the factor 1.

    Raises:
        ConfigurationError: numbers are given for more than two classes, or not one for each target.
    """
    if choice == "balanced":
        if binary:
            return torch.where((counts > 0).all(1), counts[:, 0] / counts[:, 1].clamp(min=1), 1.0).float()
        balanced = counts.sum(1, keepdim=True) / (counts.shape[1] * counts.clamp(min=1))
        return torch.where(counts > 0, balanced, 1.0).float()
    if choice is None:
        return torch.ones(len(counts) if binary else tuple(counts.shape))
    if not binary:
        raise ConfigurationError(
            f"class_weights={choice!r}: several classes are weighted by 'balanced' only; numbers are for task"
            " 'classification'."
        )
    weights = [choice] * len(counts) if isinstance(choice, int | float) else list(choice)
    if len(weights) != len(counts):
        raise ConfigurationError(
            f"class_weights has {len(weights)} numbers for {len(counts)} targets: give one, or one for each."
        )
    return torch.tensor(weights, dtype=torch.float32)
