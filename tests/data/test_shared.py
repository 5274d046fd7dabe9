import json
import math
import warnings

import pytest
import torch
from data_tiny import LABELS, Given, Lists, numbered, ready
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from lightning_fl.data.division.division import cut_splits, split_indices
from lightning_fl.data.module import SPLITS
from lightning_fl.data.partition import IID, Dirichlet, apportion
from lightning_fl.data.partition.classes import stratified_parts
from lightning_fl.data.partitioned import Partitioned
from lightning_fl.data.shared import class_labels


def test_who_lacks_a_split_is_named_once():
    names = r"1 of 3 clients have no val samples \(1\), 1 of 3 clients have no test samples \(1\)"
    with pytest.warns(UserWarning, match=names):
        data = ready(
            {"train": numbered(40)}, partitioner=Lists(range(20), [20], range(21, 39)), split=(0.5, 0.25, 0.25)
        )
    assert [data.num_samples(split)[1] for split in SPLITS] == [1, 0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready({"train": numbered(40)}, split=(0.8, 0.2, 0.0))  # nobody has test samples


# ---- stratified parts


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    shares=st.lists(st.integers(0, 10), min_size=1, max_size=4),
    seed=st.integers(0, 5),
)
def test_stratified_parts_have_their_sizes_and_the_classes_in_proportion(counts, shares, seed):
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    sizes = apportion(len(labels) * 3 // 4, shares) if any(shares) else [0] * len(shares)
    parts = stratified_parts(labels, sizes, torch.Generator().manual_seed(seed))
    assert [len(part) for part in parts] == sizes
    chosen = torch.cat(parts)
    assert len(chosen.unique()) == len(chosen)
    for part, size in zip(parts, sizes, strict=True):
        assert torch.equal(part, part.sort().values)
        found = torch.bincount(labels[part], minlength=len(counts))
        # one rounding of its own and what the parts before it left over
        assert all(abs(n - size * count / len(labels)) < 2 for n, count in zip(found.tolist(), counts, strict=True))


def test_whole_quotas_are_met_exactly():
    parts = stratified_parts(LABELS, [50, 30, 10], torch.Generator().manual_seed(0))
    assert [torch.bincount(LABELS[part]).tolist() for part in parts] == [[15, 25, 10], [9, 15, 6], [3, 5, 2]]


def test_ties_do_not_favour_a_class():
    labels = torch.arange(4)
    taken = [int(stratified_parts(labels, [1], torch.Generator().manual_seed(seed))[0]) for seed in range(40)]
    assert set(taken) == {0, 1, 2, 3}


def test_a_stratified_split_has_the_sizes_of_a_plain_one():
    indices, labels = torch.arange(100, 200), torch.cat([LABELS, LABELS])
    for fractions in ([0.8, 0.1, 0.1], [0.5, 0.0, 0.5], [6 / 7, 0, 1 / 7]):
        plain = split_indices(indices, fractions, 3, 1)
        split = cut_splits(indices, fractions, 3, 1, labels=labels)
        assert {name: len(part) for name, part in split.items()} == {name: len(part) for name, part in plain.items()}
        assert torch.equal(torch.cat(list(split.values())).sort().values, indices)
    split = cut_splits(indices, [0.8, 0.1, 0.1], 3, 1, labels=labels)
    assert torch.bincount(LABELS[split["test"] - 100]).tolist() == [3, 5, 2]


def test_a_column_of_classes_is_a_vector():
    assert class_labels(numbered(4, torch.tensor([[1], [0], [2], [1]]))).tolist() == [1, 0, 2, 1]


# ---- the data module


def test_one_data_set_is_divided_as_by_partitioned():
    dataset = numbered(100)
    data = ready({"train": dataset})
    other = Partitioned(dataset, IID(num_clients=4), split_seed=1)
    other.setup()
    for client in range(4):
        for split in SPLITS:
            assert data.client_data(client, split).indices == other.client_data(client, split).indices
            assert data.client_data(client, split).dataset is dataset


@pytest.mark.parametrize("stratified", [False, True])
def test_a_test_part_follows_the_training_part_and_val_is_cut_in_proportion(stratified):
    train, test = numbered(100), numbered(80)
    partitioner = Dirichlet(num_clients=3, alpha=1.0)
    data = ready({"train": train, "test": test}, partitioner=partitioner, split=(0.6, 0.2, 0.2), stratified=stratified)
    parts = partitioner.partition_splits({"train": train, "test": test}, 1)
    for client in range(3):
        assert data.client_data(client, "test").dataset is test
        assert data.client_data(client, "test").indices == parts["test"][client].tolist()
        assert data.client_data(client, "val").dataset is train
        own = data.client_data(client, "train").indices + data.client_data(client, "val").indices
        assert sorted(own) == parts["train"][client].tolist()
        # of 0.6 : 0.2 a quarter
        assert data.num_samples("val")[client] == apportion(len(own), [0.75, 0.25])[1]


def test_all_splits_may_have_parts_of_their_own():
    parts = {"train": numbered(40), "val": numbered(20), "test": numbered(12)}
    data = ready(parts)
    assert [data.num_samples(split) for split in SPLITS] == [[10] * 4, [5] * 4, [3] * 4]


def test_samples_may_be_left_to_nobody():
    data = ready({"train": numbered(100)}, partitioner=Lists([0, 1, 2, 3], [50, 51, 52]))
    assert data.num_clients == 2
    assert sum(sum(data.num_samples(split)) for split in SPLITS) == 7


def test_the_numbers_of_fedcollabs_small_clients():
    """2,450 samples in four classes (350, 700, 700, 700) at 6/7 and 1/7; of 2,100 the share exp(-5) is 14.15."""
    labels = torch.tensor([0] * 350 + [1] * 700 + [2] * 700 + [3] * 700)
    data = ready(
        {"train": TensorDataset(torch.arange(2450.0), labels)},
        partitioner=IID(num_clients=1),
        split=(6 / 7, 0.0, 1 / 7),
        stratified=True,
        train_shares=[math.exp(-5)],
    )
    counts = {
        split: torch.bincount(labels[torch.tensor(data.client_data(0, split).indices)]).tolist()
        for split in ("train", "test")
    }
    assert counts == {"train": [2, 4, 4, 4], "test": [50, 100, 100, 100]}
    assert data.client_data(0, "val") is None


def test_a_share_of_the_training_samples_is_a_part_of_them():
    whole = ready({"train": numbered(100)})
    small = ready({"train": numbered(100)}, train_shares=[1.0, 0.5, 0.3, 0.001])
    assert small.num_samples("train") == [20, 10, 6, 1]
    for client in range(4):
        assert set(small.client_data(client, "train").indices) <= set(whole.client_data(client, "train").indices)
        for split in ("val", "test"):
            assert small.client_data(client, split).indices == whole.client_data(client, split).indices
    assert small.client_data(0, "train").indices == whole.client_data(0, "train").indices


def test_the_number_of_clients_is_the_partitioners():
    assert Given({}, partitioner=IID(num_clients=3)).num_clients == 3


def test_setup_again_changes_nothing_and_the_record_is_plain():
    data = ready({"train": numbered(100)}, stratified=True)
    before = data.client_data(0, "train").indices
    data.setup("test")
    assert data.client_data(0, "train").indices == before
    record = data.describe()
    assert json.loads(json.dumps(record)) == record
    assert (record["stratified"], record["train_shares"], record["title"]) == (True, None, "numbers")
    assert record["client_sizes"] == {"train": [20] * 4, "val": [3, 3, 3, 3], "test": [2, 2, 2, 2]}
    assert data.client_names() == [f"client_{client}" for client in range(4)]


def test_shares_are_used_in_proportion():
    parts = cut_splits(torch.arange(40), (0.5, 0.25, 0.25), 0, 0, own=["train", "val"])
    assert {split: len(part) for split, part in parts.items()} == {"train": 27, "test": 13}
    assert list(cut_splits(torch.arange(40), (0.5, 0.25, 0.25), 0, 0, own=["train", "val", "test"])) == ["train"]
