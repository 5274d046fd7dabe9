import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.functional import (
    gram_matrix,
    hierarchical_partition,
    join_group,
    least_merged_cosine,
    most_discriminative_layer,
    partition_from_gram,
    partition_utility,
)


def _utility(group, updates, counts, tradeoff, leave_one_out=False):
    """U of a group from the vectors themselves (equations 8, 9, 13, 14), U_0 = 0."""
    mass = sum(counts[n] for n in group)
    mean = sum(counts[n] / mass * updates[n] for n in group)
    total = 0.0
    for n in group:
        if leave_one_out and len(group) > 1:
            mean = sum(counts[other] * updates[other] for other in group if other != n)
        norms = np.linalg.norm(updates[n]) * np.linalg.norm(mean)
        cosine = 1.0 if len(group) == 1 else updates[n] @ mean / norms if norms > 0 else 0.0
        total += cosine - tradeoff / math.sqrt(mass)
    return total


def _algorithm_2(updates, counts, tradeoff, leave_one_out=False):
    """The merges as the paper makes them: every pair's gain from scratch, the largest first, until none is above 0."""
    groups = [(n,) for n in range(len(updates))]
    merges = []
    while len(groups) > 1:
        best = 1e-9, None
        for a, b in itertools.combinations(range(len(groups)), 2):
            parts = (groups[a] + groups[b], groups[a], groups[b])
            value = [_utility(g, updates, counts, tradeoff, leave_one_out) for g in parts]
            gain = value[0] - value[1] - value[2]
            if gain > best[0] + 1e-9 * (best[1] is not None):
                best = gain, (a, b)
        if best[1] is None:
            break
        a, b = best[1]
        merges.append((groups[a], groups[b], best[0]))
        groups[a] = tuple(sorted(groups[a] + groups.pop(b)))
    return groups, merges


def _labels(groups):
    labels = {n: label for label, group in enumerate(sorted(groups)) for n in group}
    return [labels[n] for n in range(len(labels))]


