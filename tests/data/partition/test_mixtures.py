"""Two distributions mixed in every client: shares, counts, the largest size, and the partitioner in data modules."""

from fractions import Fraction
from itertools import chain

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import write_npz
from partition_tiny import interleaved
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data import ImageData, Mixture, TableData
from lightning_fl.data.module import SPLITS
from lightning_fl.data.partition.mixtures import by_mixture, largest_mixture, mixture_counts, mixture_shares
from lightning_fl.data.sizes import split_sizes

MIXTURES = ["10:90", "30:70", "0:100", "50:50", "12.5:87.5", "linear", "random"]


def ready(data):
    data.prepare_data()
    data.setup("fit")
    return data


def counts_of_a(data, is_a):
    """For every split [N] numbers of D_A and of all samples."""
    held = {}
    for split in SPLITS:
        of_clients = [data.client_data(client, split) for client in range(data.num_clients)]
        held[split] = [(sum(is_a(split, i) for i in part.indices), len(part)) for part in of_clients]
    return held


def _of(shares, sizes, inverted):
    return mixture_counts(torch.tensor(shares, dtype=torch.float64), sizes, inverted)


# ---- shares


def test_shares_of_every_word():
    assert mixture_shares("10:90", 5, 0).tolist() == [0.9, 0.9, 0.9, 0.1, 0.1]
    assert mixture_shares("70:30", 2, 0).tolist() == [0.3, 0.7]
    linear = mixture_shares("linear", 100, 0)
    assert (100 * linear).tolist() == pytest.approx([k + 0.5 for k in range(100)])
    random = mixture_shares("random", 2000, 3)
    # uniform: mean 1/2 and variance 1/12, within four standard errors
    assert abs(float(random.mean()) - 0.5) < 4 * (1 / 12 / 2000) ** 0.5
    assert abs(float(random.var()) - 1 / 12) < 0.01
    assert torch.equal(random[:7], mixture_shares("random", 7, 3))
    assert not torch.equal(random[:7], mixture_shares("random", 7, 4))


# ---- counts


def test_counts_round_to_the_nearest_and_an_inverted_part_swaps_them():
    counts = _of([0.9, 0.1, 0.5, 0.26], [10, 5, 7, 4], [False, True, False, True])
    # 0.9 of 5 is 4.5: the larger share, A's, takes the half; inverted, B has five
    assert counts[0].tolist() == [[9, 0, 6, 0], [1, 5, 1, 4], [5, 2, 4, 2], [3, 4, 2, 3]]
    assert (counts.sum(0) == torch.tensor([10, 5, 7, 4])).all()


@settings(deadline=None, max_examples=100)
@given(percent=st.integers(0, 100), size=st.integers(0, 500))
def test_counts_agree_with_exact_fractions(percent, size):
    share = Fraction(percent, 100)
    plain, inverse = _of([percent / 100], [size, size], [False, True])[:, 0].T.tolist()
    assert plain == inverse[::-1]
    assert abs(plain[0] - share * size) <= Fraction(1, 2)
    if percent != 50:  # a client of the other half is the mirror
        other = _of([1 - percent / 100], [size], [False])[:, 0, 0].tolist()
        assert other == plain[::-1]


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    of_a=st.integers(1, 60),
    of_b=st.integers(1, 60),
    num_clients=st.integers(1, 6),
    mixture=st.sampled_from(MIXTURES),
    invert=st.booleans(),
)
def test_the_largest_size_is_the_largest(of_a, of_b, num_clients, mixture, invert):
    shares, fractions = mixture_shares(mixture, num_clients, 1), [0.7, 0.1, 0.2]

    def fits(size):
        counts = mixture_counts(shares, split_sizes(size, fractions), [False, invert, invert])
        return counts[0].sum() <= of_a and counts[1].sum() <= of_b

    best = max((size for size in range(1, 200) if fits(size)), default=0)
    assert largest_mixture([of_a, of_b], shares, fractions, [False, invert, invert]) == best


