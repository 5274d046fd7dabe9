import math

import numpy as np
import pytest
import torch

from lightning_fl.functional import coalition_objective, join_coalitions, solve_coalitions
from lightning_fl.functional.fedcollab import _check, _Search, same_coalitions_share

Instance = tuple[torch.Tensor, list[int], float]


def _objective(assignment, distances, num_samples, capacity):
    """L from the matrix α of equation 10, divided by N."""
    counts = np.asarray(num_samples, dtype=float)
    together = np.equal.outer(assignment, assignment)
    beta = counts / counts.sum()
    alpha = together * beta / (together * beta).sum(1, keepdims=True)
    quantity = capacity / math.sqrt(counts.sum()) * np.sqrt((alpha**2 / beta).sum(1))
    return float((quantity + (alpha * np.asarray(distances)).sum(1)).mean())


def _instance(kind: str, num_clients: int, seed: int) -> Instance:
    rng = np.random.default_rng([num_clients, seed])
    if kind == "metric":
        points = rng.normal(size=(num_clients, 3)) / 4
        distances = np.linalg.norm(points[:, None] - points, axis=-1)
    elif kind == "unrelated":
        distances = rng.uniform(size=(num_clients, num_clients))
    elif kind == "below zero":  # as estimates are that are not cut off
        distances = rng.normal(0.05, 0.1, size=(num_clients, num_clients))
    else:
        num_types = int(rng.integers(2, 5))
        types = rng.integers(num_types, size=num_clients)
        distances = rng.uniform(size=(num_types, num_types))[types][:, types]
        distances[np.equal.outer(types, types)] = 0.05
        if kind == "noisy blocks":
            distances = np.clip(distances + rng.normal(size=distances.shape) / 10, 0, 1)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0)
    counts = np.exp(rng.uniform(np.log(14), np.log(3000), size=num_clients)).round().astype(int)
    if rng.random() < 0.3:
        counts[:] = 500
    return torch.from_numpy(distances), counts.tolist(), float(np.exp(rng.uniform(0, np.log(30))))


KINDS = ("metric", "unrelated", "blocks", "noisy blocks", "below zero")


def _optimum(distances, num_samples, capacity):
    """Least L over all partitions: the best split of each set into the coalition of its first client and the rest."""
    counts, matrix = np.asarray(num_samples, dtype=float), np.asarray(distances)
    size = len(counts)
    cost = np.zeros(1 << size)
    for subset in range(1, 1 << size):
        members = [client for client in range(size) if subset >> client & 1]
        mass = counts[members].sum()
        strangers = sum(counts[j] * matrix[i, j] for i in members for j in members) / mass
        cost[subset] = len(members) * capacity / math.sqrt(mass) + strangers
    best = [0.0] * (1 << size)
    for subset in range(1, 1 << size):
        first = subset & -subset
        others = rest = subset ^ first
        best[subset] = cost[subset]
        while others:  # all non-empty subsets of the rest stay behind
            best[subset] = min(best[subset], cost[first | rest ^ others] + best[others])
            others = (others - 1) & rest
    return best[-1] / size


def _partitions(size):
    """All partitions of 0..size-1 as labels in order of first appearance."""
    if size == 0:
        yield ()
        return
    for labels in _partitions(size - 1):
        for label in range(max(labels, default=-1) + 2):
            yield (*labels, label)


