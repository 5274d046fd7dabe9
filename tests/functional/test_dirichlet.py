import pytest
import torch

from lightning_fl.core.seeding import generator
from lightning_fl.functional import sample_dirichlet


@pytest.mark.parametrize("concentration", [0.05, 1.0, 20.0])
def test_moments_are_those_of_the_distribution(concentration):
    """Mean 1/K, variance (1/K)(1 - 1/K)/(Kα + 1)."""
    categories, draws = 4, 20_000
    shares = sample_dirichlet(concentration, categories, generator(0, "moments"), (draws,))
    variance = (1 / categories) * (1 - 1 / categories) / (categories * concentration + 1)
    assert shares.shape == (draws, categories)
    torch.testing.assert_close(shares.sum(1), torch.ones(draws, dtype=torch.float64))
    # Five standard errors of the mean.
    assert (shares.mean(0) - 1 / categories).abs().max() < 5 * (variance / draws) ** 0.5
    torch.testing.assert_close(shares.var(0), torch.full((categories,), variance).double(), rtol=0.05, atol=0)


def test_very_small_concentration_gives_one_category_everything():
    shares = sample_dirichlet(1e-6, 3, generator(1), (1000,))
    assert torch.isfinite(shares).all()
    assert (shares.max(1).values > 1 - 1e-9).float().mean() > 0.999
    counts = shares.argmax(1).bincount(minlength=3)
    assert counts.min() > 250  # each of three equally likely: 333 +- 5 * 15


def test_same_generator_same_draws():
    assert torch.equal(sample_dirichlet(0.3, 5, generator(7)), sample_dirichlet(0.3, 5, generator(7)))