def test_equal_halves_use_every_sample():
    # 100 clients, 10:90: each 300 of 15,000 + 15,000, as of the 30,000 images of a subset of CIFAR-10
    for mixture in ("10:90", "30:70", "linear"):
        shares = mixture_shares(mixture, 100, 0)
        assert largest_mixture([15000, 15000], shares, [0.8, 0.2, 0.0], [False, True, True]) == 300


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(mixture=st.sampled_from(MIXTURES), num_clients=st.integers(1, 8), invert=st.booleans(), seed=st.integers(0, 3))
def test_no_sample_is_held_twice_and_every_part_has_its_mixture(mixture, num_clients, invert, seed):
    of_b = torch.tensor([0] * 70 + [1] * 90 + [2] * 20)[torch.randperm(180, generator=torch.Generator().manual_seed(0))]
    shares = mixture_shares(mixture, num_clients, seed)
    fractions, inverted = [0.6, 0.2, 0.2], [False, invert, invert]
    parts = by_mixture(of_b, shares, seed, fractions=fractions, inverted=inverted)
    dealt = torch.cat(list(chain(*parts)))
    assert len(dealt.unique()) == len(dealt)
    assert (of_b[dealt] < 2).all()
    size = largest_mixture([70, 90], shares, fractions, inverted)
    expected = mixture_counts(shares, split_sizes(size, fractions), inverted)
    found = [[[int((of_b[index] == kind).sum()) for index in clients] for clients in parts] for kind in (0, 1)]
    assert torch.tensor(found).transpose(1, 2).tolist() == expected.tolist()
    assert all(torch.equal(index, index.sort().values) for index in chain(*parts))


# ---- partitioner


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("invert", [False, True])
def test_all_splits_are_given_and_parts_of_their_own_are_used(mixture, invert):
    train, test = interleaved(40), interleaved(12)
    partitioner = Mixture(num_clients=4, mixture=mixture, invert_test=invert)
    parts = partitioner.partition_clients({"train": train, "test": test}, (0.75, 0.05, 0.2), 7)
    assert list(parts) == list(SPLITS)
    pooled = torch.cat(parts["train"] + parts["val"])
    assert len(pooled.unique()) == len(pooled) <= 400
    assert len(torch.cat(parts["test"]).unique()) == sum(map(len, parts["test"]))
    shares = mixture_shares(mixture, 4, 7)
    for split, data in (("train", train), ("val", train), ("test", test)):
        sizes = {len(part) for part in parts[split]}
        assert len(sizes) == 1
        expected = mixture_counts(shares, [sizes.pop()], [invert and split != "train"])[0, :, 0].tolist()
        assert [int((data.tensors[1][part] < 5).sum()) for part in parts[split]] == expected
    both = len(parts["val"][0]) + len(parts["train"][0])
    assert len(parts["val"][0]) == split_sizes(both, [15 / 16, 1 / 16])[1]  # three quarters to a twentieth


def test_validation_follows_the_test_data_unless_told_otherwise():
    data = interleaved(40)
    for partitioner, val, test in (
        (Mixture(num_clients=2), 0.9, 0.9),
        (Mixture(num_clients=2, invert_test=True), 0.1, 0.1),
        (Mixture(num_clients=2, invert_test=True, invert_validation=False), 0.9, 0.1),
        (Mixture(num_clients=2, invert_validation=True), 0.1, 0.9),
    ):
        parts = partitioner.partition_clients({"train": data}, (0.8, 0.1, 0.1), 0)
        of_a = {split: float((data.tensors[1][part[0]] < 5).float().mean()) for split, part in parts.items()}
        assert of_a == pytest.approx({"train": 0.9, "val": val, "test": test})


