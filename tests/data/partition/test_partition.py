from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_tiny import Molecules, assert_partition, by_group, same
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import DataError
from lightning_fl.data import partition
from lightning_fl.data.partition import IID, Dirichlet, Pathological, Quantity, Scaffold, Sizes
from lightning_fl.data.partition.classes import bin_targets
from lightning_fl.data.partition.groups import sorted_groups
from lightning_fl.data.partition.labels import deal_classes, share_counts

LABELS = torch.arange(10).repeat_interleave(60)
TEN = TensorDataset(LABELS)


def _of_size(num_samples):
    return TensorDataset(torch.zeros(num_samples))


def _by_shares(labels, shares):
    return deal_classes(labels, share_counts(labels.bincount(minlength=len(shares)), shares), 0)


@given(st.integers(0, 500), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_apportion_is_exact_and_within_one_of_the_quota(total, ratios):
    counts = partition.apportion(total, ratios)
    assert sum(counts) == total
    for count, ratio in zip(counts, ratios, strict=True):
        assert abs(count - total * ratio / sum(ratios)) < 1 + 1e-9


def test_apportion_by_hand():
    # Quotas 789.6, 225.6, 112.8: the two left over go to the remainders 0.8 and the first 0.6.
    assert partition.apportion(1128, [7, 2, 1]) == [790, 225, 113]
    assert partition.apportion(10, [7, 2, 1]) == [7, 2, 1]
    assert partition.apportion(5, [1, 0, 1]) == [3, 0, 2]


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_iid_sizes_differ_by_at_most_one(num_samples, num_clients, seed):
    if num_clients > num_samples:
        with pytest.raises(DataError, match=f"at most {num_samples} clients"):
            IID(num_clients=num_clients)(_of_size(num_samples), seed)
        return
    parts = IID(num_clients=num_clients)(_of_size(num_samples), seed)
    assert_partition(parts, num_samples)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_quantity_has_exact_sizes_and_depends_on_the_seed_alone():
    parts = Quantity(ratios=[7, 2, 1])(_of_size(1128), seed=3)
    assert_partition(parts, 1128)
    assert [len(part) for part in parts] == [790, 225, 113]
    state = torch.get_rng_state()
    assert same(parts, Quantity(ratios=[0.7, 0.2, 0.1])(_of_size(1128), seed=3))
    assert torch.equal(state, torch.get_rng_state())
    assert not same(parts, Quantity(ratios=[7, 2, 1])(_of_size(1128), seed=4))
    # Random: the first client's share of the first half is 0.7 within 5 standard deviations of sqrt(.21 / 564).
    assert abs((parts[0] < 564).sum() / 564 - 0.7) < 0.1


def test_bins_are_equally_full_ascending_and_invariant_to_increasing_maps():
    values = torch.randn(200, generator=torch.Generator().manual_seed(0))
    labels = bin_targets(values, 4)
    assert labels.bincount().tolist() == [50] * 4
    assert (labels[values.argsort()].diff() >= 0).all()
    assert torch.equal(bin_targets(values.exp(), 4), labels)


def test_bins_keep_ties_together_and_missing_targets_apart():
    nan = float("nan")
    # Quartiles of 1, 1, 1, 1, 2, 3 are 1, 1, 1.75: equal targets share a bin, empty bins are left out.
    assert bin_targets(torch.tensor([1.0, nan, 1, 3, 1, 1, nan, 2]), 4).tolist() == [0, 2, 0, 1, 0, 0, 2, 1]
    assert bin_targets(torch.tensor([nan, nan]), 3).tolist() == [0, 0]
    assert bin_targets(torch.tensor([5.0, 5.0]), 10).tolist() == [0, 0]


def test_shares_are_met_exactly():
    labels = torch.tensor([0, 1] * 20)
    parts = _by_shares(labels, torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]))
    assert_partition(parts, 40)
    assert [labels[part].bincount(minlength=2).tolist() for part in parts] == [[10, 0], [5, 20], [5, 0]]


def test_shares_that_sum_to_1_but_for_rounding_deal_every_sample():
    """Without the rest, 60,000 samples times 0.99999 would be 0.6 short, which rounds to one."""
    labels = torch.zeros(60_000, dtype=torch.long)
    parts = _by_shares(labels, torch.tensor([[0.499995, 0.499995]], dtype=torch.float64))
    assert_partition(parts, 60_000)


def test_shares_below_1_leave_samples_unused():
    labels = torch.tensor([0, 1] * 20)
    # Class 0: the first 10 of 20 and then 5; class 1: none at all.
    parts = _by_shares(labels, torch.tensor([[0.5, 0.25], [0.0, 0.0]]))
    assert [labels[part].bincount(minlength=2).tolist() for part in parts] == [[10, 0], [5, 0]]
    assert len(torch.cat(parts).unique()) == 15


