"""FedSoft's weights: numbers worked out, and who is drawn how often."""

from itertools import permutations

import pytest
import torch

from lightning_fl.functional import contribution_weights, draw_contributors, floored_importance

COUNTS = torch.tensor([[8.0, 2.0], [3.0, 17.0], [10.0, 0.0]])


def test_numbers_worked_out() -> None:
    samples = COUNTS.sum(1)
    importance = floored_importance(COUNTS / samples[:, None], 1e-4)
    expected = torch.tensor([[0.8, 0.2], [0.15, 0.85], [1, 1e-4]], dtype=torch.float64)
    torch.testing.assert_close(importance, expected, rtol=1e-6, atol=1e-9)
    weights = contribution_weights(importance, samples)
    torch.testing.assert_close(weights.sum(1), torch.ones(2, dtype=torch.float64))
    assert weights[0].tolist() == pytest.approx([0.380952, 0.142857, 0.476190], abs=5e-7)
    assert weights[1].tolist() == pytest.approx([0.105258, 0.894690, 5.26e-5], abs=5e-7)


def test_a_model_of_no_use_weighs_clients_by_their_samples() -> None:
    found = contribution_weights(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), [1, 3])
    assert found.tolist() == [[0.25, 0.75], [0.25, 0.75]]


def test_draws_are_one_after_another_without_replacement() -> None:
    """P{i, j} = p_i p_j / (1 - p_i) + p_j p_i / (1 - p_j)."""
    weights, rounds = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 4000
    draws = torch.Generator().manual_seed(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(rounds):
        drawn = tuple(draw_contributors(weights, 2, draws))
        counts[drawn] = counts.get(drawn, 0) + 1
    p = weights.tolist()
    for i, j in ((0, 1), (0, 2), (1, 2)):
        chance = sum(p[a] * p[b] / (1 - p[a]) for a, b in permutations((i, j)))
        assert counts[i, j] / rounds == pytest.approx(chance, abs=4 * (chance * (1 - chance) / rounds) ** 0.5)


def test_no_more_than_there_are_are_drawn() -> None:
    weights = torch.tensor([0.5, 0.0, 0.5])
    assert draw_contributors(weights, 5, torch.Generator()) == [0, 2]
    assert draw_contributors(weights, 2, torch.Generator()) == [0, 2]
