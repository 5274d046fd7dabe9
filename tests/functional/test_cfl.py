import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.functional import cosine_similarities, gram_matrix, optimal_bipartition, split_cluster, update_norms

SEEDS = st.integers(0, 10_000)


def _least_cross_similarity(alpha):
    """Over all bipartitions: the first client's side is the one that counts up."""
    clients = range(1, len(alpha))
    sides = ([0, *chosen] for size in range(len(alpha) - 1) for chosen in itertools.combinations(clients, size))
    return min(max(alpha[i][j] for i in side for j in range(len(alpha)) if j not in side) for side in sides)


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(2, 8), st.integers(1, 4))
def test_no_bipartition_has_a_smaller_cross_similarity(seed, num_clients, num_parameters):
    rng = np.random.default_rng(seed)
    updates = rng.integers(-2, 3, size=(num_clients, num_parameters)).astype(float)  # ties and zeros too
    alpha = cosine_similarities(gram_matrix(torch.from_numpy(updates)))
    found = optimal_bipartition(alpha)
    assert found.labels[0] == 0
    assert set(found.labels) == {0, 1}
    across = max(
        float(alpha[i, j])
        for i, j in itertools.permutations(range(num_clients), 2)
        if found.labels[i] < found.labels[j]
    )
    assert found.cross_similarity == pytest.approx(across, abs=1e-12)
    assert found.cross_similarity == pytest.approx(_least_cross_similarity(alpha.tolist()), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 9))
def test_norms_and_cosines_are_those_of_the_vectors(seed, num_clients):
    rng = np.random.default_rng(seed)
    updates, counts = rng.normal(size=(num_clients, 5)), rng.integers(1, 50, num_clients)
    norms = update_norms(gram_matrix(torch.from_numpy(updates)), counts.tolist())
    assert norms.mean == pytest.approx(np.linalg.norm(np.average(updates, axis=0, weights=counts)))
    assert norms.largest == pytest.approx(max(np.linalg.norm(row) for row in updates))
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    np.testing.assert_allclose(cosine_similarities(gram_matrix(torch.from_numpy(updates))), unit @ unit.T, atol=1e-12)


def test_a_zero_update_is_like_nobody():
    alpha = cosine_similarities(gram_matrix(torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])))
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(alpha, expected)
    assert optimal_bipartition(alpha).labels == [0, 1, 1]


@pytest.mark.parametrize("num_clients", [1, 2, 5])
def test_identical_clients_never_are(num_clients):
    updates = torch.randn(1, 50, generator=torch.Generator().manual_seed(1)).expand(num_clients, -1)
    assert split_cluster(gram_matrix(updates), [3] * num_clients, eps1=1e9, eps2=0.0) is None
    assert split_cluster(torch.zeros(num_clients, num_clients), [3] * num_clients, eps1=1e9, eps2=0.0) is None


def test_every_criterion_has_to_hold():
    updates = torch.tensor([[3.0, 1.0], [-3.0, 1.0]])  # mean (0, 1), norms sqrt(10), cosine -8 / 10
    gram, separation = gram_matrix(updates), math.sqrt(0.9)
    fits = {"eps1": 1.01, "eps2": 3.16, "gamma_max": separation - 1e-6}
    found = split_cluster(gram, [7, 7], **fits)
    assert found is not None
    assert found.cross_similarity == pytest.approx(-0.8)
    for change in ({"eps1": 1.0}, {"eps2": 3.17}, {"gamma_max": separation + 1e-6}):
        assert split_cluster(gram, [7, 7], **{**fits, **change}) is None
    assert split_cluster(gram, [7, 1], **fits) is None  # by samples, the mean is (2.25, 1)


def test_numbers_worked_out():
    """Two pairs that pull apart: the mean is short, the sides' largest cosine that of clients 1 and 2."""
    updates = torch.tensor([[1, 0], [0.9, 0.1], [-1, 0.2], [-0.8, 0]], dtype=torch.float64)
    gram = gram_matrix(updates)
    norms = update_norms(gram, [1] * 4)
    assert norms.mean == pytest.approx(0.0790569, abs=5e-8)
    assert norms.largest == pytest.approx(1.0198039, abs=5e-8)
    found = split_cluster(gram, [1] * 4, eps1=0.08, eps2=1.0)
    assert found is not None
    assert found.labels == [0, 0, 1, 1]
    assert found.cross_similarity == pytest.approx(-0.9529258, abs=5e-8)
    assert split_cluster(gram, [1] * 4, eps1=0.079, eps2=1.0) is None
    assert split_cluster(gram, [1] * 4, eps1=0.08, eps2=1.02) is None
