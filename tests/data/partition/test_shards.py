import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from lightning_fl.data.partition import OneClassShards

LABELS = torch.arange(10).repeat_interleave(500)
TEN = TensorDataset(LABELS)


def _half_normal(num_shards, num_clients, seed, scale=None):
    return OneClassShards(num_clients=num_clients, num_shards=num_shards, scale=scale).shard_counts(seed)


@given(st.integers(1, 12), st.integers(0, 90), st.floats(1e-3, 1e15), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_half_normal_counts_sum_to_the_shards_and_leave_nobody_out(num_clients, more, scale, seed):
    counts = _half_normal(num_clients + more, num_clients, seed, scale=scale)
    assert (counts.dtype, counts.shape, int(counts.sum())) == (torch.int64, (num_clients,), num_clients + more)
    assert int(counts.min()) >= 1


def test_half_normal_counts_are_the_draws_but_for_one_number():
    """Unless a client is at 1, the counts differ from the rounded draws by the same number, or by it plus 1."""
    for seed in range(20):
        counts = _half_normal(1000, 10, seed, scale=4.0)
        other = _half_normal(1007, 10, seed, scale=4.0)
        assert int(counts.min()) > 1
        assert set((other - counts).tolist()) <= {0, 1}  # the same draws
        # |z| < 6 for all ten draws of any seed used here, so the spread is below 6 scale.
        assert int(counts.max() - counts.min()) <= 24 + 1


def test_half_normal_limits():
    assert _half_normal(100, 10, 0, scale=1e-6).tolist() == [10] * 10
    assert sorted(_half_normal(103, 10, 0, scale=1e-6).tolist()) == [10] * 7 + [11] * 3
    # A huge scale: the largest draw takes all but one for each other client.
    assert sorted(_half_normal(100, 10, 0, scale=1e12).tolist()) == [1] * 9 + [91]
    assert _half_normal(7, 7, 3).tolist() == [1] * 7


def test_the_default_scale_gives_half_normal_counts():
    """Mean K/N by construction; the standard deviation of |z| is sqrt(1 - 2/pi) scale, less what the sum fixes."""
    counts = torch.cat([_half_normal(4000, 200, seed) for seed in range(20)]).double()
    scale = 20 * math.sqrt(math.pi / 2)
    assert float(counts.mean()) == 20
    # 4,000 draws: the standard deviation is known within 2 percent or so.
    assert abs(float(counts.std()) / (scale * math.sqrt(1 - 2 / math.pi)) - 1) < 0.06
    # Half-normal: skewed by sqrt(2) (4 - pi) / (pi - 2)^1.5 = 0.995.
    assert abs(float(((counts - 20) / counts.std()).pow(3).mean()) - 0.995) < 0.25


@pytest.mark.parametrize("shard_size", [None, 20, 1])
def test_shards_are_of_one_class_and_equal_size(shard_size):
    partitioner = OneClassShards(num_clients=10, num_shards=100, shard_size=shard_size)
    holdings = partitioner.holdings(LABELS.bincount(), 4)
    assert holdings.shape == (10, 10)
    assert torch.equal(holdings.sum(0), _half_normal(100, 10, 4))
    parts = partitioner(TEN, 4)
    counts = torch.stack([LABELS[part].bincount(minlength=10) for part in parts], dim=1)
    assert torch.equal(counts, holdings * (shard_size or 50))  # 5,000 samples make 100 shards of 50
    assert len(torch.cat(parts).unique()) == 100 * (shard_size or 50)
    if shard_size is None:
        assert holdings.sum(1).tolist() == [10] * 10
    else:
        assert len(set(holdings.sum(1).tolist())) > 1  # random classes


def test_uneven_classes_fill_the_largest_shards_that_fit():
    labels = torch.tensor([0] * 10 + [1] * 23 + [2] * 2)
    # Five shards: of 7 there are 1 + 3 + 0, of 6 there are 1 + 3 + 0, of 5 there are 2 + 4 + 0.
    partitioner = OneClassShards(num_clients=2, num_shards=5)
    holdings = partitioner.holdings(labels.bincount(), 0)
    assert holdings.sum(1)[2] == 0
    assert int(holdings.sum()) == 5
    parts = partitioner(TensorDataset(labels), 0)
    size = min(10 // int(holdings[0].sum()) if holdings[0].sum() else 99, 23 // int(holdings[1].sum()))
    assert size >= 5
    assert [len(part) for part in parts] == (holdings.sum(0) * size).tolist()


def test_the_setting_of_the_paper():
    parts = OneClassShards(shard_size=95)(TensorDataset(torch.arange(10).repeat_interleave(5000)), 0)
    assert (len(parts), sum(map(len, parts)) / 10) == (10, 950)


def test_test_data_follow_in_the_same_shares_of_classes():
    train, test = TEN, TensorDataset(torch.arange(10).repeat(100))
    partitioner = OneClassShards(num_clients=8, num_shards=40, scale=3.0, shard_size=30)
    parts = partitioner.partition_splits({"train": train, "test": test}, 2)
    assert all(map(torch.equal, parts["train"], partitioner(train, 2)))
    held = partitioner.holdings(LABELS.bincount(), 2)
    size = 100 // int(held.sum(1).max())  # as many as the class in most shards allows
    for client in range(8):
        of_train = LABELS[parts["train"][client]].bincount(minlength=10)
        of_test = test.tensors[0][parts["test"][client]].bincount(minlength=10)
        assert torch.equal(of_train * size, of_test * 30)
