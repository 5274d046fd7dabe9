import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.core.seeding import generator
from lightning_fl.functional import (
    draw_cohort,
    draw_subset,
    loss_estimate,
    mix,
    project_simplex,
    sample_gamma,
    sampling_weights_update,
)

vectors = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12).map(lambda x: torch.tensor(x, dtype=torch.float64))


def _brute_force_projection(values: np.ndarray, floor: float) -> np.ndarray:
    """argmin ‖λ − values‖² over the simplex, by a general solver."""
    result = scipy.optimize.minimize(
        lambda x: ((x - values) ** 2).sum(),
        np.full(len(values), 1 / len(values)),
        jac=lambda x: 2 * (x - values),
        bounds=[(floor, 1.0)] * len(values),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones_like(x)},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert result.success
    return result.x


@pytest.mark.parametrize("floor", [0.0, 0.05])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_projection_is_the_solution_of_the_quadratic_program(floor, scale):
    rng = np.random.default_rng(3)
    for size in (1, 2, 3, 5, 10):
        values = rng.normal(size=size) * scale
        projected = project_simplex(torch.from_numpy(values), floor)
        np.testing.assert_allclose(projected.numpy(), _brute_force_projection(values, floor), atol=1e-6)


@pytest.mark.slow
@given(vectors)
@settings(max_examples=100, deadline=None)
def test_projection_meets_the_optimality_conditions(values):
    """λ = max(values − θ, 0) with one θ for all: entries above 0 are shifted alike, the others by less."""
    before = values.clone()
    projected = project_simplex(values)
    assert torch.equal(values, before)
    assert projected.min() >= 0
    assert abs(float(projected.sum()) - 1) < 1e-9
    shift = values - projected
    tolerance = 1e-9 * max(1.0, float(values.abs().max()))
    theta = shift[projected > 0].max()
    assert (shift[projected > 0] - theta).abs().max() <= tolerance
    assert (shift <= theta + tolerance).all()
    # The order is preserved.
    assert (projected[values.argsort()].diff() >= 0).all()


def test_projection_keeps_the_type_and_survives_extremes():
    assert project_simplex(torch.tensor([0.2, 5.0])).dtype == torch.float32
    assert project_simplex(torch.tensor([0.2, 5.0], dtype=torch.bfloat16)).dtype == torch.bfloat16
    far = torch.tensor([1e300, -1e300, 0.0], dtype=torch.float64)
    assert project_simplex(far).tolist() == [1.0, 0.0, 0.0]
    assert project_simplex(torch.tensor([-7.0])).tolist() == [1.0]
    torch.testing.assert_close(project_simplex(torch.tensor([9.0, 0.0, 0.0]), 1 / 3), torch.full((3,), 1 / 3))


def test_update_by_hand():
    """λ + η τ v = (1/2 + 0.1·2·1, 1/2 + 0.1·2·0) = (0.7, 0.5); the projection takes 0.1 off each."""
    updated = sampling_weights_update(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]), 0.1, 2)
    torch.testing.assert_close(updated, torch.tensor([0.6, 0.4]))
    # A step too long for the simplex ends at its corner, or at the floor.
    assert sampling_weights_update(torch.tensor([0.5, 0.5]), torch.tensor([9.0, 0.0]), 1.0, 5).tolist() == [1.0, 0.0]
    floored = sampling_weights_update(torch.tensor([0.5, 0.5]), torch.tensor([9.0, 0.0]), 1.0, 5, floor=0.1)
    torch.testing.assert_close(floored, torch.tensor([0.9, 0.1]))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_loss_estimate_is_unbiased_over_all_subsets(size):
    losses = torch.tensor([0.5, 2.0, -1.0, 3.0], dtype=torch.float64)
    subsets = list(itertools.combinations(range(4), size))
    estimates = [loss_estimate(losses[list(subset)], subset, 4) for subset in subsets]
    torch.testing.assert_close(torch.stack(estimates).mean(0), losses)


def test_loss_estimate_follows_the_order_of_the_clients():
    torch.testing.assert_close(loss_estimate(torch.tensor([1.0, 2.0]), [3, 0], 4), torch.tensor([4.0, 0.0, 0.0, 2.0]))


