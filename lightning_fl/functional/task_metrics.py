"""Metrics, by torchmetrics, and losses of several targets with missing values, per target and on average.

Targets are [n, T] with NaN for missing values, which have no gradient. A loss is the mean over the entries that are
present; 0 with zero gradient without any.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.functional import classification as of_classes
from torchmetrics.functional import pearson_corrcoef, r2_score, spearman_corrcoef

TaskName = Literal["regression", "classification", "multiclass"]

#: Metrics that are NaN if probabilities are not finite.
_OF_CLASSES = {
    "classification": ("auroc", "average_precision", "balanced_accuracy", "mcc", "calibration_error"),
    "multiclass": ("accuracy", "balanced_accuracy", "mcc", "auroc", "calibration_error"),
}


class TaskOutputs(Metric):
    """Predictions [n, T] or [n, T, C], targets [n, T] and bounds [n, T] (or ``None``) of a pass, its value."""

    full_state_update = False
    higher_is_better = None
    prediction: list[Tensor]
    target: list[Tensor]
    bound: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in ("prediction", "target", "bound"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, prediction: Tensor, target: Tensor, bound: Tensor | None = None) -> None:
        """Add a batch."""
        self.prediction.append(prediction.detach())
        self.target.append(target)
        if bound is not None:
            self.bound.append(bound)

    def compute(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """All batches."""
        return torch.cat(self.prediction), torch.cat(self.target), torch.cat(self.bound) if self.bound else None


@dataclass
class TaskScores:
    """The metrics of a pass.

    Attributes:
        mean: metric -> mean over the targets for which it is defined; metrics without any are left out.
        tasks: metric -> target's number -> value.
        left_out: number of a target without metrics -> reason.
    """

    mean: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, dict[int, float]] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)


def task_scores(
    task: TaskName,
    prediction: Tensor,
    target: Tensor,
    bound: Tensor | None = None,
    *,
    least: tuple[int, int] = (1, 1),
    train_mean: Tensor | None = None,
) -> TaskScores:
    """Metrics of every target, and their means over the targets.

    A target without values, or in a classification with fewer than ``least`` labels of a class, is left out.
    Classification: AUROC, average precision, balanced accuracy, Matthews' correlation coefficient, expected calibration
    error. Several classes: accuracy, balanced accuracy, Matthews, AUROC (mean over the classes that occur), calibration
    error. Regression: RMSE and MAE, with an error of 0 on the right side of a bound; of exact values R2 and Pearson's
    and Spearman's correlation.

    Args:
        prediction: [n, T] values or probabilities of class 1; for several classes probabilities [n, T, C].
        target: [n, T], NaN for missing values.
        bound: [n, T], see :func:`~lightning_fl.functional.task_metrics.bounded_error`.
        least: fewest positives and negatives of a classification target.
        train_mean: [T], means of the training targets, for the errors ``rmse_of_mean`` and ``mae_of_mean`` of this
            constant prediction; in ``TaskScores.mean`` over all values, like a model's ``rmse`` and ``mae``.
    """
    scores = TaskScores()
    # Many small results: on a GPU each would need a synchronisation.
    prediction, target, bound = prediction.cpu(), target.cpu(), None if bound is None else bound.cpu()
    for number in range(target.shape[1]):
        present = ~target[:, number].isnan()
        measured, predicted = target[present, number], prediction[present, number].float()
        if not len(measured):
            scores.left_out[number] = "no value"
            continue
        found: dict[str, Tensor] | str
        if task != "regression" and not predicted.isfinite().all():
            found = dict.fromkeys(_OF_CLASSES[task], torch.tensor(torch.nan))
        elif task == "classification":
            found = _binary(predicted, measured.long(), least)
        elif task == "multiclass":
            found = _multiclass(predicted, measured.long())
        else:
            limits = None if bound is None else bound[present, number]
            exact = slice(None) if limits is None else limits == 0
            found = _errors(predicted, measured, limits, "") | _correlations(predicted[exact], measured[exact])
            if train_mean is not None:
                found |= _errors(train_mean[number].to(measured).expand_as(measured), measured, limits, "_of_mean")
        if isinstance(found, str):
            scores.left_out[number] = found
            continue
        for name, value in found.items():
            scores.tasks.setdefault(name, {})[number] = float(value)
    scores.mean = {name: sum(values.values()) / len(values) for name, values in scores.tasks.items()}
    if train_mean is not None and (present := ~target.isnan()).any():
        limits = None if bound is None else bound[present]
        found = _errors(train_mean.to(target).expand_as(target)[present], target[present], limits, "_of_mean")
        scores.mean |= {name: float(value) for name, value in found.items()}
    return scores


def _binary(probability: Tensor, label: Tensor, least: tuple[int, int]) -> dict[str, Tensor] | str:
    positives = int(label.sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        return "one class"
    if positives < least[0] or negatives < least[1]:
        return "too few labels of one class"
    quick: dict[str, Any] = {"validate_args": False}
    return {
        "auroc": of_classes.binary_auroc(probability, label, **quick),
        "average_precision": of_classes.binary_average_precision(probability, label, **quick),
        "balanced_accuracy": _balanced_accuracy((probability > 0.5).long(), label, 2),
        "mcc": _matthews((probability > 0.5).long(), label, 2),
        "calibration_error": of_classes.binary_calibration_error(probability, label, **quick),
    }


def _multiclass(probability: Tensor, label: Tensor) -> dict[str, Tensor] | str:
    classes = probability.shape[1]
    occurring = label.unique().tolist()
    if len(occurring) < 2:
        return "one class"
    quick: dict[str, Any] = {"num_classes": classes, "validate_args": False}
    areas = [
        of_classes.binary_auroc(probability[:, kind], (label == kind).long(), validate_args=False) for kind in occurring
    ]
    chosen = probability.argmax(1)
    return {
        "accuracy": of_classes.multiclass_accuracy(chosen, label, average="micro", **quick),
        "balanced_accuracy": _balanced_accuracy(chosen, label, classes),
        "mcc": _matthews(chosen, label, classes),
        "auroc": torch.stack(areas).mean(),
        "calibration_error": of_classes.multiclass_calibration_error(probability, label, **quick),
    }


def _matthews(chosen: Tensor, label: Tensor, classes: int) -> Tensor:
    """Matthews' correlation coefficient; 0 for a constant prediction, as in scikit-learn."""
    if chosen.min() == chosen.max():
        return torch.tensor(0.0)
    return of_classes.multiclass_matthews_corrcoef(chosen, label, num_classes=classes, validate_args=False)


