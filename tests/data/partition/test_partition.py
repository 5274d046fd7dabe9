"""Sizes, classes and groups of partitions."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_tiny import ASSAYS, LABELLED, MOLECULES, RINGS, Molecules, assert_partition, by_group, labelled, lists
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import DataError
from lightning_fl.data import partition
from lightning_fl.data.partition import IID, Dirichlet, GroupBy, Pathological, Quantity, Scaffold, Sizes
from lightning_fl.data.partition.classes import bin_targets
from lightning_fl.data.partition.groups import sorted_groups
from lightning_fl.data.partition.labels import deal_classes, share_counts

TEN = labelled(*[60] * 10)
(LABELS,) = TEN.tensors
NAN = float("nan")


def _of_size(num_samples):
    return TensorDataset(torch.zeros(num_samples))


def _by_shares(labels, shares):
    return list(deal_classes(labels, share_counts(labels.bincount(minlength=len(shares)), shares), 0))


# ---- sizes


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
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_quantity_has_exact_random_sizes():
    parts = Quantity(ratios=[7, 2, 1])(_of_size(1128), seed=3)
    assert [len(part) for part in parts] == [790, 225, 113]
    assert lists(parts) == lists(Quantity(ratios=[0.7, 0.2, 0.1])(_of_size(1128), seed=3))
    # Random: the first client's share of the first half is 0.7 within 5 standard deviations of sqrt(.21 / 564).
    assert abs((parts[0] < 564).sum() / 564 - 0.7) < 0.1


def test_drawn_sizes_have_the_moments_of_the_dirichlet_distribution():
    alpha, clients = 2.0, 4
    partitioner = Quantity(num_clients=clients, alpha=alpha, min_samples=1)
    ratios = torch.tensor([partitioner.client_ratios(10_000, seed) for seed in range(800)])
    assert ratios.sum(1).allclose(torch.ones(800))
    # the variance of a share of Dir(a, ..., a) is (1/N) (1 - 1/N) / (N a + 1)
    variance = 0.25 * 0.75 / (clients * alpha + 1)
    assert ratios.mean(0).tolist() == pytest.approx([0.25] * clients, abs=4 * (variance / 800) ** 0.5)
    assert float(ratios.var(0).mean()) == pytest.approx(variance, rel=0.15)


def test_drawn_sizes_are_used_and_large_enough():
    drawn, data = Quantity(num_clients=5, alpha=0.5), _of_size(200)
    parts = drawn(data, 3)
    assert min(map(len, parts)) >= 10
    assert lists(parts) == lists(Quantity(ratios=drawn.client_ratios(200, 3))(data, 3))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_sizes_are_exact_at_random_and_stratified(sizes, seed):
    labels = torch.arange(240) % 4
    for stratified in (False, True):
        parts = Sizes(train=sizes, stratified=stratified)(TensorDataset(labels), seed)
        assert [len(part) for part in parts] == sizes
    for part, size in zip(parts, sizes, strict=True):  # the stratified ones: quarters, give or take rounding
        assert (labels[part].bincount(minlength=4) - size / 4).abs().max() < 2


def test_stratified_parts_are_alike_and_sizes_leave_the_rest():
    labels = LABELLED.tensors[1]  # five classes of 20
    for partitioner in (IID(num_clients=4, stratified=True), Quantity(ratios=[1, 1, 1, 1], stratified=True)):
        assert [labels[part].bincount().tolist() for part in partitioner(LABELLED, 0)] == [[5] * 5] * 4
    counts = [labels[part].bincount().tolist() for part in Sizes(train=[25, 50])(LABELLED, 0)]
    assert counts == [[5] * 5, [10] * 5]
    # All samples used up.
    assert [len(part) for part in Sizes(train=[99, 1])(LABELLED, 0)] == [99, 1]


# ---- classes


def test_bins_are_equally_full_ascending_and_invariant_to_increasing_maps():
    values = torch.randn(200, generator=torch.Generator().manual_seed(0))
    labels = bin_targets(values, 4)
    assert labels.bincount().tolist() == [50] * 4
    assert (labels[values.argsort()].diff() >= 0).all()
    assert torch.equal(bin_targets(values.exp(), 4), labels)


@pytest.mark.parametrize(
    ("values", "num_bins", "labels"),
    [
        # Up to as many different targets as bins have a bin each.
        ([1.0, NAN, 1, 3, 1, 1, NAN, 2], 4, [0, 3, 0, 2, 0, 0, 3, 1]),
        ([0.0] * 19 + [1], 2, [0] * 19 + [1]),
        ([0.0] * 96 + [1, 2], 3, [0] * 96 + [1, 2]),
        ([NAN, NAN], 3, [0, 0]),
        ([5.0, 5.0], 10, [0, 0]),
    ],
)
def test_bins_keep_ties_together_and_missing_targets_apart(values, num_bins, labels):
    assert bin_targets(torch.tensor(values), num_bins).tolist() == labels


def test_shares_are_met_exactly_and_leave_samples_unused_below_1():
    labels = torch.tensor([0, 1] * 20)
    for shares, counts in (
        ([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], [[10, 0], [5, 20], [5, 0]]),
        ([[0.5, 0.25], [0.0, 0.0]], [[10, 0], [5, 0]]),
    ):
        parts = _by_shares(labels, torch.tensor(shares))
        assert [labels[part].bincount(minlength=2).tolist() for part in parts] == counts
        assert len(torch.cat(parts).unique()) == sum(map(sum, counts))


def test_shares_that_sum_to_1_but_for_rounding_deal_every_sample():
    """Without the rest, 60,000 samples times 0.99999 would be 0.6 short, which rounds to one."""
    labels = torch.zeros(60_000, dtype=torch.long)
    assert_partition(_by_shares(labels, torch.tensor([[0.499995, 0.499995]], dtype=torch.float64)), 60_000)


def test_dirichlet_limits():
    # Large alpha: every client has 60 / 4 = 15 of every class.
    even = Dirichlet(num_clients=4, alpha=1e9)(TEN, seed=0)
    assert all((LABELS[part].bincount() - 15).abs().max() <= 1 for part in even)
    # Tiny alpha: every class has one owner.
    lone = Dirichlet(num_clients=4, alpha=1e-4)(TEN, seed=0)
    assert sum((LABELS[part].bincount() > 0).sum().item() for part in lone) == 10
    assert all(set(LABELS[part].bincount().tolist()) <= {0, 60} for part in lone)
    assert min(map(len, Dirichlet(num_clients=5, alpha=0.3, min_samples=50)(TEN, seed=1))) >= 50


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


def test_pathological_copes_with_an_unused_label():
    parts = Pathological(num_clients=2, classes_per_client=1)(TensorDataset(torch.tensor([0, 0, 2, 2])), seed=0)
    assert sorted(lists(parts)) == [[0, 1], [2, 3]]


# ---- groups


def test_each_group_is_a_client_in_sorted_order():
    assert lists(by_group(["b", "a", "b", "c"], None, 0)) == [[1], [0, 2], [3]]
    assert lists(by_group([10, 9, 10], None, 0)) == [[1], [0, 2]]
    assert sorted_groups(["2", 10, "10", 3]) == [3, 10, "10", "2"]
    by_assay = GroupBy(column="assay")
    assert by_assay.names is None
    by_assay(MOLECULES, 0)
    assert by_assay.names == ["a", "b", "c"]


GROUPS = [name for name, size in enumerate([40, 25, 25, 20, 10, 10, *[3] * 10, *[1] * 40]) for _ in range(size)]


@pytest.mark.parametrize("ratios", [None, [1, 1, 1], [7, 2, 1], [1, 2, 7]])
@pytest.mark.parametrize("seed", range(4))
def test_dealt_groups_stay_whole_and_meet_the_ratios(ratios, seed):
    parts = by_group(GROUPS, 3, seed, ratios)
    assert_partition(parts, len(GROUPS))
    owners = [{GROUPS[i] for i in part.tolist()} for part in parts]
    assert sum(len(owner) for owner in owners) == len(set(GROUPS))
    assert [len(part) for part in parts] == partition.apportion(len(GROUPS), ratios or [1, 1, 1])


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
    assert min(map(len, parts)) >= 1


def test_some_groups_can_be_drawn():
    named = set()
    for seed in range(20):
        drawn = GroupBy(column="assay", num_groups=3)
        parts = drawn(ASSAYS, seed)
        assert len(parts) == 3
        assert drawn.names == sorted(drawn.names)
        for name, part in zip(drawn.names, parts, strict=True):
            assert part.tolist() == [index for index, assay in enumerate(ASSAYS.assays) if assay == name]
        named |= set(drawn.names)
    assert named == set("abcdef")  # small ones too
    every = GroupBy(column="assay", num_groups=6)
    assert lists(every(ASSAYS, 0)) == lists(GroupBy(column="assay")(ASSAYS, 1))


def test_small_groups_can_be_left_out():
    large = GroupBy(column="assay", min_samples=6)
    assert [len(part) for part in large(ASSAYS, 0)] == [6, 8, 7]
    assert large.names == ["c", "d", "f"]
    dealt = GroupBy(column="assay", min_samples=6, num_clients=2)(ASSAYS, 0)
    assert sorted(torch.cat(dealt).tolist()) == [*range(6, 20), *range(23, 30)]
    # groups are large enough by their training samples
    test = Molecules(["C"] * 12, ["a"] * 9 + ["d"] * 3)
    large = GroupBy(column="assay", min_samples=7)
    parts = large.partition_splits({"train": ASSAYS, "test": test}, 0)
    assert large.names == ["d", "f"]
    assert lists(parts["test"]) == [[9, 10, 11], []]


def test_scaffolds_are_ring_systems_with_their_linkers():
    smiles = ["CCO", "Cc1ccccc1", "OC(=O)c1ccccc1", "c1ccccc1CCC1CC1", "C[C@H]1CCCC(=O)N1", ""]
    benzene = "c1ccccc1"
    assert partition.murcko_scaffolds(smiles) == ["", benzene, benzene, "c1ccc(CCC2CC2)cc1", "O=C1CCCCN1", ""]


def test_scaffolds_of_a_data_set_are_computed_once(monkeypatch):
    before = Scaffold(num_clients=2)(MOLECULES, seed=0)
    monkeypatch.setattr("lightning_fl.data.partition.groups._compute_scaffolds", None)
    assert lists(Scaffold(num_clients=2)(MOLECULES, seed=0)) == lists(before)


def test_scaffold_partition_keeps_scaffolds_together():
    rings = [*RINGS, "C1CCCCC1", "c1ccncc1", "c1ccoc1", "c1ccsc1"]
    smiles = [tail + ring for ring in rings for tail in ("C", "CC", "CCC")] + ["CCO", "CCC", "O"]
    parts = Scaffold(num_clients=3)(Molecules(smiles), seed=0)
    assert [len(part) for part in parts] == [9, 9, 9]
    scaffolds = partition.murcko_scaffolds(smiles)
    assert sum(len({scaffolds[i] for i in part.tolist()}) for part in parts) == 9
    sizes = [len(part) for part in Scaffold(num_clients=3, ratios=[7, 1, 1])(Molecules(smiles), seed=0)]
    assert sizes == [21, 3, 3]


def test_a_group_has_one_client_in_all_splits():
    other = Molecules(["CCCC" + ring for ring in RINGS[::-1]], ["a", "c", "b", "d"])
    scaffolds = {data: partition.murcko_scaffolds(data.smiles) for data in (MOLECULES, other)}
    parts = Scaffold(num_clients=2).partition_splits({"train": MOLECULES, "test": other}, 3)
    for one, two in zip(parts["train"], parts["test"], strict=True):
        assert {scaffolds[MOLECULES][i] for i in one.tolist()} == {scaffolds[other][i] for i in two.tolist()}
    by_assay = GroupBy(column="assay")
    parts = by_assay.partition_splits({"train": MOLECULES, "test": other}, 3)
    assert by_assay.names == ["a", "b", "c", "d"]
    assert lists(parts["test"]) == [[0], [2], [1], [3]]
    assert len(parts["train"][3]) == 0
