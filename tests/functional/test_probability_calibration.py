"""Calibration of probabilities, beside scikit-learn on the pooled data."""

import math

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from lightning_fl.functional.probability_calibration import (
    apply_isotonic,
    apply_platt,
    fit_isotonic,
    fit_platt,
    platt_sums,
    probability_counts,
)


def _data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    f = 2 * torch.randn(n, generator=generator, dtype=torch.float64)
    label = (torch.rand(n, generator=generator, dtype=torch.float64) < (0.5 * f - 0.7).sigmoid()).double()
    return f.sigmoid(), label


def _fit(clients: list[tuple[Tensor, Tensor]]) -> Tensor:
    positives = torch.tensor([float(sum((y == 1).sum() for _, y in clients))])
    negatives = torch.tensor([float(sum((y == 0).sum() for _, y in clients))])

    def sums(at: Tensor) -> Tensor:
        return torch.stack([platt_sums(p, y, at[0], float(positives), float(negatives)) for p, y in clients]).sum(0)[
            None
        ]

    return fit_platt(sums, positives, negatives)[0]


def test_sums_of_clients_give_the_pooled_fit() -> None:
    clients = [_data(80, 0), _data(33, 1), _data(5, 2)]
    p, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    plus, minus = float(y.sum()), float((1 - y).sum())
    # Platt's soft targets as two weighted samples of each
    t = np.where(y.numpy() > 0.5, (plus + 1) / (plus + 2), 1 / (minus + 2))
    f = p.logit().numpy()[:, None]
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        np.vstack([f, f]), np.r_[np.ones(len(f)), np.zeros(len(f))], sample_weight=np.r_[t, 1 - t]
    )
    a, b = _fit(clients)
    assert a == pytest.approx(reference.coef_[0, 0], rel=1e-4)
    assert b == pytest.approx(reference.intercept_[0], rel=1e-4)
    assert torch.allclose(_fit([(p, y)]), torch.stack([a, b]), rtol=1e-8)
    gradient = platt_sums(p, y, torch.stack([a, b]), plus, minus)[1:3]
    assert gradient.abs().max() < 1e-4


def test_missing_labels_count_nothing() -> None:
    p, y = _data(60, 3)
    more = torch.cat([y, torch.full((4,), math.nan, dtype=torch.float64)])
    assert torch.equal(_fit([(p, y)]), _fit([(torch.cat([p, p[:4]]), more)]))


def test_one_sample_one_class_the_same_everywhere_and_nothing() -> None:
    half = torch.tensor([0.5], dtype=torch.float64)
    one = _fit([(half, torch.ones(1, dtype=torch.float64))])
    assert apply_platt(half, one).item() == pytest.approx(2 / 3)  # (N+ + 1) / (N+ + 2)
    p = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    zeros = _fit([(p, torch.zeros(9, dtype=torch.float64))])
    assert torch.allclose(apply_platt(p, zeros), torch.full((9,), 1 / 11, dtype=torch.float64), atol=1e-6)
    same = _fit([(torch.full((4,), 0.9, dtype=torch.float64), torch.tensor([1.0, 1.0, 1.0, 0.0]))])
    mean = (3 * 4 / 5 + 1 / 3) / 4  # of Platt's targets
    assert apply_platt(torch.tensor(0.9), same).item() == pytest.approx(mean, rel=1e-6)
    assert _fit([(p[:0], p[:0])]).isnan().all()


def test_classes_that_are_told_apart_stay_finite() -> None:
    p = torch.tensor([0.0, 0.2, 0.8, 1.0])
    fitted = _fit([(p, torch.tensor([0.0, 0.0, 1.0, 1.0]))])
    assert fitted.isfinite().all()
    found = apply_platt(p, fitted)
    assert (found.diff() > 0).all()
    assert 0 < found.min() < found.max() < 1


def test_isotonic_is_scikit_learns_on_the_bins() -> None:
    clients = [_data(300, 4), _data(70, 5)]
    counts = torch.stack([probability_counts(*data) for data in clients]).sum(0)
    points = fit_isotonic(counts)
    assert points is not None
    p, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    middles = ((p * 1000).floor() + 0.5) / 1000
    reference = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(middles.numpy(), y.numpy())
    at = torch.linspace(0, 1, 101, dtype=torch.float64)
    assert apply_isotonic(at, points).numpy() == pytest.approx(reference.predict(at.numpy()), abs=1e-9)


def test_isotonic_at_its_limits() -> None:
    assert fit_isotonic(probability_counts(torch.zeros(0), torch.zeros(0))) is None
    one = fit_isotonic(probability_counts(torch.tensor([0.3, 0.5]), torch.tensor([1.0, math.nan])))
    assert one is not None
    assert apply_isotonic(torch.tensor([0.0, 1.0, math.nan]), one).tolist()[:2] == [1, 1]
    ends = probability_counts(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert ends[0].nonzero().flatten().tolist() == [0, 999]
    assert ends[1].nonzero().flatten().tolist() == [999]
