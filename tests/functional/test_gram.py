"""Gram matrices, cosines, distances, and whom a newcomer joins, against the vectors themselves."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.core.errors import DataError
from lightning_fl.functional import (
    cosine_similarities,
    gram_matrix,
    join_most_similar,
    remembered_cosines,
    squared_distances,
    with_cosines,
)


def points(count: int, seed: int, width: int = 5) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gram_of_blocks_is_the_gram_of_the_whole(dtype):
    updates = torch.randn(6, 9001, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = updates.double() @ updates.double().T
    before = updates.clone()
    torch.testing.assert_close(gram_matrix(updates), exact)
    assert torch.equal(updates, before)
    torch.testing.assert_close(gram_matrix(updates.split([1, 4999, 0, 4001], dim=1)), exact)
    torch.testing.assert_close(gram_matrix(block for block in updates.split(1000, dim=1)), exact)
    torch.testing.assert_close(gram_matrix(updates.T.contiguous().T), exact)


def test_gram_needs_no_gradient():
    updates = torch.randn(3, 5, requires_grad=True)
    assert not gram_matrix(updates).requires_grad


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_gram_names_clients_whose_update_is_not_finite(value):
    updates = torch.ones(4, 5000)
    updates[1, 4999] = updates[3, 2] = value
    with pytest.raises(DataError, match=r"clients \[1, 3\] are not finite"):
        gram_matrix(updates)


@pytest.mark.parametrize("cuts", [[5], [1, 4], [2, 2, 1]])
def test_distances_are_sums_over_the_pieces(cuts: list[int]) -> None:
    own, centres = points(1, 1)[0], points(3, 2)
    found = squared_distances(zip(own.float().split(cuts), centres.float().split(cuts, dim=1), strict=True))
    expected = [sum((float(own[p]) - float(centre[p])) ** 2 for p in range(5)) for centre in centres]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert found.dtype == torch.float64


def test_small_distances_of_large_weights_are_told_apart() -> None:
    own = torch.full((1000,), 1e4)
    centres = torch.stack([own + 2**-9, own - 2**-10])
    assert squared_distances([(own, centres)]).tolist() == [1000 * 2**-18, 1000 * 2**-20]


def _joined(updates, counts, labels):
    """The rule with the vectors themselves: the first of the most similar means."""
    joined = list(labels)
    for client in range(len(labels)):
        if labels[client] >= 0:
            continue
        best = 0.0  # joins nobody that it opposes
        for group in sorted(set(labels) - {-1}):
            members = [other for other in range(len(labels)) if labels[other] == group]
            mean = np.average(updates[members], axis=0, weights=[counts[other] for other in members])
            norms = np.linalg.norm(mean) * np.linalg.norm(updates[client])
            cosine = float(mean @ updates[client]) / norms
            if cosine > best:
                best, joined[client] = cosine, group
    return joined


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.lists(st.integers(-1, 3), min_size=1, max_size=9), st.integers(2, 6))
def test_newcomers_join_the_group_whose_mean_update_is_most_similar(seed, labels, num_parameters):
    rng = np.random.default_rng(seed)
    updates, counts = rng.normal(size=(len(labels), num_parameters)), rng.integers(1, 50, len(labels)).tolist()
    found = join_most_similar(gram_matrix(torch.from_numpy(updates)), counts, labels)
    assert found == _joined(updates, counts, labels)


def test_nobody_joins_what_it_opposes_or_what_cancels_and_the_first_of_equals_is_joined():
    updates = torch.tensor([[0.1, 0.0], [0.2, 0.0], [-0.3, 0.0], [-1.0, 2.0], [1.0, -1.0]], dtype=torch.float64)
    # the first three cancel up to rounding: a cosine of 0; the one with client 3 is negative
    for sign in (1, -1):
        assert join_most_similar(gram_matrix(sign * updates), [1] * 5, [0, 0, 0, 1, -1]) == [0, 0, 0, 1, -1]
    assert join_most_similar(gram_matrix(torch.tensor([[1.0], [2.0], [3.0]])), [1] * 3, [5, 2, -1]) == [5, 2, 2]
    assert join_most_similar(gram_matrix(torch.tensor([[1.0], [-2.0], [0.0]])), [1] * 3, [1, 0, -1]) == [1, 0, -1]
    assert join_most_similar(torch.eye(2), [1, 1], [-1, -1]) == [-1, -1]


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.9, 1.0])
def test_remembered_cosines_are_the_weighted_mean_of_the_rounds(memory):
    rounds = [cosine_similarities(gram_matrix(points(4, seed))) for seed in range(6)]
    mean, weight = torch.full((4, 4), math.nan, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    for number, cosines in enumerate(rounds, 1):
        mean, weight = remembered_cosines(mean, weight, cosines, memory)
        shares = [memory**age for age in reversed(range(number))]
        expected = sum(share * c for share, c in zip(shares, rounds, strict=False)) / sum(shares)
        torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(weight, torch.full_like(weight, sum(shares)), rtol=1e-12, atol=0)
    if not memory:
        assert torch.equal(mean, rounds[-1])


def test_other_cosines_keep_the_lengths():
    gram, other = gram_matrix(points(5, 3)), gram_matrix(points(5, 8))
    torch.testing.assert_close(with_cosines(gram, cosine_similarities(gram)), gram, rtol=1e-12, atol=1e-12)
    changed = with_cosines(gram, cosine_similarities(other))
    assert torch.equal(changed.diagonal(), gram.diagonal())
    torch.testing.assert_close(cosine_similarities(changed), cosine_similarities(other), rtol=1e-12, atol=1e-12)
