"""What holds for every partitioner."""

import json

import pytest
import torch
from partition_tiny import (
    ASSAYS,
    LABELLED,
    MOLECULES,
    REAL,
    RINGS,
    Molecules,
    assert_partition,
    interleaved,
    labelled,
    lists,
)
from torch.utils.data import Subset, TensorDataset

from lightning_fl.data.partition import (
    IID,
    Dirichlet,
    FedCollabLabelShift,
    GroupBy,
    LabelTypes,
    Mixture,
    OneClassShards,
    Partitioner,
    Pathological,
    Quantity,
    Scaffold,
    ScaffoldLDA,
    Sizes,
)
from lightning_fl.data.partition.classes import bin_targets

TEN = labelled(*[60] * 10)
GROUPS = Molecules([tail + ring for tail in ("", "C", "CC", "CCC") for ring in [*RINGS, "CC"]] * 5, "abcdefghij" * 10)
#: Partitioner, data, and options of the record besides those given that have no default value.
COVERING = {
    "iid": (IID(num_clients=7), TEN),
    "iid stratified": (IID(num_clients=7, stratified=True), TEN),
    "ratios": (Quantity(ratios=[7, 2, 1]), TEN),
    "ratios stratified": (Quantity(ratios=[7, 2, 1], stratified=True), REAL),
    "drawn ratios": (Quantity(num_clients=5, alpha=0.5), TEN),
    "dirichlet": (Dirichlet(num_clients=4, alpha=0.3, min_samples=20), TEN),
    "pathological": (Pathological(num_clients=7, classes_per_client=3), TEN),
    "types": (LabelTypes(shares=[[0.25] * 10, [0.75] * 10], clients_per_type=3), TEN),
    "groups dealt": (GroupBy(column="assay", num_clients=3, ratios=[2, 1, 1]), GROUPS),
    "scaffolds": (Scaffold(num_clients=3), GROUPS),
    "scaffold lda": (ScaffoldLDA(num_clients=3, alpha=0.5), GROUPS),
    "equal mixtures": (Mixture(num_clients=4, mixture="50:50"), interleaved(40)),
}
PARTIAL = {
    "sizes": (Sizes(train=[99, 30, 2]), TEN),
    "sizes at random": (Sizes(train=[99, 30, 2], stratified=False), TEN),
    "fedcollab": (FedCollabLabelShift(clients_per_type=2), TEN),
    "shards": (OneClassShards(num_clients=5, num_shards=20), TEN),
    "shards of a size": (OneClassShards(num_clients=5, num_shards=20, shard_size=7), TEN),
    "some groups": (GroupBy(column="assay", num_groups=4), GROUPS),
    "mixtures": (Mixture(num_clients=4, samples_per_client=30), interleaved(40)),
    "random mixtures": (Mixture(num_clients=4, mixture="random"), interleaved(40)),
}


@pytest.mark.parametrize("name", [*COVERING, *PARTIAL])
def test_clients_are_disjoint_reproducible_and_the_seed_decides(name):
    partitioner, data = (COVERING | PARTIAL)[name]
    state = torch.get_rng_state()
    parts = partitioner(data, 3)
    assert torch.equal(torch.get_rng_state(), state)
    dealt = torch.cat(parts)
    assert len(dealt.unique()) == len(dealt)
    assert all(part.dtype == torch.int64 and (part.diff() > 0).all() for part in parts)
    assert min(map(len, parts)) >= 1
    assert len(parts) == (partitioner.num_clients or 4)
    if name in COVERING:
        assert_partition(parts, len(data))
    assert lists(partitioner(data, 3)) == lists(parts) != lists(partitioner(data, 4))
    assert lists(partitioner.partition_splits({"train": data}, 3)["train"]) == lists(parts)


RECORDS = [
    (Quantity(ratios=[7, 2, 1]), {"num_clients": 3, "ratios": [7, 2, 1], "stratified": False}),
    (
        Quantity(num_clients=5, alpha=0.5),
        {"num_clients": 5, "ratios": None, "stratified": False, "alpha": 0.5},
    ),
    (
        GroupBy(column="assay"),
        {"num_clients": None, "ratios": None, "column": "assay", "num_groups": None, "min_samples": 0},
    ),
    (
        OneClassShards(num_clients=8, num_shards=40, scale=3.0),
        {"num_clients": 8, "num_bins": 10, "target": None, "num_shards": 40, "scale": 3.0, "shard_size": None},
    ),
    (
        Mixture(num_clients=3, mixture="linear", invert_test=True),
        dict.fromkeys(("classes_a", "classes_b", "column", "values_a", "values_b", "samples_per_client"))
        | {"num_clients": 3, "mixture": "linear", "invert_test": True, "invert_validation": True},
    ),
]


@pytest.mark.parametrize(("partitioner", "options"), RECORDS)
def test_the_record_has_all_options(partitioner, options):
    assert partitioner.describe() == {"name": type(partitioner).__name__} | options
    assert repr(partitioner).startswith(f"{type(partitioner).__name__}(")
    json.dumps(partitioner.describe())


