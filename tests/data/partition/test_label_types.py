import torch
from partition_tiny import class_counts, labelled
from torch.utils.data import TensorDataset

from lightning_fl.data.partition import FedCollabLabelShift, LabelTypes


def test_a_type_s_share_is_split_evenly_among_its_clients():
    # Class 0: half to type 0, so 30 / 3 each; class 1: 0.3 and 0.6 of 60; class 2: type 1 has all of 9.
    data = labelled(60, 60, 9)
    parts = LabelTypes(shares=[[0.5, 0.3, 0.0], [0.0, 0.6, 1.0]], clients_per_type=3)(data, 0)
    assert class_counts(data, parts, 3) == [[10, 6, 0]] * 3 + [[0, 12, 3]] * 3
    # a class that no client holds may be missing
    assert list(map(len, LabelTypes(shares=[[1.0, 0.0]], clients_per_type=2)(labelled(4), 0))) == [2, 2]


def test_an_uneven_class_differs_by_at_most_one_between_clients_of_a_type():
    data = labelled(17, 23)
    counts = class_counts(data, LabelTypes(shares=[[0.5, 1.0], [0.5, 0.0]], clients_per_type=4)(data, 3), 2)
    for block in (counts[:4], counts[4:]):
        assert all(max(sizes) - min(sizes) <= 1 for sizes in zip(*block, strict=True))


def test_all_splits_follow_the_types():
    partitioner = LabelTypes(shares=[[1.0, 0.5], [0.0, 0.5]], clients_per_type=1)
    train, test = labelled(40, 20), labelled(6, 8)
    parts = partitioner.partition_splits({"train": train, "test": test}, 0)
    assert class_counts(train, parts["train"], 2) == [[40, 10], [0, 10]]
    assert class_counts(test, parts["test"], 2) == [[6, 4], [0, 4]]


def test_real_targets_are_put_into_as_many_bins_as_there_are_classes():
    values = torch.rand(90, generator=torch.Generator().manual_seed(0))
    parts = LabelTypes(shares=[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], clients_per_type=1)(TensorDataset(values), 0)
    assert [len(part) for part in parts] == [30, 60]
    assert values[parts[0]].max() < values[parts[1]].min()


def test_fedcollab_s_clients_of_fashion_mnist():
    """70,000 pooled images: 2,450 each; of the label 0 a quarter of 7,000 for five clients is 350."""
    data = labelled(*[7000] * 10)
    counts = torch.tensor(class_counts(data, FedCollabLabelShift()(data, 0), 10))
    assert counts.sum(1).tolist() == [2450] * 20
    wanted = torch.zeros(4, 10, dtype=torch.long)
    for kind, (quarter, half) in enumerate([(0, [1, 2, 3]), (4, [1, 2, 3]), (5, [6, 7, 8]), (9, [6, 7, 8])]):
        wanted[kind, quarter], wanted[kind, half] = 350, 700
    assert torch.equal(counts, wanted.repeat_interleave(5, dim=0))
