import pytest
import torch
from partition_tiny import ASSAYS, LABELLED, MOLECULES, REAL, RINGS, Molecules
from torch.utils.data import Subset, TensorDataset

from lightning_fl.data.partition import (
    IID,
    Dirichlet,
    GroupBy,
    Partitioner,
    Pathological,
    Quantity,
    Scaffold,
    Sizes,
    murcko_scaffolds,
)
from lightning_fl.data.partition.classes import bin_targets


def _lists(parts):
    return [part.tolist() for part in parts]


@pytest.mark.parametrize(
    "partitioner",
    [
        Quantity(ratios=[7, 2, 1], stratified=True),
        IID(num_clients=3, stratified=True),
        Dirichlet(num_clients=3, alpha=0.5),
        Pathological(num_clients=4, classes_per_client=3),
    ],
)
def test_real_targets_are_put_into_ten_bins(partitioner):
    bins = TensorDataset(bin_targets(REAL.tensors[1][:, 0], 10))
    parts = partitioner(REAL, seed=5)
    assert _lists(parts) == _lists(partitioner(bins, seed=5))
    assert partitioner.num_clients == len(parts)


def test_the_number_of_bins_is_an_option():
    bins = TensorDataset(bin_targets(REAL.tensors[1][:, 0], 4))
    parts = Dirichlet(num_clients=3, alpha=0.5, num_bins=4)(REAL, 5)
    assert _lists(parts) == _lists(Dirichlet(num_clients=3, alpha=0.5)(bins, 5))


def test_group_names_are_known_after_a_call():
    by_assay = GroupBy(column="assay")
    assert by_assay.names is None
    by_assay(MOLECULES, 0)
    assert by_assay.names == ["a", "b", "c"]
    assert by_assay.describe() == {
        "name": "GroupBy",
        "num_clients": None,
        "ratios": None,
        "column": "assay",
        "num_groups": None,
        "min_samples": 0,
    }
    assert Quantity(ratios=[7, 2, 1]).describe() == {
        "name": "Quantity",
        "num_clients": 3,
        "ratios": [7, 2, 1],
        "stratified": False,
    }


def test_keys_are_read_through_subsets():
    picked = Subset(Subset(MOLECULES, [11, 10, 9, 3]), [3, 0, 1])  # assays b, c, a
    assert _lists(GroupBy(column="assay")(picked, 0)) == [[2], [0], [1]]
    # Ring 3 twice, ring 2 once.
    assert sorted(_lists(Scaffold(num_clients=2)(picked, 0))) == [[0, 1], [2]]


def test_splits_share_the_class_shares_and_bins():
    """Two data sets with the same label counts get the same counts per client, and so do real targets in bins."""
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    for partitioner in (Dirichlet(num_clients=3, alpha=0.3), Pathological(num_clients=3, classes_per_client=4)):
        for data in (LABELLED, REAL):
            targets = data.tensors[1][order]
            parts = partitioner.partition_splits({"train": data, "test": TensorDataset(targets)}, 7)
            labels = {"train": data.tensors[1].flatten(), "test": targets.flatten()}
            if data is REAL:
                bins = bin_targets(torch.cat(list(labels.values())), 10)
                labels = {"train": bins[:100], "test": bins[100:]}
            for one, other in zip(parts["train"], parts["test"], strict=True):
                counts = [
                    labels[split][part].bincount(minlength=10) for split, part in (("train", one), ("test", other))
                ]
                assert torch.equal(*counts)


def test_a_class_only_the_test_data_have_is_shared_out_too():
    train, test = TensorDataset(torch.tensor([0, 1] * 10)), TensorDataset(torch.tensor([0, 1, 2] * 4))
    for partitioner in (Dirichlet(num_clients=2, alpha=1.0), Pathological(num_clients=2, classes_per_client=1)):
        parts = partitioner.partition_splits({"train": train, "test": test}, 0)
        assert sorted(torch.cat(parts["test"]).tolist()) == list(range(12))


