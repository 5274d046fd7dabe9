"""Task, scale and classes of the training targets, from counts and ranges alone."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.data.text_table import list_rows
from lightning_fl.functional.task_metrics import TaskName

__all__ = [
    "check_labels",
    "check_task_options",
    "check_weight_counts",
    "class_counts",
    "infer_task",
    "make_class_weights",
    "pool_moments",
    "pool_ranges",
    "refuse_bounds",
    "target_moments",
    "target_ranges",
]

#: Below it, whole numbers may well be classes.
_MAX_LIKELY_CLASSES = 20
#: More classes are only accepted if the user gives their number.
_MAX_INFERRED_CLASSES = 1000


def target_moments(targets: Tensor) -> Tensor:
    """Compute count, mean and sum of squared deviations of the present entries of each target, in float64.

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
    """Pool the :func:`target_moments` [parts, 3, T] of parts to mean [T] and population standard deviation [T].

    By Chan, Golub and LeVeque 1983: the squared deviations are those within the parts plus those of their means.
    NaN for a target with no value.
    """
    count, mean, deviations = moments.unbind(dim=1)
    total = count.sum(dim=0)
    pooled_mean = (count * mean).sum(dim=0) / total
    pooled_deviations = (deviations + count * (mean - pooled_mean).square()).sum(dim=0)
    return pooled_mean, (pooled_deviations / total).sqrt()


def target_ranges(targets: Tensor) -> Tensor:
    """Compute count, minimum, maximum and number of fractional values of each target, in float64.

    Args:
        targets: [n, T], NaN where a value is missing.

    Returns:
        [4, T]; minimum and maximum are inf and -inf where the count is 0.
    """
    targets = targets.double()
    missing = targets.isnan()
    most = targets.new_full((1, targets.shape[1]), torch.inf)  # there may be no sample
    return torch.stack(
        [
            (~missing).sum(dim=0),
            torch.cat([most, targets.masked_fill(missing, torch.inf)]).amin(dim=0),
            torch.cat([-most, targets.masked_fill(missing, -torch.inf)]).amax(dim=0),
            (targets != targets.round()).logical_and(~missing).sum(dim=0),
        ]
    )


def pool_ranges(ranges: Tensor) -> Tensor:
    """Pool the :func:`target_ranges` [parts, 4, T] of parts to those of all, [4, T]."""
    count, least, largest, fractions = ranges.unbind(dim=1)
    return torch.stack([count.sum(0), least.amin(0), largest.amax(0), fractions.sum(0)])


def class_counts(targets: Tensor, num_classes: int) -> Tensor:
    """Count the samples of each class of each target, [n, T] with NaN for a missing label; float64 [T, C]."""
    return torch.stack([(targets == kind).sum(dim=0) for kind in range(num_classes)], dim=1).double()


def infer_task(ranges: Tensor, task: TaskName | None, num_classes: int | None = None) -> tuple[TaskName, int, str]:
    """Infer the task from the targets, or check that they fit the given one.

    Args:
        ranges: [4, T] of all training targets.
        task: the user's choice, or ``None``.
        num_classes: the user's choice for several classes, or ``None``.

    Returns:
        The task, its number of classes (2 for a classification, 1 for a regression), and a description for the user.

    Raises:
        DataError: a target of a regression has no value, or values are not labels of the given task.
    """
    count, least, largest, fractions = ranges
    low, high, whole = float(least.min()), float(largest.max()), not bool(fractions.any())
    binary = whole and low >= 0 and high <= 1
    taken: TaskName = task or ("classification" if binary else "regression")
    _check_values(taken, count, low, high, whole)
    targets = "1 target" if len(count) == 1 else f"{len(count)} targets"
    if taken == "classification":
        return taken, 2, f"classification, {targets}{'' if task else ', as all training targets are 0 or 1'}"
    if taken == "multiclass":
        classes = _count_classes(int(high) + 1, num_classes)
        return taken, classes, f"multiclass, {targets} of {classes} classes"
    hint = ""
    if task is None and whole and low >= 0 and high < _MAX_LIKELY_CLASSES:
        hint = f"; they are whole numbers up to {high:g}: set task='multiclass' if they are classes"
    return taken, 1, f"regression, {targets} between {low:g} and {high:g}{hint}"


def check_labels(
    task: TaskName, num_classes: int, ranges: Tensor, what: str, names: Sequence[str] | None = None
) -> None:
    """Refuse labels that a model cannot have been trained for.

    Args:
        task: "classification" or "multiclass".
        num_classes: C of the model.
        ranges: [4, T] of the labels.
        what: description of the labels, for the message.
        names: names of the targets, if they have any.

    Raises:
        DataError: a label is not in 0 to C - 1.
    """
    count, least, largest, fractions = ranges
    wrong = (count > 0) & ((least < 0) | (largest > num_classes - 1) | (fractions > 0))
    if not wrong.any():
        return
    target = int(wrong.nonzero()[0])
    low, high = float(least[target]), float(largest[target])
    known = names is not None and len(names) == ranges.shape[1]
    named = f"target {names[target]!r}" if known and names else f"target {target} (counted from 0)"
    fault = (
        f"{what}, {named}, are between {low:g} and {high:g}"
        f"{', some of them fractional' if fractions[target] else ''}, but must be"
    )
    if task == "classification":
        raise DataError(
            f"{fault} 0 or 1 for task='classification': correct or empty these cells, or choose another task."
        )
    remedy = ""
    if not fractions[target] and low >= 0:
        remedy = f", or set num_classes={high + 1:g} if class {high:g} is missing in the training data"
    raise DataError(f"{fault} whole numbers from 0 to {num_classes - 1}: correct or empty these cells{remedy}.")


