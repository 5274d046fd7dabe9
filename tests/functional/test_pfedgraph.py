"""pFedGraph's rows: numbers worked out, limits, optimality; and the gradient of the pull."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.functional import collaboration_weights, gram_matrix, pull_terms, thresholded_cosines

THREE = torch.tensor([[1.0, 0.5, -0.8], [0.5, 1.0, 0.0], [-0.8, 0.0, 1.0]], dtype=torch.float64)


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_numbers_worked_out() -> None:
    two = collaboration_weights(rows([1, 0.6], [0.6, 1]), [10, 30], 0.8)
    torch.testing.assert_close(two, rows([0.375, 0.625], [0.125, 0.875]), rtol=0, atol=1e-12)
    three = collaboration_weights(THREE, [2, 3, 5], 0.8)
    expected = rows([0.60625, 0.39375, 0], [0.2, 0.6125, 0.1875], [0, 0.0875, 0.9125])
    torch.testing.assert_close(three, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(collaboration_weights(THREE, [2, 3, 5], 0.1), torch.eye(3, dtype=torch.float64))


@given(st.integers(0, 10**6), st.integers(2, 7), st.floats(0.05, 20.0))
def test_a_row_is_the_optimum_of_its_quadratic_programme(seed: int, num_clients: int, alpha: float) -> None:
    """Of ``-a·C_i + alpha |a - p|²`` over the simplex: gradients are equal where a > 0, elsewhere none is less."""
    draws = torch.Generator().manual_seed(seed)
    updates = torch.randn(num_clients, 3, generator=draws, dtype=torch.float64)
    samples = torch.randint(1, 50, (num_clients,), generator=draws).tolist()
    cosines = thresholded_cosines(gram_matrix(updates))
    found = collaboration_weights(cosines, samples, alpha)
    shares = torch.tensor(samples, dtype=torch.float64) / sum(samples)
    for own in range(num_clients):
        gradient = -cosines[own] + 2 * alpha * (found[own] - shares)
        used = found[own] > 0
        assert float(gradient[used].max() - gradient.min()) < 1e-9 * max(1.0, alpha)
        assert float(found[own].sum()) == pytest.approx(1.0)
        assert float(found[own, own]) >= float(shares[own]) - 1e-12


def test_cosines_above_the_threshold_count_as_one() -> None:
    updates = rows([1, 0], [1, 0.4], [1, 2])
    found = thresholded_cosines(gram_matrix(updates))
    assert 1 / math.hypot(1, 0.4) > 0.9
    assert float(found[0, 1]) == 1.0
    assert float(found[0, 2]) == pytest.approx(1 / math.sqrt(5))
    assert float(thresholded_cosines(gram_matrix(updates), 0.95)[0, 1]) == pytest.approx(1 / math.hypot(1, 0.4))


def test_the_pull_is_the_gradient_of_the_sum_of_cosines() -> None:
    draws = torch.Generator().manual_seed(3)
    w = torch.randn(5, generator=draws, dtype=torch.float64, requires_grad=True)
    others = torch.randn(4, 5, generator=draws, dtype=torch.float64)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    (shares * torch.cosine_similarity(w.expand(4, 5), others)).sum().backward()
    centre = (shares / others.norm(dim=1)) @ others
    a, b = pull_terms(float(centre @ w.detach()), float(w.detach() @ w.detach()))
    torch.testing.assert_close(a * centre + b * w.detach(), w.grad, rtol=1e-12, atol=1e-14)
    assert pull_terms(0.0, 0.0) == (0.0, 0.0)
