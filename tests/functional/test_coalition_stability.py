"""How often coalitions come out the same when distances are drawn anew."""

import math

import pytest
import torch

from lightning_fl.functional.coalition_stability import same_coalitions_share


def test_known_distances_give_the_same_coalitions_always():
    distances = torch.tensor([[0.0, 0.1, 0.9], [0.1, 0.0, 0.9], [0.9, 0.9, 0.0]])
    share = same_coalitions_share([5, 5, 2], distances, torch.zeros(3, 3), [100, 100, 100], 4.0)
    assert share == 1.0
    assert same_coalitions_share([0, 1, 2], distances, torch.zeros(3, 3), [100, 100, 100], 4.0) == 0.0


@pytest.mark.parametrize("margin", [-1.0, 0.0, 1.0])
def test_two_clients_stay_together_as_often_as_a_normal_error_lets_them(margin):
    """They are one coalition if D / 2 is less than what sharing gains, C / sqrt(m) - C / sqrt(2 m)."""
    gain, error = 2 * (1.0 / math.sqrt(100) - 1.0 / math.sqrt(200)), 0.02
    distance = gain - margin * error
    distances = torch.tensor([[0.0, distance], [distance, 0.0]], dtype=torch.float64)
    errors = error * (1 - torch.eye(2, dtype=torch.float64))
    share = same_coalitions_share([0, 0], distances, errors, [100, 100], 1.0, num_draws=400, num_restarts=1)
    expected = 0.5 * (1 + math.erf(margin / math.sqrt(2)))
    assert share == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(400))


def test_the_same_seed_gives_the_same_share():
    distances, errors = 0.08 * (1 - torch.eye(4)), 0.02 * (1 - torch.eye(4))
    found = [same_coalitions_share([0] * 4, distances, errors, [50] * 4, 1.0, seed=seed) for seed in (1, 1, 2)]
    assert found[0] == found[1]
    assert 0 < found[0] < 1