def _in_order(labels):
    return list(dict.fromkeys(labels)) == list(range(max(labels) + 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_clients", [1, 2, 6, 13])
def test_objective_is_equation_10(kind, num_clients):
    rng = np.random.default_rng(num_clients)
    for seed in range(5):
        distances, counts, capacity = _instance(kind, num_clients, seed)
        assignment = rng.integers(-2, 3, size=num_clients).tolist()
        expected = _objective(assignment, distances, counts, capacity)
        assert coalition_objective(assignment, distances, counts, capacity) == pytest.approx(expected, rel=1e-12)
        # Tensors in, and distances of another type, give the same.
        given = coalition_objective(torch.tensor(assignment), distances.float(), torch.tensor(counts), capacity)
        assert given == pytest.approx(expected, rel=1e-6)


def test_objective_by_hand():
    """36 and 64 samples at distance 0.5, C = 12: alone 12/6 + 12/8; together 2 · 12/10 + 0.5 (64 + 36)/100."""
    distances = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
    assert coalition_objective([0, 1], distances, [36, 64], 12) == pytest.approx((2 + 1.5) / 2)
    assert coalition_objective([0, 0], distances, [36, 64], 12) == pytest.approx((2.4 + 0.5) / 2)
    assert solve_coalitions(distances, [36, 64], 12) == [0, 0]
    # Together costs less as long as D < 12/6 + 12/8 − 24/10 = 1.1.
    assert solve_coalitions(distances * 2.19, [36, 64], 12) == [0, 0]
    assert solve_coalitions(distances * 2.21, [36, 64], 12) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_clients", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_solver_finds_the_optimum_of_small_cases(kind, num_clients):
    for seed in range(3 if 2 < num_clients < 8 else 1):
        distances, counts, capacity = _instance(kind, num_clients, seed)
        labels = solve_coalitions(distances, counts, capacity, seed=seed)
        assert _in_order(labels)
        optimum = _optimum(distances, counts, capacity)
        assert coalition_objective(labels, distances, counts, capacity) == pytest.approx(optimum, rel=1e-10)


def test_the_reference_optimum_is_that_of_all_partitions():
    assert [len(list(_partitions(size))) for size in range(1, 7)] == [1, 2, 5, 15, 52, 203]  # Bell numbers
    for kind in KINDS:
        distances, counts, capacity = _instance(kind, 5, 3)
        least = min(_objective(labels, distances, counts, capacity) for labels in _partitions(5))
        assert _optimum(distances, counts, capacity) == pytest.approx(least, rel=1e-12)


def _hardly_apart(seed):
    """Clients of four types, two by two hardly apart, with noise of that size: coalitions of noise are as good."""
    rng = np.random.default_rng([9, seed])
    types = np.repeat(np.arange(4), 5)
    near, far, near_small = rng.uniform(0.03, 0.12), rng.uniform(0.2, 0.6), rng.uniform(0.03, 0.15)
    between = np.array([[0, near, far, far], [near, 0, far, far], [far, far, 0, near_small], [far, far, near_small, 0]])
    noise = rng.normal(0, rng.uniform(0.02, 0.08), size=(20, 20))
    distances = np.triu(between[types][:, types] + noise, 1)
    distances = np.round(np.clip(distances + distances.T, 0, None), 2)
    return torch.from_numpy(distances), [2500] * 10 + [120] * 10, float(rng.choice([6, 8, 10]))


@pytest.mark.parametrize("case", [0, 3])
def test_nearly_all_seeds_find_the_optimum_where_distances_are_of_the_size_of_their_noise(case):
    distances, counts, capacity = _hardly_apart(case)
    solved = [solve_coalitions(distances, counts, capacity, seed=seed) for seed in range(8)]
    found = np.array([coalition_objective(labels, distances, counts, capacity) for labels in solved])
    assert (found <= found.min() * (1 + 1e-10)).sum() >= 7


def test_an_objective_that_is_zero_or_below_ends_the_search_as_well():
    distances = torch.full((4, 4), -0.5, dtype=torch.float64).fill_diagonal_(0.0)
    # All together: C / sqrt(400) - 3/4 * 0.5
    assert solve_coalitions(distances, [100] * 4, capacity=7.5) == [0] * 4
    assert coalition_objective([0] * 4, distances, [100] * 4, capacity=7.5) == pytest.approx(0.0, abs=1e-15)
    assert coalition_objective([0] * 4, distances, [100] * 4, capacity=2.0) == pytest.approx(0.1 - 0.375)


def test_merges_leave_a_local_optimum_of_single_moves():
    """The paper's trap: 10..14 and 15..19 are one type, yet no small client gains by changing sides alone.

    Small clients of 14 samples, C = 10, 0.14 between the halves. A client in a coalition of five pays 10/√70 = 1.20
    and in one of ten 10/√140 + 0.07 = 0.92, so the merged coalition is better.
    """
    types = torch.tensor([0] * 5 + [1] * 5 + [2] * 5 + [3] * 5)
    between = torch.tensor([[0, 0.14, 1, 1], [0.14, 0, 1, 1], [1, 1, 0, 0.14], [1, 1, 0.14, 0]])
    distances = between[types][:, types]
    counts = [2100] * 10 + [14] * 10
    labels = solve_coalitions(distances, counts, capacity=10)
    assert labels == [0] * 5 + [1] * 5 + [2] * 10
    stuck = _search(types.tolist(), distances, counts, 10.0)
    stuck.move_clients(np.random.default_rng(0).permutation(20))
    assert stuck.labels.tolist() == types.tolist()
    stuck.descend(np.random.default_rng(0))
    assert len(set(stuck.labels[10:].tolist())) == 1


def _search(labels, distances, counts, capacity):
    return _Search(np.array(labels), *_check(distances, counts, capacity), capacity)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["alone", "together", "random"])
def test_no_step_raises_the_objective_and_the_running_sums_are_right(kind, start):
    distances, counts, capacity = _instance(kind, 15, 7)
    rng = np.random.default_rng(2)
    labels = {"alone": np.arange(15), "together": np.zeros(15), "random": rng.integers(5, size=15)}[start]
    search = _search(labels, distances, counts, capacity)
    values = [search.total / 15]
    for _ in range(10):
        for client in rng.permutation(15):
            search.move_clients(np.array([client]))
            values.append(search.total / 15)
        search.merge()
        values.append(search.total / 15)
        assert values[-1] == pytest.approx(_objective(search.labels, distances, counts, capacity), rel=1e-12)
    assert (np.diff(values) <= 1e-12).all()
    assert values[-1] <= min(values[0], _objective(range(15), distances, counts, capacity) if start == "alone" else 9)


def test_a_descent_ends_where_no_client_and_no_pair_of_coalitions_gains():
    for seed, kind in enumerate(KINDS):
        distances, counts, capacity = _instance(kind, 12, seed)
        search = _search(list(range(12)), distances, counts, capacity)
        search.descend(np.random.default_rng(seed))
        value = _objective(search.labels, distances, counts, capacity)
        for client in range(12):
            for label in range(12):
                moved = search.labels.copy()
                moved[client] = label
                assert _objective(moved, distances, counts, capacity) >= value - 1e-12
        for first in range(12):
            for second in range(12):
                merged = np.where(search.labels == second, first, search.labels)
                assert _objective(merged, distances, counts, capacity) >= value - 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("counts", [[100] * 6, [14, 14, 2100, 340, 999, 1]])
def test_limits(counts):
    distances = _instance("metric", 6, 0)[0] + 0.01 * (1 - torch.eye(6))
    together, alone = [0] * 6, list(range(6))
    assert solve_coalitions(torch.zeros(6, 6), counts, 10.0) == together
    assert solve_coalitions(distances * 1e9, counts, 10.0) == alone
    assert solve_coalitions(distances, counts, 0.0) == alone
    assert solve_coalitions(distances, counts, 1e9) == together
    assert solve_coalitions(torch.zeros(1, 1), [3], 5.0) == [0]


def test_rounding_does_not_keep_the_search_busy():
    """Zeros and huge numbers side by side: differences of sums leave residues, which must not look like gains."""
    distances = torch.zeros(8, 8, dtype=torch.float64)
    distances[0, 1:] = distances[1:, 0] = 1e13
    distances[1, 2:] = distances[2:, 1] = 0.1
    assert solve_coalitions(distances, [7, 3, 11, 13, 17, 19, 23, 29], 1e-3) == [0, 1, 2, 2, 2, 2, 2, 2]
    labels = solve_coalitions(distances, [7, 3, 11, 13, 17, 19, 23, 29], 0.0)
    assert coalition_objective(labels, distances, [7, 3, 11, 13, 17, 19, 23, 29], 0.0) == 0.0


@pytest.mark.slow
def test_solver_is_reproducible_and_follows_the_clients():
    for seed, kind in enumerate(KINDS):
        distances, counts, capacity = _instance(kind, 16, seed)
        before = distances.clone()
        labels = solve_coalitions(distances, counts, capacity, seed=3)
        assert labels == solve_coalitions(distances, torch.tensor(counts), capacity, seed=3)
        assert torch.equal(distances, before)
        assert all(isinstance(label, int) for label in labels)
        order = np.random.default_rng(seed).permutation(16)
        reordered = solve_coalitions(distances[order][:, order], [counts[i] for i in order], capacity, seed=3)
        found = [
            coalition_objective(x, distances, counts, capacity)
            for x in (labels, np.array(reordered)[order.argsort()].tolist())
        ]
        assert found[0] == pytest.approx(found[1], rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_newcomers_join_where_the_objective_is_least(kind):
    for seed in range(4):
        distances, counts, capacity = _instance(kind, 10, seed)
        newcomers = [8, 0, 5]
        existing = [client for client in range(10) if client not in newcomers]
        assignment = np.full(10, -1)
        assignment[existing] = np.array([4, 4, 7, 1, 7, 4, 1])
        joined = join_coalitions(assignment.tolist(), distances, counts, capacity, newcomers)
        expected, present = assignment.copy(), existing.copy()
        for client in sorted(newcomers):
            present = [*present, client]
            options = sorted(set(expected[present[:-1]].tolist()))
            options.append(options[-1] + 1)
            sub = np.array(present)
            values = []
            for option in options:
                expected[client] = option
                values.append(_objective(expected[sub], distances[sub][:, sub], np.array(counts)[sub], capacity))
            expected[client] = options[int(np.argmin(values))]
        assert joined == expected.tolist()


def test_joining_limits():
    distances = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert join_coalitions([0, 1, -1], distances, [50, 50, 50], 5.0, [2]) == [0, 1, 0]
    assert join_coalitions([0, 0, -1], distances * 1e6, [50, 50, 50], 5.0, [2]) == [0, 0, 1]
    assert join_coalitions([-1, -1, -1], torch.zeros(3, 3), [5, 5, 5], 1.0, [0, 1, 2]) == [0, 0, 0]
    assert join_coalitions(torch.tensor([2, 0, 1]), distances, [50, 50, 50], 5.0, []) == [2, 0, 1]
    # Of two equal coalitions the smaller label; a new coalition takes the next one.
    assert join_coalitions([1, 0, 9], torch.zeros(3, 3), [5, 5, 5], 1.0, [2]) == [1, 0, 0]
    assert join_coalitions([3, 0, 9], torch.ones(3, 3) - torch.eye(3), [5, 5, 5], 0.0, [2]) == [3, 0, 4]


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