def test_classes_and_columns_tell_the_distributions_apart():
    data = interleaved(30)
    named = Mixture(num_clients=2, mixture="0:100", classes_a=[9, 1], classes_b=[4])
    first, second = named(data, 0)
    assert set(data.tensors[1][first].tolist()) == {1, 9}
    assert set(data.tensors[1][second].tolist()) == {4}
    assert len(first) == len(second) == 30
    odd = TensorDataset(torch.arange(3).repeat(10))
    assert set(odd.tensors[0][Mixture(num_clients=2, mixture="0:100")(odd, 0)[0]].tolist()) == {0}
    gaps = TensorDataset(torch.tensor([0, 7, 8, 9]).repeat(10))  # the half of the classes, not of their numbers
    assert set(gaps.tensors[0][Mixture(num_clients=2, mixture="0:100")(gaps, 0)[0]].tolist()) == {0, 7}
    real = TensorDataset(torch.linspace(0, 1, 40))
    below, above = Mixture(num_clients=2, mixture="0:100")(real, 0)
    assert (below.tolist(), above.tolist()) == (list(range(20)), list(range(20, 40)))


def test_alone_it_deals_everything_for_training():
    parts = Mixture(num_clients=2, samples_per_client=30)(interleaved(10), 0)
    assert [len(part) for part in parts] == [30, 30]
    both = Mixture(num_clients=2).partition_splits({"train": interleaved(10), "test": interleaved(4)}, 0)
    assert {split: [len(part) for part in of_split] for split, of_split in both.items()} == {
        "train": [50, 50],
        "test": [20, 20],
    }


# ---- in data modules


def test_images_with_test_images_of_their_own(tmp_path):
    labels = {"train": np.arange(400) % 10, "test": np.arange(100) % 10}
    arrays = {f"{part}_labels": values.astype(np.uint8)[:, None] for part, values in labels.items()}
    file = write_npz(tmp_path / "ten.npz", 400, 100, **arrays)
    partitioner = Mixture(num_clients=4, invert_test=True)
    data = ready(ImageData(name=str(file), partitioner=partitioner, split=(0.8, 0.2, 0.0), split_seed=1))
    held = counts_of_a(data, lambda split, i: labels["test" if split == "test" else "train"][i] < 5)
    assert held == {
        "train": [(72, 80), (72, 80), (8, 80), (8, 80)],
        "val": [(2, 20), (2, 20), (18, 20), (18, 20)],
        "test": [(2, 25), (2, 25), (23, 25), (23, 25)],  # 2.5: the half goes to the larger share
    }
    both = {i for client in range(4) for split in ("train", "val") for i in data.client_data(client, split).indices}
    assert len(both) == 400
    assert data.describe()["partitioner"]["mixture"] == "10:90"
    with pytest.raises(ConfigurationError, match="stratified=True: Mixture"):
        ready(ImageData(name=str(file), partitioner=partitioner, stratified=True))
    kept = ready(
        ImageData(
            name=str(file), partitioner=partitioner, split_seed=1, stratified=True, train_shares=[0.5, 1.0, 1.0, 1.0]
        )
    )
    assert kept.num_samples("train") == [44, 89, 89, 89]  # of the 100: 89, 11 and none for a test part that is there


def test_rows_of_a_table_by_a_column(tmp_path):
    kinds = ["old", "new", "odd", "new", "old"] * 40
    frame = pd.DataFrame({"x": np.arange(200.0), "kind": kinds, "y": ["no", "yes"] * 100})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    partitioner = Mixture(num_clients=4, mixture="25:75", column="kind", values_a=["old"], values_b=["new"])
    data = ready(
        TableData(path=str(tmp_path / "rows.csv"), target="y", drop=["kind"], partitioner=partitioner, split_seed=0)
    )
    held = counts_of_a(data, lambda split, i: kinds[i] == "old")
    # 80 and 80 rows: 40 a client, of which 32, 4, 4
    assert held["train"] == [(24, 32), (24, 32), (8, 32), (8, 32)]
    assert held["val"] == held["test"] == [(3, 4), (3, 4), (1, 4), (1, 4)]
    everything = [data.client_data(client, split).indices for client in range(4) for split in SPLITS]
    assert sorted(chain(*everything)) == [i for i, kind in enumerate(kinds) if kind != "odd"]
    for column, value, fault in (("kind", "older", "no 'older'. They have new, odd, old"), ("kinds", "old", "kinds")):
        partitioner = Mixture(num_clients=2, column=column, values_a=[value])
        with pytest.raises(DataError, match=fault):
            ready(TableData(path=str(tmp_path / "rows.csv"), target="y", partitioner=partitioner))