def test_counts_are_met_exactly():
    labels = torch.tensor([0, 1, 1] * 10)
    counts = torch.tensor([[3, 7], [0, 12]])
    parts = deal_classes(labels, counts, seed=1)
    assert torch.equal(torch.stack([labels[part].bincount(minlength=2) for part in parts], dim=1), counts)
    assert all((part.diff() > 0).all() for part in parts)
    assert len(torch.cat(parts).unique()) == 22


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_sizes_are_exact_at_random_and_stratified(sizes, seed):
    labels = torch.arange(240) % 4
    for stratified in (False, True):
        parts = Sizes(train=sizes, stratified=stratified)(TensorDataset(labels), seed)
        assert [len(part) for part in parts] == sizes
        assert len(torch.cat(parts).unique()) == sum(sizes)
        assert all((part.diff() > 0).all() for part in parts)
    for part, size in zip(parts, sizes, strict=True):  # the stratified ones: quarters, give or take rounding
        assert (labels[part].bincount(minlength=4) - size / 4).abs().max() < 2


@given(st.floats(0.05, 50), st.integers(1, 8), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_dirichlet_is_a_partition_with_no_empty_client(alpha, num_clients, seed):
    parts = Dirichlet(num_clients=num_clients, alpha=alpha)(TEN, seed)
    assert_partition(parts, len(LABELS))
    assert len(parts) == num_clients
    assert min(len(part) for part in parts) >= 1


def test_dirichlet_limits():
    # Large alpha: every client has 60 / 4 = 15 of every class.
    even = Dirichlet(num_clients=4, alpha=1e9)(TEN, seed=0)
    assert all((LABELS[part].bincount() - 15).abs().max() <= 1 for part in even)
    # Tiny alpha: every class has one owner.
    lone = Dirichlet(num_clients=4, alpha=1e-4)(TEN, seed=0)
    assert sum((LABELS[part].bincount() > 0).sum().item() for part in lone) == 10
    assert all(set(LABELS[part].bincount().tolist()) <= {0, 60} for part in lone)


def test_dirichlet_keeps_the_least_number_of_samples_and_its_seed():
    parts = Dirichlet(num_clients=5, alpha=0.3, min_samples=50)(TEN, seed=1)
    assert min(len(part) for part in parts) >= 50
    assert same(parts, Dirichlet(num_clients=5, alpha=0.3, min_samples=50)(TEN, seed=1))
    assert not same(parts, Dirichlet(num_clients=5, alpha=0.3, min_samples=50)(TEN, seed=2))


@pytest.mark.parametrize(("num_clients", "classes"), [(10, 1), (7, 3), (20, 3), (2, 10), (5, 2)])
def test_pathological_gives_every_client_its_number_of_classes(num_clients, classes):
    parts = Pathological(num_clients=num_clients, classes_per_client=classes)(TEN, seed=0)
    assert_partition(parts, len(LABELS))
    held = [LABELS[part].unique().tolist() for part in parts]
    assert {len(labels) for labels in held} == {classes}
    holders = Counter(label for labels in held for label in labels)
    assert max(holders.values()) - min(holders.values()) <= 1
    # The holders of a class have equal parts of it.
    for label, count in holders.items():
        sizes = [int((LABELS[part] == label).sum()) for part in parts]
        assert all(abs(size - 60 / count) < 1.0 for size in sizes if size)
    assert same(parts, Pathological(num_clients=num_clients, classes_per_client=classes)(TEN, seed=0))


def test_pathological_copes_with_an_unused_label():
    parts = Pathological(num_clients=2, classes_per_client=1)(TensorDataset(torch.tensor([0, 0, 2, 2])), seed=0)
    assert sorted(part.tolist() for part in parts) == [[0, 1], [2, 3]]


def test_each_group_is_a_client_in_sorted_order():
    assert [part.tolist() for part in by_group(["b", "a", "b", "c"], None, 0)] == [[1], [0, 2], [3]]
    assert [part.tolist() for part in by_group([10, 9, 10], None, 0)] == [[1], [0, 2]]
    assert sorted_groups(["2", 10, "10", 3]) == [3, 10, "10", "2"]


GROUPS = [name for name, size in enumerate([40, 25, 25, 20, 10, 10, *[3] * 10, *[1] * 40]) for _ in range(size)]


@pytest.mark.parametrize("ratios", [None, [1, 1, 1], [7, 2, 1], [1, 2, 7]])
@pytest.mark.parametrize("seed", range(4))
def test_dealt_groups_stay_whole_and_meet_the_ratios(ratios, seed):
    parts = by_group(GROUPS, 3, seed, ratios)
    assert_partition(parts, len(GROUPS))
    owners = [{GROUPS[i] for i in part.tolist()} for part in parts]
    assert sum(len(owner) for owner in owners) == len(set(GROUPS))
    assert [len(part) for part in parts] == partition.apportion(len(GROUPS), ratios or [1, 1, 1])
    assert same(parts, by_group(GROUPS, 3, seed, ratios))


def test_seeds_deal_really_different_clients():
    owners = []
    for seed in range(12):
        owner = torch.empty(len(GROUPS), dtype=torch.long)
        for client, part in enumerate(by_group(GROUPS, 3, seed)):
            owner[part] = client
        owners.append(owner)
    # Independent owners agree on a third of the samples; the largest group is dealt to every client now and then.
    agreement = torch.stack([(one == other).float().mean() for one, other in pairwise(owners)])
    assert agreement.mean() < 0.6
    assert {int(owner[0]) for owner in owners} == {0, 1, 2}


def test_dealing_does_not_depend_on_the_order_of_the_samples():
    for part, other in zip(by_group(GROUPS[::-1], 3, 5), by_group(GROUPS, 3, 5), strict=True):
        assert {GROUPS[::-1][i] for i in part.tolist()} == {GROUPS[i] for i in other.tolist()}


def test_a_group_too_large_fills_one_client_and_the_others_share_the_rest():
    sizes = sorted(len(part) for part in by_group(["big"] * 60 + list(range(40)), 5, 0))
    assert sizes == [10, 10, 10, 10, 60]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(1, 7), st.integers(0, 3), st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_client_is_left_without_a_group(groups, num_clients, seed, uneven):
    if num_clients > len(set(groups)):
        with pytest.raises(DataError, match=f"at most {len(set(groups))} clients"):
            by_group(groups, num_clients, seed)
        return
    ratios = [1000.0] + [1.0] * (num_clients - 1) if uneven else None
    parts = by_group(groups, num_clients, seed, ratios)
    assert_partition(parts, len(groups))
    assert min(len(part) for part in parts) >= 1


def test_scaffolds_are_ring_systems_with_their_linkers():
    smiles = ["CCO", "Cc1ccccc1", "OC(=O)c1ccccc1", "c1ccccc1CCC1CC1", "C[C@H]1CCCC(=O)N1", ""]
    benzene = "c1ccccc1"
    assert partition.murcko_scaffolds(smiles) == ["", benzene, benzene, "c1ccc(CCC2CC2)cc1", "O=C1CCCCN1", ""]


def test_scaffold_partition_keeps_scaffolds_together():
    rings = ["C1CC1", "C1CCC1", "C1CCCC1", "c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccoc1", "c1ccsc1"]
    smiles = [tail + ring for ring in rings for tail in ("C", "CC", "CCC")] + ["CCO", "CCC", "O"]
    parts = Scaffold(num_clients=3)(Molecules(smiles), seed=0)
    assert_partition(parts, 27)
    assert [len(part) for part in parts] == [9, 9, 9]
    scaffolds = partition.murcko_scaffolds(smiles)
    assert sum(len({scaffolds[i] for i in part.tolist()}) for part in parts) == 9
    sizes = [len(part) for part in Scaffold(num_clients=3, ratios=[7, 1, 1])(Molecules(smiles), seed=0)]
    assert sizes == [21, 3, 3]


@given(st.integers(1, 60), st.tuples(st.floats(0.05, 1), st.floats(0, 1), st.floats(0, 1)), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_splits_cover_a_client_and_are_never_empty_where_asked_for(size, weights, client):
    fractions = [weight / sum(weights) for weight in weights]
    indices = torch.randperm(1000, generator=torch.Generator().manual_seed(size))[:size]
    parts = partition.split_indices(indices, fractions, 0, client)
    assert list(parts) == ["train", "val", "test"]
    assert torch.equal(torch.cat(list(parts.values())).sort().values, indices.sort().values)
    assert all((part.diff() > 0).all() for part in parts.values())
    assert len(parts["train"]) >= 1
    for part, fraction in zip(parts.values(), fractions, strict=True):
        assert abs(len(part) - size * fraction) <= 2
        assert fraction > 0 or len(part) == 0
        assert len(part) > 0 or fraction == 0 or size < 3


def test_split_by_hand_and_seeded_per_client():
    sizes = {n: [len(x) for x in partition.split_indices(torch.arange(n), [0.8, 0.1, 0.1], 0, 0).values()]
             for n in (1, 2, 3, 10, 376)}  # fmt: skip
    assert sizes == {1: [1, 0, 0], 2: [2, 0, 0], 3: [1, 1, 1], 10: [8, 1, 1], 376: [301, 38, 37]}
    indices = torch.arange(50, 100)
    first = partition.split_indices(indices, [0.8, 0.1, 0.1], 0, 0)
    assert same(first.values(), partition.split_indices(indices.flip(0), [0.8, 0.1, 0.1], 0, 0).values())
    assert not same(first.values(), partition.split_indices(indices, [0.8, 0.1, 0.1], 0, 1).values())
    assert not same(first.values(), partition.split_indices(indices, [0.8, 0.1, 0.1], 1, 0).values())
