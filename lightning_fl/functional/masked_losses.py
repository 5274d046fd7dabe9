"""Losses of several targets with missing values and bounds; missing values have no gradient.

Targets are [G, T] with NaN for missing values. A loss is the mean over the entries that are present; 0 with zero
gradient without any.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


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
    losses = F.binary_cross_entropy_with_logits(
        logits, torch.where(present, target, 0.0), pos_weight=positive_weights, reduction="none"
    )
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