def test_cohort_is_drawn_with_replacement_by_weight():
    weights = torch.tensor([0.5, 0.0, 0.3, 0.2])
    counts = draw_cohort(weights, 40_000, generator(2))
    assert counts.sum() == 40_000
    assert counts[1] == 0
    # Chi-square over the three possible clients: the 0.9999 quantile with 2 degrees of freedom is 18.4.
    expected = weights[[0, 2, 3]] * 40_000
    assert ((counts[[0, 2, 3]] - expected) ** 2 / expected).sum() < 18.4
    assert draw_cohort(torch.tensor([0.0, 1.0]), 7, generator(0)).tolist() == [0, 7]
    assert torch.equal(draw_cohort(weights, 9, generator(5)), draw_cohort(weights * 3, 9, generator(5)))


def test_subset_is_distinct_and_uniform():
    draws = torch.Generator().manual_seed(0)
    subsets = [tuple(draw_subset(4, 2, draws).tolist()) for _ in range(6000)]
    assert set(subsets) == set(itertools.combinations(range(4), 2))
    counts = torch.tensor([subsets.count(pair) for pair in itertools.combinations(range(4), 2)])
    # The 0.9999 quantile with 5 degrees of freedom is 25.7.
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 25.7
    assert draw_subset(3, 3, draws).tolist() == [0, 1, 2]


def test_mix_by_hand_and_its_limits():
    values = torch.tensor([[1.0, 2.0], [3.0, -4.0], [0.0, 8.0]])
    swap = torch.tensor([1, 0, 2])
    before = values.clone()
    assert torch.equal(mix(values, swap, 1.0), values)
    assert torch.equal(mix(values, swap, 0.0), values[swap])
    expected = torch.tensor([[1.5, 0.5], [2.5, -2.5], [0.0, 8.0]])  # 3/4 of its own, 1/4 of the partner
    assert torch.equal(mix(values, swap, 0.75), expected)
    assert torch.equal(mix(values, swap, torch.tensor(0.75)), expected)
    rows = torch.stack([mix(values, swap, share)[row] for row, share in enumerate([0.75, 0.25, 1.0])])
    assert torch.equal(mix(values, swap, torch.tensor([0.75, 0.25, 1.0])), rows)
    assert torch.equal(values, before)


def test_mix_keeps_the_type_the_gradient_and_missing_targets():
    half = mix(torch.ones(2, dtype=torch.bfloat16), torch.tensor([1, 0]), torch.tensor([0.3, 0.6]))
    assert half.dtype == torch.bfloat16
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    mix(values, torch.tensor([1, 1]), 0.25)[0].backward()
    assert values.grad.tolist() == [0.25, 0.75]
    missing = mix(torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([1, 2, 2]), 0.5)
    assert missing.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.0, 8.0])
def test_gamma_follows_the_beta_distribution(alpha):
    draws = sample_gamma(alpha, generator(11), (4000,))
    assert draws.dtype == torch.get_default_dtype()
    assert draws.min() >= 0
    assert draws.max() <= 1
    # Dvoretzky-Kiefer-Wolfowitz: the distribution functions differ by more than sqrt(log(2 / p) / 2n) with
    # probability p. Compared away from 0 and 1, where float32 rounds.
    grid = np.linspace(0.001, 0.999, 999)
    empirical = np.searchsorted(np.sort(draws.numpy()), grid, side="right") / 4000
    assert np.abs(empirical - scipy.stats.beta(alpha, alpha).cdf(grid)).max() < np.sqrt(np.log(2 / 1e-4) / 8000)


def test_gamma_limits():
    assert sample_gamma(0.0, generator(0)).item() == 1.0
    assert sample_gamma(0, generator(0), (2, 3)).tolist() == [[1.0] * 3] * 2
    assert sample_gamma(1.0, generator(0)).shape == ()
    torch.testing.assert_close(sample_gamma(1e8, generator(0), (5,)), torch.full((5,), 0.5), atol=1e-3, rtol=0)
    assert torch.equal(sample_gamma(0.4, generator(3), (4,)), sample_gamma(0.4, generator(3), (4,)))
