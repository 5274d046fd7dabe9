"""Tasks of a model of molecules: meaning and loss of its outputs, and the targets and options that fit them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.files.text_table import list_rows
from lightning_fl.functional.task_metrics import TaskName, masked_binary_cross_entropy, masked_cross_entropy, masked_mse
from lightning_fl.models.training_targets import class_counts, gather_statistics, gather_summaries

#: Below it, whole numbers may well be classes.
_MAX_LIKELY_CLASSES = 20
#: More classes are only accepted if the user gives their number.
_MAX_INFERRED_CLASSES = 1000


class Task:
    """Base class of tasks: what a model's outputs [G, T], or [G, T, C] with one per class, mean.

    The methods get the model, which has ``target_mean`` [T], ``target_scale`` [T] and ``class_factors``, in
    :meth:`shape` or ``None``. ``ranges`` are the :func:`~lightning_fl.models.training_targets.target_ranges` [4, T].
    """

    name: TaskName
    classes: int | None  #: number C; ``None`` if the targets determine it, and each class has an output
    labelled: bool = True  #: targets are class labels, which are checked, and cannot be bounds
    over_values: tuple[str, ...] = ()  #: metrics over all values of a client, not means over the targets

    def shape(self, num_targets: int, num_classes: int) -> tuple[int, ...]:
        """Shape of the outputs of one molecule, and of the factors of its losses."""
        return (num_targets,) if self.classes else (num_targets, num_classes)

    def loss(self, model: Any, outputs: Tensor, y: Tensor, bound: Tensor | None, weights: Tensor | None) -> Tensor:
        """Compute the loss of standardised values or logits.

        ``y`` [G, T] are targets, NaN where a value is missing, ``bound`` [G, T] those of
        :func:`~lightning_fl.functional.task_metrics.bounded_error`, ``weights`` [T] factors of the targets' losses.
        """
        raise NotImplementedError

    def predictions(self, model: Any, outputs: Tensor) -> Tensor:
        """Convert outputs to values in the data's units, or to probabilities."""
        raise NotImplementedError

    def fit(self, model: Any) -> None:
        """Learn the factors of the classes from the training targets, if the model has any."""
        if model.class_factors is None:
            return
        counts = gather_summaries(model, lambda targets: class_counts(targets, model.num_classes))
        if counts is None:
            raise DataError("there are no training targets to count classes in: omit class_weights.")
        model.class_factors.copy_(self.factors(counts.sum(0), model.hparams["class_weights"]))
        model.target_learned.fill_(1)

    def factors(self, counts: Tensor, choice: Any) -> Tensor:
        """Make the factors of the classes' losses from their training samples [T, C]; 1 for a class without any.

        The choice is ``"balanced"``, n / (C n_c), or for two classes n_0 / n_1 for class 1, the only one with a factor;
        a number, or one for each target, for class 1 of two.
        """
        raise NotImplementedError

    def infer(self, ranges: Tensor, num_classes: int | None, *, given: bool) -> tuple[int, str]:
        """Refuse training targets that do not fit; return the number of classes, and what to add to the description.

        ``num_classes`` is the user's choice; ``given`` says whether the user named the task.
        """
        raise NotImplementedError

    def check_labels(self, classes: int, ranges: Tensor, what: str, names: Sequence[str] | None = None) -> None:
        """Refuse labels that are not in 0 to C - 1; ``what`` describes them and ``names`` are the targets'."""
        count, least, largest, fractions = ranges
        wrong = (count > 0) & ((least < 0) | (largest > classes - 1) | (fractions > 0))
        if not self.labelled or not wrong.any():
            return
        target = int(wrong.nonzero()[0])
        low, high, whole = float(least[target]), float(largest[target]), not fractions[target]
        named = f"{names[target]!r}" if names and len(names) == ranges.shape[1] else f"{target} (counted from 0)"
        wanted, remedy = f"0 or 1 for task={self.name!r}", ", or choose another task"
        if not self.classes:
            wanted = f"whole numbers from 0 to {classes - 1}"
            missing = f", or set num_classes={high + 1:g} if class {high:g} is missing in the training data"
            remedy = missing if whole and low >= 0 else ""
        found = f"between {low:g} and {high:g}{'' if whole else ', some of them fractional'}"
        raise DataError(f"{what}, target {named}, are {found}, but must be {wanted}: correct or empty them{remedy}.")

    def refuse_bounds(self, data: Any) -> None:
        """Refuse a data module's censored values, which would be learned as classes."""
        dataset: Any = getattr(data, "dataset", None)
        bounds: Tensor | None = getattr(dataset, "bounds", None)
        if not self.labelled or bounds is None or not bounds.any():
            return
        places = bounds.nonzero().tolist()
        cells = [f"{'<' if bounds[row, k] < 0 else '>'} {dataset.targets[row, k]:g}" for row, k in places]
        rows = list_rows([dataset.rows[row] for row, _ in places], cells)
        what = f"{len(cells)} targets are bounds (censored), which only task='regression' allows"
        raise DataError(f"task={self.name!r}: {what}: {rows}. Correct or empty these cells.")


