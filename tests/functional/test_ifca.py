"""What noise may do to IFCA's first models."""

import pytest
import torch

from lightning_fl.functional import perturbed


def test_noise_is_in_proportion_to_the_weights() -> None:
    weights = torch.linspace(-1, 3, 20_000)
    rms = float(weights.square().mean().sqrt())
    moved = [perturbed(factor * weights, 0.5, torch.Generator().manual_seed(1)) for factor in (1.0, 8.0)]
    assert float((moved[0] - weights).std()) == pytest.approx(0.5 * rms, rel=0.02)
    assert abs(float((moved[0] - weights).mean())) < 0.02 * rms
    torch.testing.assert_close(moved[1], 8 * moved[0])
    assert torch.equal(weights, torch.linspace(-1, 3, 20_000))


def test_noise_comes_from_its_generator_alone() -> None:
    weights = torch.ones(5)
    first, again, other = (perturbed(weights, 0.1, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert perturbed(weights.bfloat16(), 0.1, torch.Generator()).dtype == torch.bfloat16


def test_nothing_has_no_noise() -> None:
    assert torch.equal(perturbed(torch.zeros(3), 1.0, torch.Generator()), torch.zeros(3))
    assert perturbed(torch.zeros(0), 1.0, torch.Generator()).shape == (0,)