def test_a_group_has_one_client_in_all_splits():
    other = Molecules(["CCCC" + ring for ring in RINGS[::-1]], ["a", "c", "b", "d"])
    scaffolds = {data: murcko_scaffolds(data.smiles) for data in (MOLECULES, other)}
    parts = Scaffold(num_clients=2).partition_splits({"train": MOLECULES, "test": other}, 3)
    for one, two in zip(parts["train"], parts["test"], strict=True):
        assert {scaffolds[MOLECULES][i] for i in one.tolist()} == {scaffolds[other][i] for i in two.tolist()}
    by_assay = GroupBy(column="assay")
    parts = by_assay.partition_splits({"train": MOLECULES, "test": other}, 3)
    assert by_assay.names == ["a", "b", "c", "d"]
    assert _lists(parts["test"]) == [[0], [2], [1], [3]]
    assert len(parts["train"][3]) == 0


def test_some_groups_can_be_drawn():
    named = set()
    for seed in range(20):
        drawn = GroupBy(column="assay", num_groups=3)
        parts = drawn(ASSAYS, seed)
        assert len(parts) == 3
        assert drawn.names == sorted(drawn.names)
        for name, part in zip(drawn.names, parts, strict=True):
            assert part.tolist() == [index for index, assay in enumerate(ASSAYS.assays) if assay == name]
        assert _lists(GroupBy(column="assay", num_groups=3)(ASSAYS, seed)) == _lists(parts)
        named |= set(drawn.names)
    assert named == set("abcdef")  # small ones too
    every = GroupBy(column="assay", num_groups=6)
    assert _lists(every(ASSAYS, 0)) == _lists(GroupBy(column="assay")(ASSAYS, 1))


def test_small_groups_can_be_left_out():
    large = GroupBy(column="assay", min_samples=6)
    assert [len(part) for part in large(ASSAYS, 0)] == [6, 8, 7]
    assert large.names == ["c", "d", "f"]
    dealt = GroupBy(column="assay", min_samples=6, num_clients=2)(ASSAYS, 0)
    assert sorted(torch.cat(dealt).tolist()) == [*range(6, 20), *range(23, 30)]


def test_groups_are_large_enough_by_their_training_samples():
    test = Molecules(["C"] * 12, ["a"] * 9 + ["d"] * 3)
    large = GroupBy(column="assay", min_samples=7)
    parts = large.partition_splits({"train": ASSAYS, "test": test}, 0)
    assert large.names == ["d", "f"]
    assert _lists(parts["test"]) == [[9, 10, 11], []]


def test_stratified_parts_are_alike_and_sizes_leave_the_rest():
    labels = LABELLED.tensors[1]  # five classes of 20
    for partitioner in (IID(num_clients=4, stratified=True), Quantity(ratios=[1, 1, 1, 1], stratified=True)):
        assert [labels[part].bincount().tolist() for part in partitioner(LABELLED, 0)] == [[5] * 5] * 4
    counts = [labels[part].bincount().tolist() for part in Sizes(train=[25, 50])(LABELLED, 0)]
    assert counts == [[5] * 5, [10] * 5]
    # All samples used up.
    assert [len(part) for part in Sizes(train=[99, 1])(LABELLED, 0)] == [99, 1]


def test_sizes_are_of_the_training_data_and_the_rest_is_shared_equally():
    test = TensorDataset(torch.arange(5).repeat(6))
    parts = Sizes(train=[40, 5]).partition_splits({"train": LABELLED, "test": test}, 0)
    assert [len(part) for part in parts["train"]] == [40, 5]
    assert [test.tensors[0][part].bincount().tolist() for part in parts["test"]] == [[3] * 5] * 2


def test_several_targets_need_a_choice():
    data = TensorDataset(torch.stack([torch.arange(40) % 2, torch.arange(40) % 4], dim=1))
    parts = Dirichlet(num_clients=2, alpha=1.0, target=1)(data, 0)
    assert _lists(parts) == _lists(Dirichlet(num_clients=2, alpha=1.0)(TensorDataset(torch.arange(40) % 4), 0))


def test_an_own_partitioner_needs_its_call_only():
    class Halves(Partitioner):
        num_clients = 2

        def __call__(self, dataset, seed):
            return list(torch.arange(len(dataset)).chunk(2))

    parts = Halves().partition_splits({"train": LABELLED, "val": REAL}, 0)
    assert [len(part) for part in parts["val"]] == [50, 50]