def _balanced_accuracy(chosen: Tensor, label: Tensor, classes: int) -> Tensor:
    """Mean recall over the classes that occur."""
    recalls = of_classes.multiclass_recall(chosen, label, num_classes=classes, average="none", validate_args=False)
    return recalls[label.unique()].mean()


def _errors(predicted: Tensor, measured: Tensor, bound: Tensor | None, suffix: str) -> dict[str, Tensor]:
    error = bounded_error(predicted, measured, bound)
    return {f"rmse{suffix}": error.square().mean().sqrt(), f"mae{suffix}": error.abs().mean()}


def _correlations(predicted: Tensor, measured: Tensor) -> dict[str, Tensor]:
    """Defined correlations: none for equal values, only R2 for a constant prediction."""
    if len(measured) < 2 or measured.min() == measured.max():
        return {}
    middle = measured.mean()  # torchmetrics' sums of squares cancel far from 0, and R2 does not depend on it
    found = {"r2": r2_score(predicted - middle, measured - middle)}
    if predicted.min() < predicted.max():
        found["pearson"] = pearson_corrcoef(predicted, measured)
        found["spearman"] = spearman_corrcoef(predicted, measured)
    return found


def bounded_error(prediction: Tensor, target: Tensor, bound: Tensor | None = None) -> Tensor:
    """``prediction - target``; 0 if the target is missing, or a bound that the prediction respects.

    ``bound`` is 0 for a value, -1 for "at most ``target``", +1 for "at least ``target``"; ``None`` for values only.
    """
    counts = ~target.isnan()
    if bound is not None:
        kept = ((bound < 0) & (prediction <= target)) | ((bound > 0) & (prediction >= target))
        counts = counts & ~kept
    # Masked before the square: a NaN in it would make the gradient NaN.
    return torch.where(counts, prediction - target, 0.0)


def masked_mse(
    prediction: Tensor, target: Tensor, bound: Tensor | None = None, task_weights: Tensor | None = None
) -> Tensor:
    """Mean squared error over the entries of ``target`` [G, T] that are present.

    Args:
        bound: [G, T], see :func:`bounded_error`: errors count only on the wrong side of a bound (censored values).
        task_weights: [T], factors of the targets' squared errors; ``None`` for 1.
    """
    squares = bounded_error(prediction, target, bound).square()
    if task_weights is not None:
        squares = squares * task_weights
    return squares.sum() / (~target.isnan()).sum().clamp(min=1)


def masked_binary_cross_entropy(
    logits: Tensor, target: Tensor, positive_weights: Tensor | None = None, task_weights: Tensor | None = None
) -> Tensor:
    """Mean binary cross-entropy of logits [G, T] over the labels [G, T] that are present.

    Args:
        positive_weights: [T], factors of the losses of labels 1; ``None`` for 1.
        task_weights: [T], factors of the tasks' losses; ``None`` for 1.
    """
    present = ~target.isnan()
    labels = torch.where(present, target, 0.0)
    losses = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=positive_weights, reduction="none")
    return _mean(losses, present, task_weights)


def masked_cross_entropy(
    logits: Tensor, target: Tensor, class_weights: Tensor | None = None, task_weights: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy of logits [G, T, C] over the classes [G, T], from 0 to C - 1, that are present.

    ``class_weights`` [T, C] are factors of the losses of a task's classes; ``None`` for 1.
    """
    present = ~target.isnan()
    classes = torch.where(present, target, 0.0).long()
    losses = -logits.log_softmax(-1).gather(-1, classes[..., None])[..., 0]
    if class_weights is not None:
        losses = losses * class_weights[torch.arange(target.shape[1], device=classes.device), classes]
    return _mean(losses, present, task_weights)


def _mean(losses: Tensor, present: Tensor, task_weights: Tensor | None) -> Tensor:
    if task_weights is not None:
        losses = losses * task_weights
    return torch.where(present, losses, 0.0).sum() / present.sum().clamp(min=1)