class _Regression(Task):
    """Values, exact or censored, with squared errors of standardised values; none on the right side of a bound."""

    name, classes, labelled, over_values = "regression", 1, False, ("rmse", "mae")

    def loss(self, model: Any, outputs: Tensor, y: Tensor, bound: Tensor | None, weights: Tensor | None) -> Tensor:
        return masked_mse(outputs, (y - model.target_mean) / model.target_scale, bound, weights)

    def predictions(self, model: Any, outputs: Tensor) -> Tensor:
        return outputs * model.target_scale + model.target_mean

    def fit(self, model: Any) -> None:
        if model.hparams["standardize_targets"]:
            model.set_target_statistics(*gather_statistics(model, "y"))

    def infer(self, ranges: Tensor, num_classes: int | None, *, given: bool) -> tuple[int, str]:
        low, high, whole = _extremes(ranges)
        hint = ""
        if not given and whole and low >= 0 and high < _MAX_LIKELY_CLASSES:
            hint = f"; they are whole numbers up to {high:g}: set task='multiclass' if they are classes"
        return 1, f" between {low:g} and {high:g}{hint}"


class _Classification(Task):
    """Labels 0 and 1 of each target, with logits of class 1 and the binary cross-entropy."""

    name, classes = "classification", 2

    def loss(self, model: Any, outputs: Tensor, y: Tensor, bound: Tensor | None, weights: Tensor | None) -> Tensor:
        return masked_binary_cross_entropy(outputs, y, model.class_factors, weights)

    def predictions(self, model: Any, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def factors(self, counts: Tensor, choice: Any) -> Tensor:
        if choice == "balanced":
            return torch.where((counts > 0).all(1), counts[:, 0] / counts[:, 1].clamp(min=1), 1.0).float()
        weights = [choice] * len(counts) if isinstance(choice, int | float) else list(choice)
        return torch.tensor(weights, dtype=torch.float32)

    def infer(self, ranges: Tensor, num_classes: int | None, *, given: bool) -> tuple[int, str]:
        if not _are_binary(ranges):
            raise DataError(f"{_fault(self, ranges)}, but must be 0 or 1. Use task='multiclass' or 'regression'.")
        return 2, "" if given else ", as all training targets are 0 or 1"


class _Multiclass(Task):
    """Class numbers from 0 to C - 1, with a logit for each class and the cross-entropy."""

    name, classes = "multiclass", None

    def loss(self, model: Any, outputs: Tensor, y: Tensor, bound: Tensor | None, weights: Tensor | None) -> Tensor:
        return masked_cross_entropy(outputs, y, model.class_factors, weights)

    def predictions(self, model: Any, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def factors(self, counts: Tensor, choice: Any) -> Tensor:
        balanced = counts.sum(1, keepdim=True) / (counts.shape[1] * counts.clamp(min=1))
        return torch.where(counts > 0, balanced, 1.0).float()

    def infer(self, ranges: Tensor, num_classes: int | None, *, given: bool) -> tuple[int, str]:
        low, high, whole = _extremes(ranges)
        if not (whole and low >= 0 and math.isfinite(high)):
            fractions = "" if whole else ", some of them fractional"
            raise DataError(f"{_fault(self, ranges)}{fractions}, but must be classes from 0 on. Renumber them.")
        found = int(high) + 1
        if num_classes is None and found > _MAX_INFERRED_CLASSES:
            remedy = f"number the classes from 0 on, or set num_classes={found}"
            raise DataError(f"task='multiclass': the training targets go up to {found - 1}: {remedy}.")
        if num_classes is not None and found > num_classes:
            raise DataError(f"num_classes={num_classes}: the targets go up to {found - 1}; set num_classes={found}.")
        taken = num_classes or max(2, found)
        return taken, f" of {taken} classes"


TASKS: dict[TaskName, Task] = {task.name: task for task in (_Regression(), _Classification(), _Multiclass())}

#: Option of a model -> its default, and the tasks that have it (``None``: not known yet).
_OPTIONS: dict[str, tuple[Any, tuple[TaskName | None, ...]]] = {
    "num_classes": (None, ("multiclass",)),
    "class_weights": (None, ("classification", "multiclass", None)),
    "min_positives": (1, ("classification", None)),
    "min_negatives": (1, ("classification", None)),
}


def infer_task(ranges: Tensor, task: TaskName | None, num_classes: int | None = None) -> tuple[TaskName, int, str]:
    """Infer the task from the training targets' ranges [4, T], or check that they fit the user's choice.

    Returns:
        The task, its number of classes (1 for a regression), and a description for the user.
    """
    count = ranges[0]
    taken: TaskName = task or ("classification" if _are_binary(ranges) else "regression")
    empty = (count == 0).nonzero().flatten().tolist()
    if empty and (not TASKS[taken].labelled or len(empty) == len(count)):
        raise DataError(f"targets [{listed(list(map(str, empty)))}] (from 0) have no training value: omit them.")
    classes, more = TASKS[taken].infer(ranges, num_classes, given=task is not None)
    return taken, classes, f"{taken}, {len(count)} target{'' if len(count) == 1 else 's'}{more}"


def _extremes(ranges: Tensor) -> tuple[float, float, bool]:
    """Least and largest target, and whether all are whole."""
    return float(ranges[1].min()), float(ranges[2].max()), not bool(ranges[3].any())


def _are_binary(ranges: Tensor) -> bool:
    low, high, whole = _extremes(ranges)
    return whole and low >= 0 and high <= 1


def _fault(task: Task, ranges: Tensor) -> str:
    low, high, _ = _extremes(ranges)
    return f"task={task.name!r}: the training targets are between {low:g} and {high:g}"


def check_options(options: Mapping[str, Any], task: TaskName | None, num_targets: int | None) -> None:
    """Refuse options of a model that do not fit its task or number of targets, where these are known."""
    for name, (default, tasks) in _OPTIONS.items():
        if options[name] != default and task not in tasks:
            wanted = " or ".join(repr(one) for one in tasks if one)
            raise ConfigurationError(f"{name}={options[name]!r} is for task={wanted}, but task={task!r}: omit it.")
    weights = options["class_weights"]
    if task == "multiclass" and weights not in (None, "balanced"):
        raise ConfigurationError(f"class_weights={weights!r}: must be 'balanced' for several classes.")
    for name, one in (("class_weights", "one, or one for each"), ("task_weights", "one for each")):
        given = options[name]
        if num_targets is not None and isinstance(given, list | tuple) and len(given) != num_targets:
            raise ConfigurationError(f"{name} has {len(given)} numbers for {num_targets} targets: give {one}.")
