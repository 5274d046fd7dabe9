import warnings
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.functional import gram_matrix, kmeans_from_gram


@pytest.mark.slow
def test_groups_far_apart_are_found_and_the_seed_repeats_them():
    rng = np.random.default_rng(0)
    kinds = [0, 1, 2, 1, 0, 2, 2, 0]
    points = torch.from_numpy(rng.normal(size=(3, 40))[kinds] + 0.01 * rng.normal(size=(8, 40)))
    for seed in range(5):
        assert kmeans_from_gram(gram_matrix(points), 3, seed) == kinds
    rough = gram_matrix(torch.from_numpy(rng.normal(size=(30, 3))))
    assert kmeans_from_gram(rough, 4, seed=1) == kmeans_from_gram(rough, 4, seed=1)


def test_fewer_clusters_where_fewer_clients_differ():
    points = torch.tensor([[1.0, 2.0], [1.0, 2.0], [4.0, 0.0], [1.0, 2.0]])
    assert kmeans_from_gram(gram_matrix(points), 3, seed=0) == [0, 0, 1, 0]
    assert kmeans_from_gram(torch.ones(3, 3), 2, seed=0) == [0, 0, 0]
    assert kmeans_from_gram(torch.eye(3), 1, seed=0) == [0, 0, 0]
    assert kmeans_from_gram(torch.eye(3), 3, seed=0) == [0, 1, 2]


def points(count: int, seed: int, width: int = 5) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mean(data: torch.Tensor, samples: list[int], members: list[int]) -> torch.Tensor:
    mass = sum(samples[i] for i in members)
    return sum((samples[i] / mass * data[i] for i in members), torch.zeros(data.shape[1]))


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000), st.integers(1, 9))
def test_by_samples_nobody_is_nearer_to_another_cluster(seed: int, num_clusters: int) -> None:
    data, samples = points(9, seed), [1 + (seed * i) % 7 for i in range(9)]
    found = kmeans_from_gram(gram_matrix(data), num_clusters, seed, weights=samples)
    assert list(dict.fromkeys(found)) == list(range(num_clusters))
    centres = [mean(data, samples, [i for i in range(9) if found[i] == k]) for k in range(num_clusters)]
    for own, label in zip(data, found, strict=True):
        distances = [float((own - centre).square().sum()) for centre in centres]
        assert distances[label] <= min(distances) + 1e-9


def test_the_best_of_few_clusters_is_found() -> None:
    data, samples = points(7, 5), [3, 1, 4, 1, 5, 9, 2]
    totals = {}
    for labels in product(range(2), repeat=7):
        groups = [[i for i in range(7) if labels[i] == k] for k in range(2)]
        centres = [mean(data, samples, members) if members else None for members in groups]
        totals[labels] = sum(samples[i] * float((data[i] - centres[labels[i]]).square().sum()) for i in range(7))  # type: ignore[operator]
    best = min(totals, key=totals.__getitem__)
    assert kmeans_from_gram(gram_matrix(data), 2, seed=0, weights=samples) == [int(label != best[0]) for label in best]


def test_clusters_do_not_depend_on_the_origin_or_the_scale() -> None:
    data = points(8, 3) + 5.0 * (torch.arange(8) % 3).unsqueeze(1)
    expected = [0, 1, 2, 0, 1, 2, 0, 1]
    for changed in (data, data + 100.0, 1e-4 * data):
        assert kmeans_from_gram(gram_matrix(changed), 3, seed=1, weights=[10] * 8) == expected


def test_clients_that_learned_the_same_are_one_cluster() -> None:
    assert kmeans_from_gram(torch.ones(3, 3), 1, seed=0, weights=[1, 2, 3]) == [0, 0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kmeans_from_gram(torch.zeros(3, 3), 2, seed=0, weights=[1, 2, 3]) == [0, 0, 0]