@pytest.mark.parametrize(
    "partitioner",
    [
        Quantity(ratios=[7, 2, 1], stratified=True),
        IID(num_clients=3, stratified=True),
        Dirichlet(num_clients=3, alpha=0.5),
        Dirichlet(num_clients=3, alpha=0.5, num_bins=4),
        Pathological(num_clients=4, classes_per_client=3),
    ],
)
def test_real_targets_are_put_into_bins(partitioner):
    bins = TensorDataset(bin_targets(REAL.tensors[1][:, 0], getattr(partitioner, "num_bins", 10)))
    assert lists(partitioner(REAL, seed=5)) == lists(partitioner(bins, seed=5))


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.98])
@pytest.mark.parametrize(
    "partitioner",
    [
        IID(num_clients=5, stratified=True),
        Sizes(train=[40, 25, 10]),
        Quantity(ratios=[2, 1, 1], stratified=True),
        Dirichlet(num_clients=3, alpha=0.3),
        Pathological(num_clients=2, classes_per_client=1),
        LabelTypes(shares=[[0.3, 0.6], [0.7, 0.4]], clients_per_type=1),
        Mixture(num_clients=2),
    ],
)
def test_real_zeros_and_ones_are_classes_however_rare(partitioner, rate):
    ones = (torch.arange(500) < 500 * rate).long()
    real = TensorDataset(torch.zeros(500), ones.float()[:, None])
    assert lists(partitioner(real, 4)) == lists(partitioner(TensorDataset(ones), 4))


@pytest.mark.parametrize("data", [LABELLED, REAL])
@pytest.mark.parametrize(
    "partitioner", [Dirichlet(num_clients=3, alpha=0.3), Pathological(num_clients=3, classes_per_client=4)]
)
def test_splits_share_the_class_shares_and_bins(partitioner, data):
    """Two data sets with the same label counts get the same counts per client, and so do real targets in bins."""
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    both = torch.cat([data.tensors[1], data.tensors[1][order]]).flatten()
    parts = partitioner.partition_splits({"train": data, "test": TensorDataset(data.tensors[1][order])}, 7)
    labels = bin_targets(both, 10) if data is REAL else both
    for one, other in zip(parts["train"], parts["test"], strict=True):
        assert torch.equal(labels[:100][one].bincount(minlength=10), labels[100:][other].bincount(minlength=10))


def test_a_class_only_the_test_data_have_is_shared_out_too():
    train, test = TensorDataset(torch.tensor([0, 1] * 10)), TensorDataset(torch.tensor([0, 1, 2] * 4))
    for partitioner in (Dirichlet(num_clients=2, alpha=1.0), Pathological(num_clients=2, classes_per_client=1)):
        parts = partitioner.partition_splits({"train": train, "test": test}, 0)
        assert sorted(torch.cat(list(parts["test"])).tolist()) == list(range(12))


def test_all_parts_have_the_same_drawn_ratios():
    train, test = (TensorDataset(torch.zeros(n), torch.zeros(n)) for n in (1000, 500))
    parts = Quantity(num_clients=3, alpha=1.0).partition_splits({"train": train, "test": test}, 0)
    for large, small in zip(parts["train"], parts["test"], strict=True):
        assert abs(len(large) - 2 * len(small)) <= 2


def test_sizes_are_of_the_training_data_and_the_rest_is_shared_equally():
    test = TensorDataset(torch.arange(5).repeat(6))
    parts = Sizes(train=[40, 5]).partition_splits({"train": LABELLED, "test": test}, 0)
    assert [len(part) for part in parts["train"]] == [40, 5]
    assert [test.tensors[0][part].bincount().tolist() for part in parts["test"]] == [[3] * 5] * 2


def test_several_targets_need_a_choice():
    data = TensorDataset(torch.stack([torch.arange(40) % 2, torch.arange(40) % 4], dim=1))
    parts = Dirichlet(num_clients=2, alpha=1.0, target=1)(data, 0)
    assert lists(parts) == lists(Dirichlet(num_clients=2, alpha=1.0)(TensorDataset(torch.arange(40) % 4), 0))


def test_keys_are_read_through_subsets():
    picked = Subset(Subset(MOLECULES, [11, 10, 9, 3]), [3, 0, 1])  # assays b, c, a
    assert lists(GroupBy(column="assay")(picked, 0)) == [[2], [0], [1]]
    # Ring 3 twice, ring 2 once.
    assert sorted(lists(Scaffold(num_clients=2)(picked, 0))) == [[0, 1], [2]]


def test_an_own_partitioner_needs_its_call_only():
    class Halves(Partitioner):
        num_clients = 2

        def __init__(self, scale: int) -> None:
            self.scale, self._hidden = scale, 1

        def __call__(self, dataset, seed):
            return list(torch.arange(len(dataset)).chunk(2))

    parts = Halves(3).partition_splits({"train": LABELLED, "val": ASSAYS}, 0)
    assert [len(part) for part in parts["val"]] == [15, 15]
    assert Halves(3).describe() == {"name": "Halves", "scale": 3}