def _case(seed, num_clients, num_parameters):
    """Updates around a few directions, some far longer than others; unequal counts."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, num_parameters))
    noise = rng.choice([0.1, 0.5, 2.0])
    updates = centres[rng.integers(3, size=num_clients)] + noise * rng.normal(size=(num_clients, num_parameters))
    updates *= np.exp(rng.normal(size=(num_clients, 1)))
    return updates, rng.integers(1, 500, size=num_clients).tolist()


@pytest.mark.slow
@given(
    st.integers(0, 100_000),
    st.integers(1, 12),
    st.sampled_from([1, 2, 3, 10, 200]),
    st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0, 30.0, 300.0]),
    st.booleans(),
)
@settings(max_examples=160, deadline=None)
def test_the_gram_form_makes_the_merges_of_algorithm_2(seed, num_clients, num_parameters, tradeoff, leave_one_out):
    updates, counts = _case(seed, num_clients, num_parameters)
    groups, merges = _algorithm_2(updates, counts, tradeoff, leave_one_out)
    gram = gram_matrix(torch.from_numpy(updates))
    partition = partition_from_gram(gram, counts, tradeoff, leave_one_out=leave_one_out)
    assert [merge[:2] for merge in partition.merges] == [merge[:2] for merge in merges]
    np.testing.assert_allclose([m.gain for m in partition.merges], [m[2] for m in merges], rtol=1e-6, atol=1e-9)
    assert partition.labels == _labels(groups)
    vectors = torch.from_numpy(updates)
    assert partition.labels == hierarchical_partition(vectors, counts, tradeoff, leave_one_out=leave_one_out)
    utility = sum(_utility(group, updates, counts, tradeoff, leave_one_out) for group in groups)
    assert partition.utility == pytest.approx(utility, rel=1e-9, abs=1e-9)


@given(st.integers(0, 100_000), st.integers(1, 9), st.floats(0, 40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_utility_of_any_partition(seed, num_clients, tradeoff, leave_one_out):
    """From the vectors; scaling all updates, renaming groups or another order of the clients changes nothing."""
    updates, counts = _case(seed, num_clients, 6)
    labels = np.random.default_rng(seed).integers(-3, 3, size=num_clients)
    groups = [tuple(np.flatnonzero(labels == label)) for label in set(labels)]
    expected = sum(_utility(group, updates, counts, tradeoff, leave_one_out) for group in groups)
    order = np.random.default_rng(seed).permutation(num_clients)
    for scale, names, rows in ((1.0, labels, np.arange(num_clients)), (1e-3, 10 * labels, order)):
        gram = gram_matrix(torch.from_numpy(scale * updates[rows]))
        found = partition_utility(
            gram, [counts[n] for n in rows], tradeoff, names[rows].tolist(), leave_one_out=leave_one_out
        )
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_without_its_own_part_a_client_is_compared_with_the_others():
    """Alone s = 1; of two s is their cosine: equal ones have 1, orthogonal ones 0."""
    updates = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    gram = gram_matrix(updates)

    def similarity(labels, counts=(4, 4, 4)):
        return partition_utility(gram, counts, 0.0, labels, leave_one_out=True)

    assert similarity([0, 1, 2]) == pytest.approx(3)
    assert similarity([0, 0, 1]) == pytest.approx(3)
    assert similarity([0, 1, 0]) == pytest.approx(1)
    # Together: (1, 0) with (5, 3), (1, 0) with (2, 3), (0, 1) with (7, 0).
    assert similarity([0, 0, 0]) == pytest.approx(5 / math.hypot(5, 3) + 2 / math.hypot(2, 3))
    # Counts weigh the others: (1, 0) with 10 (5, 0) + (0, 3), and so on.
    assert similarity([0, 0, 0], (1, 10, 1)) == pytest.approx(50 / math.hypot(50, 3) + 2 / math.hypot(2, 3))
    # A zero update, and others that cancel, have no direction.
    cancelling = gram_matrix(torch.tensor([[0.0, 0.0], [1.0, 0.1], [-1.0, -0.1]], dtype=torch.float64))
    assert partition_utility(cancelling, [1, 1, 1], 0.0, [0, 0, 0], leave_one_out=True) == pytest.approx(-2)
    assert partition_utility(cancelling, [1, 1, 1], 0.0, [0, 0, 1], leave_one_out=True) == pytest.approx(1)


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_the_least_merged_cosine_is_where_two_merge(leave_one_out):
    for relative_trade_off in (0.3, 0.8, 2.0, 3.0):
        least = least_merged_cosine(relative_trade_off, leave_one_out=leave_one_out)
        for cosine, merges in ((least - 1e-6, False), (least + 1e-6, True)):
            gram = torch.tensor([[1.0, cosine], [cosine, 1.0]], dtype=torch.float64)
            found = partition_from_gram(gram, [25, 25], 5 * relative_trade_off, leave_one_out=leave_one_out)
            assert (found.labels == [0, 0]) == merges
    assert least_merged_cosine(100.0, leave_one_out=leave_one_out) == -1


def test_a_merge_by_hand():
    """g = (1, 0), (0, 1), 100 samples each: together (1/2, 1/2), s = 1/√2; U = 2/√2 − 2λ/√200 against 2 − 2λ/10.

    The gain √2 − 2 + 2λ (1/10 − 1/√200) is above 0 for λ > (2 − √2) / (2 (0.1 − 1/√200)) = 10.
    """
    updates = torch.eye(2)
    partition = partition_from_gram(gram_matrix(updates), [100, 100], 12.0)
    assert partition.labels == [0, 0]
    gain = math.sqrt(2) - 2 + 24 * (0.1 - 1 / math.sqrt(200))
    assert partition.merges == [((0,), (1,), pytest.approx(gain))]
    assert partition.utility == pytest.approx(math.sqrt(2) - 24 / math.sqrt(200))
    assert hierarchical_partition(updates, [100, 100], 10.01) == [0, 0]
    assert partition_from_gram(gram_matrix(updates), [100, 100], 9.99) == ([0, 1], [], pytest.approx(2 - 19.98 / 10))


def test_limits():
    updates, counts = _case(5, 9, 40)
    distinct = torch.from_numpy(updates)
    alone, together = list(range(9)), [0] * 9
    assert hierarchical_partition(distinct, counts, 0.0) == alone
    assert hierarchical_partition(distinct, counts, 1e9) == together
    assert hierarchical_partition(distinct[:1].expand(9, -1), counts, 1e-3) == together
    # Nothing to gain: one direction of any length and λ = 0 is a tie, and a tie is no gain.
    assert hierarchical_partition(distinct[:1] * torch.arange(1, 10)[:, None], counts, 0.0) == alone
    assert hierarchical_partition(distinct[:1], [3], 5.0) == [0]


def test_ties_go_to_the_smallest_clients():
    """Two equals gain 2λ/√50 − 2λ/√100 = 0.083 λ, a third one joining them 2λ/√100 + λ/√50 − 3λ/√150 = 0.096 λ."""
    updates = torch.eye(4)[[0, 1, 0, 1, 0]]
    partition = partition_from_gram(gram_matrix(updates), [50] * 5, 2.0)
    assert partition.labels == [0, 1, 0, 1, 0]
    assert [merge[:2] for merge in partition.merges] == [((0,), (2,)), ((0, 2), (4,)), ((1,), (3,))]
    # The same with lengths and rotations whose products round differently.
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    turned = updates.double() @ rotation * torch.tensor([[0.3], [0.3], [0.3], [0.3], [0.3]], dtype=torch.float64)
    again = partition_from_gram(gram_matrix(turned), [50] * 5, 2.0)
    assert [merge[:2] for merge in again.merges] == [merge[:2] for merge in partition.merges]


def test_zero_and_cancelling_updates_have_no_direction():
    """Alone s = 1, in company a zero update has s = 0, and so have all members of a group whose mean is zero."""
    updates = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    gram = gram_matrix(updates)
    assert partition_from_gram(gram, [9, 9, 9], 0.0) == ([0, 1, 2], [], 3.0)
    pair = partition_from_gram(gram[:2, :2], [9, 9], 30.0)
    assert pair.labels == [0, 0]
    assert pair.utility == pytest.approx(0 + 1 - 60 / math.sqrt(18))
    everybody = partition_from_gram(gram, [9, 9, 9], 1e4)
    assert everybody.labels == [0, 0, 0]
    assert everybody.utility == pytest.approx(-3e4 / math.sqrt(27))
    # Cancelling up to rounding is cancelling: 0.1 + 0.2 - 0.3 is not 0 in float64.
    nearly = torch.tensor([[0.1, 0.7], [0.2, 1.4], [-0.3, -2.1]], dtype=torch.float64)
    assert partition_from_gram(gram_matrix(nearly), [1, 1, 1], 1e4).utility == pytest.approx(
        -3e4 / math.sqrt(3), abs=1e-6
    )
    assert hierarchical_partition(torch.zeros(4, 3), [5] * 4, 0.1) == [0, 1, 2, 3]


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("tradeoff", [0.0, 0.5, 3.0, 20.0, 1e6])
def test_a_newcomer_joins_the_group_with_the_largest_gain(tradeoff, leave_one_out):
    for seed in range(10):
        updates, counts = _case(seed, 8, 6)
        gram = gram_matrix(torch.from_numpy(updates))
        labels, newcomer = [5, 2, 2, 5, 0, 0, 2, 5], seed % 8
        labels[newcomer] = -9
        gains = {}
        for label in sorted(set(labels) - {-9}):
            group = tuple(n for n in range(8) if labels[n] == label)
            parts = ((*group, newcomer), group, (newcomer,))
            values = [_utility(g, updates, counts, tradeoff, leave_one_out) for g in parts]
            gains[label] = values[0] - values[1] - values[2]
        best = max(gains, key=gains.get)
        expected = list(labels)
        expected[newcomer] = best if gains[best] > 0 else 6
        assert join_group(gram, counts, tradeoff, labels, newcomer, leave_one_out=leave_one_out) == expected
        assert labels[newcomer] == -9


def test_joining_limits():
    gram = gram_matrix(torch.eye(3))
    assert join_group(gram, [5, 5, 5], 0.0, [0, 1, 0], 2) == [0, 1, 2]
    assert join_group(gram, [5, 5, 5], 1e6, [1, 0, 0], 2) == [1, 0, 0]  # equal groups: the smallest label
    assert join_group(gram[:1, :1], [5], 1.0, [0], 0) == [0]
    # The last client of an ordinary partition lands where the partition had it, when it was merged last.
    updates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0], [0.9, 0.4]])
    assert hierarchical_partition(updates, [50] * 5, 1.0) == [0, 1, 0, 1, 0]
    assert join_group(gram_matrix(updates), [50] * 5, 1.0, [0, 1, 0, 1, 9], 4) == [0, 1, 0, 1, 0]


def test_the_most_discriminative_layer_is_equation_19():
    rng = np.random.default_rng(3)
    for _ in range(10):
        layers = {f"layer{i}": rng.normal(rng.normal(), rng.random(), size=(5, 3 + i)) for i in range(4)}
        counts = rng.integers(1, 90, size=5)
        for shares in (np.full(5, 0.2), counts / counts.sum()):
            means = {name: shares @ g for name, g in layers.items()}
            scores = {name: ((g - means[name]) ** 2).sum() / (means[name] ** 2).sum() for name, g in layers.items()}
            chosen = most_discriminative_layer(
                {name: torch.from_numpy(g) for name, g in layers.items()}, None if shares[0] == 0.2 else counts.tolist()
            )
            assert chosen == max(scores, key=scores.get)


def test_layers_that_stand_still_or_cancel():
    layers = {
        "frozen": torch.zeros(2, 4),
        "empty": torch.zeros(2, 0),
        "equal": torch.ones(2, 4),
        "differs": torch.tensor([[1.0, 0.0], [1.0, 0.1]]),
    }
    assert most_discriminative_layer(layers) == "differs"
    assert most_discriminative_layer({name: layers[name] for name in ("frozen", "empty", "equal")}) == "frozen"
    assert most_discriminative_layer({**layers, "cancels": torch.tensor([[1e-3], [-1e-3]])}) == "cancels"


def test_wide_layers_are_read_piece_by_piece():
    wide = torch.randn(3, 10_000, generator=torch.Generator().manual_seed(0)) + 0.2
    mean = wide.double().mean(0)
    score = float((wide.double() - mean).square().sum() / mean.square().sum())
    for factor, expected in ((0.999, "wide"), (1.001, "other")):
        spread = math.sqrt(factor * score / 2)  # 1 + s and 1 − s have relative variance 2 s²
        other = torch.tensor([[1 + spread], [1 - spread], [1.0]], dtype=torch.float64)
        assert most_discriminative_layer({"wide": wide, "other": other}) == expected