def refuse_bounds(task: TaskName, data: Any) -> None:
    """Refuse a data module's censored values in a classification, which would treat bounds as classes."""
    dataset: Any = getattr(data, "dataset", None)
    bounds: Tensor | None = getattr(dataset, "bounds", None)
    if task == "regression" or bounds is None or not bounds.any():
        return
    places = bounds.nonzero()
    cells = [f"{'<' if bounds[row, k] < 0 else '>'} {dataset.targets[row, k]:g}" for row, k in places.tolist()]
    listed_rows = list_rows([dataset.rows[row] for row, _ in places.tolist()], cells)
    raise DataError(
        f"task={task!r}: {len(cells)} targets are bounds (censored), which only a regression allows: {listed_rows}."
        " Correct or empty these cells, or set task='regression'."
    )


def _check_values(task: TaskName, count: Tensor, low: float, high: float, whole: bool) -> None:
    """Refuse targets that do not fit a task, and for a regression targets without values, which have no scale."""
    empty = (count == 0).nonzero().flatten().tolist()
    if empty and (task == "regression" or len(empty) == len(count)):
        raise DataError(
            f"targets [{listed(list(map(str, empty)))}] (counted from 0) have no value in any client's training data:"
            " leave these columns out."
        )
    fault = f"task={task!r}: the training targets are between {low:g} and {high:g}"
    if task == "classification" and not (whole and low >= 0 and high <= 1):
        raise DataError(
            f"{fault}, but must be 0 or 1. Use task='multiclass' for class numbers from 0 on, or task='regression'."
        )
    if task == "multiclass" and not (whole and low >= 0 and math.isfinite(high)):
        raise DataError(f"{fault}{'' if whole else ', some of them fractional'}, but must be class numbers from 0 on.")


def _count_classes(found: int, given: int | None) -> int:
    """Number of classes in the training targets, or a larger one from the user."""
    if given is None and found > _MAX_INFERRED_CLASSES:
        raise DataError(
            f"task='multiclass': the training targets go up to {found - 1}, which would be {found} classes: number the"
            f" classes from 0 on, or set num_classes={found} if there are that many."
        )
    if given is not None and found > given:
        raise DataError(
            f"num_classes={given}: the training targets go up to {found - 1}; set num_classes={found}, or omit it."
        )
    return max(2, found) if given is None else given


def check_task_options(
    task: TaskName, class_weights: str | float | list[float] | None, min_positives: int, min_negatives: int
) -> None:
    """Refuse options that a task does not have.

    Raises:
        ConfigurationError: class weights for a regression, or numbers of labels for another task than classification.
    """
    if class_weights is not None and task == "regression":
        raise ConfigurationError(
            f"class_weights={class_weights!r}: a regression has no classes; omit it, or set task='classification'."
        )
    if class_weights not in (None, "balanced") and task == "multiclass":
        raise ConfigurationError(
            f"class_weights={class_weights!r}: must be 'balanced' for several classes; numbers are for"
            " task='classification'."
        )
    for name, least in (("min_positives", min_positives), ("min_negatives", min_negatives)):
        if least != 1 and task != "classification":
            raise ConfigurationError(f"{name}={least} is for task='classification', but task={task!r}: omit it.")


def check_weight_counts(
    num_targets: int, class_weights: str | float | list[float] | None, task_weights: list[float] | None
) -> None:
    """Refuse lists of weights that do not have one number for each target."""
    for name, weights in (("class_weights", class_weights), ("task_weights", task_weights)):
        if isinstance(weights, list | tuple) and len(weights) != num_targets:
            one = "one, or one for each" if name == "class_weights" else "one for each"
            raise ConfigurationError(f"{name} has {len(weights)} numbers for {num_targets} targets: give {one}.")


def make_class_weights(
    counts: Tensor, choice: Literal["balanced"] | float | list[float] | None, binary: bool
) -> Tensor:
    """Make the factors of the losses of classes.

    Args:
        counts: training samples of each class of each target, [T, C].
        choice: ``"balanced"`` for n / (C n_c) (for two classes: n_0 / n_1 for class 1); a number, or one for each
            target, for class 1 of two; ``None`` for 1.
        binary: whether there are two classes, where only class 1 has a factor.

    Returns:
        [T] if ``binary``, else [T, C]. A class without samples has the factor 1.
    """
    if choice == "balanced":
        if binary:
            return torch.where((counts > 0).all(1), counts[:, 0] / counts[:, 1].clamp(min=1), 1.0).float()
        balanced = counts.sum(1, keepdim=True) / (counts.shape[1] * counts.clamp(min=1))
        return torch.where(counts > 0, balanced, 1.0).float()
    if choice is None:
        return torch.ones(len(counts) if binary else tuple(counts.shape))
    weights = [choice] * len(counts) if isinstance(choice, int | float) else list(choice)
    return torch.tensor(weights, dtype=torch.float32)
