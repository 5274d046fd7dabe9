"""Calibration of probabilities from sums and counts of several clients' held-out data.

J. Platt: Probabilistic outputs for support vector machines (1999), with the Newton iteration of H.-T. Lin, C.-J. Lin,
R. C. Weng: A note on Platt's probabilistic outputs (Machine Learning 2007); B. Zadrozny, C. Elkan: Transforming
classifier scores into accurate multiclass probability estimates (KDD 2002) for isotonic regression.

Differs from the papers: Platt's score f is the logit of the module's probability. Sums over clients in each Newton step
give the fit on all of their data. For isotonic regression probabilities are replaced by the centres of 1000 equal bins.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_BINS = 1000
#: Probabilities are at least this far from 0 and 1.
_NEAREST = 1e-7
_STEPS = 100
_HALVINGS = 30


def platt_sums(probability: Tensor, label: Tensor, coefficients: Tensor, positives: float, negatives: float) -> Tensor:
    """A client's terms of ``sum cross_entropy(t, sigmoid(a f + b))`` at (a, b), with f = logit(probability).

    t is ``(N+ + 1) / (N+ + 2)`` for label 1 and ``1 / (N- + 2)`` for label 0, Platt's targets, with the numbers of
    labels of all clients. Labels [n] are 0, 1, or NaN for missing.

    Returns:
        [6] float64: loss, its derivatives by a and b, and by aa, ab and bb.
    """
    present = ~label.isnan()
    f, y = _logit(probability[present]), label[present].double()
    t = torch.where(y > 0.5, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    z = coefficients[0] * f + coefficients[1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(z, t, reduction="sum")
    p = z.sigmoid()
    d, h = p - t, p * (1 - p)
    return torch.stack([loss, (d * f).sum(), d.sum(), (h * f * f).sum(), (h * f).sum(), h.sum()])


def fit_platt(sums: Callable[[Tensor], Tensor], positives: Tensor, negatives: Tensor) -> Tensor:
    """Fit (a, b) of T targets, [T, 2] float64; NaN for a target without a label.

    ``sums`` maps coefficients [T, 2] to the sums of all clients' :func:`platt_sums` [T, 6]; numbers of labels are [T].
    """
    start = ((positives.double() + 1) / (negatives.double() + 1)).log()
    at = torch.stack([torch.zeros_like(start), start], dim=1)
    known = sums(at)
    for _ in range(_STEPS):
        gradient = known[:, 1:3]
        hessian = known[:, [3, 4, 4, 5]].reshape(-1, 2, 2)
        # If all probabilities are equal, a and b are not identified: the pseudo-inverse takes the shortest step.
        step = (torch.linalg.pinv(hessian, hermitian=True, rtol=1e-12) @ gradient[..., None])[..., 0]
        gain = (gradient * step).sum(1)
        if not bool((gain > 1e-12 * (1 + known[:, 0].abs())).any()):
            break
        size = torch.ones_like(gain)
        for _ in range(_HALVINGS):
            new = at - size[:, None] * step
            found = sums(new)
            worse = found[:, 0] > known[:, 0] - 1e-4 * size * gain + 1e-13 * (1 + known[:, 0].abs())
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2, size)
        else:
            new, found = torch.where(worse[:, None], at, new), torch.where(worse[:, None], known, found)
            if bool(worse.all()):
                break
        at, known = new, found
    return torch.where((positives + negatives > 0)[:, None], at, torch.nan)


def apply_platt(probability: Tensor, coefficients: Tensor) -> Tensor:
    """``sigmoid(a logit(probability) + b)``, float64, of any shape; coefficients are (a, b)."""
    return (coefficients[0] * _logit(probability) + coefficients[1]).sigmoid()


def probability_counts(probability: Tensor, label: Tensor) -> Tensor:
    """Labels, and labels 1, in 1000 bins of the probability [n]: [2, 1000], to be summed over clients."""
    present = ~label.isnan()
    place = (probability[present].double() * _BINS).long().clamp(0, _BINS - 1)
    number = torch.bincount(place, minlength=_BINS)
    return torch.stack([number, torch.bincount(place[label[present] > 0.5], minlength=_BINS)])


def fit_isotonic(counts: Tensor) -> tuple[list[float], list[float]] | None:
    """Fit scikit-learn's isotonic regression to the sum [2, 1000] of clients' :func:`probability_counts`.

    Returns ascending probabilities and their calibrated values; ``None`` without a label.
    """
    from sklearn.isotonic import IsotonicRegression  # type: ignore[import-untyped]

    taken = counts[0] > 0
    if not bool(taken.any()):
        return None
    middles = (torch.arange(_BINS, dtype=torch.float64)[taken] + 0.5) / _BINS
    number, positives = counts[0][taken].double(), counts[1][taken].double()
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    fitted = model.fit(middles.numpy(), (positives / number).numpy(), sample_weight=number.numpy())
    return fitted.X_thresholds_.tolist(), fitted.y_thresholds_.tolist()


def apply_isotonic(probability: Tensor, points: tuple[list[float], list[float]]) -> Tensor:
    """Calibrated probabilities of any shape, float64: linear between the points, constant beyond the ends."""
    found = np.interp(probability.double().numpy(), *points)
    return torch.from_numpy(np.asarray(found)).masked_fill(probability.isnan(), torch.nan)


def _logit(probability: Tensor) -> Tensor:
    return torch.logit(probability.double(), eps=_NEAREST)
