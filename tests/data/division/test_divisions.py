import json
from collections import Counter

import pytest
import torch
from division_tiny import Rows, held, letters, ready
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.data import (
    ColumnDivision,
    GroupDivision,
    HashDivision,
    ListDivision,
    OrderDivision,
    RandomDivision,
    ScaffoldDivision,
)
from lightning_fl.data.division import split_indices
from lightning_fl.data.division.division import fold_numbers, grouped_parts
from lightning_fl.data.division.grouped import hash_shares, joined_groups, ordered_parts
from lightning_fl.data.module import SPLITS
from lightning_fl.data.partition import IID, GroupBy, Quantity, murcko_scaffolds
from lightning_fl.data.partitioned import Partitioned
from lightning_fl.data.sizes import remaining_fractions

SHARES = (0.8, 0.1, 0.1)
groupings = st.lists(st.integers(0, 7), min_size=1, max_size=60).map(torch.tensor)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- pure functions


@given(st.integers(1, 60), st.tuples(st.floats(0.05, 1), st.floats(0, 1), st.floats(0, 1)), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_splits_cover_a_client_and_are_never_empty_where_asked_for(size, weights, client):
    fractions = [weight / sum(weights) for weight in weights]
    indices = torch.randperm(1000, generator=seeded(size))[:size]
    parts = split_indices(indices, fractions, 0, client)
    assert list(parts) == list(SPLITS)
    assert torch.equal(torch.cat(list(parts.values())).sort().values, indices.sort().values)
    assert all((part.diff() > 0).all() for part in parts.values())
    assert len(parts["train"]) >= 1
    for part, fraction in zip(parts.values(), fractions, strict=True):
        assert abs(len(part) - size * fraction) <= 2
        assert fraction > 0 or len(part) == 0
        assert len(part) > 0 or fraction == 0 or size < 3


def test_splits_by_hand_and_seeded_per_client():
    def cut(indices, seed=0, client=0):
        return [part.tolist() for part in split_indices(indices, SHARES, seed, client).values()]

    sizes = {n: list(map(len, cut(torch.arange(n)))) for n in (1, 2, 3, 10, 376)}
    assert sizes == {1: [1, 0, 0], 2: [2, 0, 0], 3: [1, 1, 1], 10: [8, 1, 1], 376: [301, 38, 37]}
    indices = torch.arange(50, 100)
    assert cut(indices) == cut(indices.flip(0))
    assert cut(indices) not in (cut(indices, client=1), cut(indices, seed=1))


def test_what_is_left_keeps_its_proportions():
    assert remaining_fractions(SHARES, ["train"]) == [0.8, 0.1, 0.1]
    assert remaining_fractions((0.6, 0.2, 0.2), ["train", "test"]) == pytest.approx([0.75, 0.25, 0.0])
    assert remaining_fractions((0.6, 0.2, 0.2), SPLITS) == [1.0, 0.0, 0.0]


@settings(deadline=None, max_examples=80)
@given(groups=groupings, balanced=st.booleans(), seed=st.integers(0, 3))
def test_grouped_parts_cut_no_group_and_do_not_depend_on_the_order_of_rows(groups, balanced, seed):
    parts = grouped_parts(groups, SHARES, seeded(seed), balanced=balanced)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(groups)))
    assert len(parts[0])
    assert not any(set(groups[a].tolist()) & set(groups[b].tolist()) for a, b in [parts[:2], parts[1:], parts[::2]])
    order = torch.randperm(len(groups), generator=seeded(seed + 9))
    again = grouped_parts(groups[order], SHARES, seeded(seed), balanced=balanced)
    assert [sorted(groups[order][part].tolist()) for part in again] == [sorted(groups[p].tolist()) for p in parts]


def test_single_samples_make_parts_of_the_exact_shares():
    assert [len(part) for part in grouped_parts(torch.arange(50), SHARES, seeded())] == [40, 5, 5]
    assert [len(part) for part in grouped_parts(torch.arange(50), (0.5, 0.0, 0.5), seeded())] == [25, 0, 25]


def test_large_groups_are_trained_on_and_the_smallest_are_tested_on():
    sizes = [40, 30, 10, 4, 4, 3, 3, 3, 3]
    groups = torch.arange(9).repeat_interleave(torch.tensor(sizes))
    largest_first = [set(groups[part].tolist()) for part in grouped_parts(groups, SHARES, seeded(), balanced=False)]
    assert largest_first == [{0, 1, 2}, {3, 4}, {5, 6, 7, 8}]  # a three does not fit into the ten of val any more
    tested = set()
    for seed in range(10):
        parts = [set(groups[part].tolist()) for part in grouped_parts(groups, SHARES, seeded(seed))]
        assert parts[0] == {0, 1, 2}
        tested.add(frozenset(parts[2]))
    assert len(tested) > 3  # groups of at most 5, half of a held-out part, come in random order


@settings(deadline=None, max_examples=60)
@given(first=groupings, seed=st.integers(0, 3))
def test_joined_groups_cut_neither_grouping_and_join_no_more_than_needed(first, seed):
    second = torch.randint(0, 9, (len(first),), generator=seeded(seed))
    joined = joined_groups(first, second)
    # the plain way: give neighbours the smaller number until nothing changes
    plain = list(range(len(first)))
    changed = True
    while changed:
        changed = False
        for i in range(len(first)):
            for j in range(len(first)):
                if (first[i] == first[j] or second[i] == second[j]) and plain[i] != plain[j]:
                    plain[i] = plain[j] = min(plain[i], plain[j])
                    changed = True
    same = [[a == b for b in plain] for a in plain]
    assert (joined[:, None] == joined).tolist() == same
    assert sorted(set(joined.tolist())) == list(range(len(set(plain))))


def test_parts_by_order_keep_ties_together():
    parts = ordered_parts(torch.tensor([9, 1, 1, 2, 3, 4, 5, 6, 7, 8]), (0.8, 0.1, 0.1))
    assert [part.tolist() for part in parts] == [[1, 2, 3, 4, 5, 6, 7, 8], [9], [0]]
    tied = ordered_parts(torch.tensor([1, 1, 1, 1, 2, 2, 2, 2, 2, 3]), (0.5, 0.25, 0.25))
    assert [len(part) for part in tied] == [9, 0, 1]  # the five twos begin within training


@settings(deadline=None, max_examples=60)
@given(ranks=groupings)
def test_nothing_is_tested_that_is_older_than_what_is_trained_on(ranks):
    train, val, test = ordered_parts(ranks, (0.6, 0.2, 0.2))
    assert len(train) + len(val) + len(test) == len(ranks)
    for earlier, later in [(train, val), (val, test), (train, test)]:
        if len(earlier) and len(later):
            assert ranks[earlier].max() < ranks[later].min()


@settings(deadline=None, max_examples=60)
@given(num=st.integers(5, 60), folds=st.integers(2, 5), seed=st.integers(0, 3))
def test_folds_have_equal_sizes(num, folds, seed):
    sizes = Counter(fold_numbers(num, folds, seeded(seed)).tolist())
    assert sorted(sizes) == list(range(folds))
    assert max(sizes.values()) - min(sizes.values()) <= 1
    labels = torch.arange(num) % 2
    stratified = fold_numbers(num, folds, seeded(seed), labels=labels)
    ones = [int(labels[stratified == fold].sum()) for fold in range(folds)]
    assert max(ones) - min(ones) <= 1


def test_folds_of_groups_are_as_even_as_scikit_learns():
    from sklearn.model_selection import GroupKFold

    groups = torch.tensor([0] * 9 + [1] * 7 + [2] * 6 + [3] * 5 + [4] * 4 + [5] * 3 + [6] * 2)
    folds = fold_numbers(len(groups), 3, seeded(), groups=groups)
    plain = [len(test) for _, test in GroupKFold(3).split(groups, groups=groups.numpy())]
    assert sorted(folds.bincount().tolist()) == sorted(plain)
    assert all(len(folds[groups == group].unique()) == 1 for group in range(7))


# ---- folds in a data module


@pytest.mark.parametrize(
    "division", [None, RandomDivision(), GroupDivision(column="group"), HashDivision(column="group")]
)
@pytest.mark.parametrize("split", [(0.8, 0.1, 0.1), (0.8, 0.0, 0.2)])
def test_every_sample_is_tested_once_and_validates_the_fold_before(division, split):
    rows = Rows({"group": [f"g{number % 29}" for number in range(100)]})
    runs = [held(ready(rows, division=division, folds=5, fold=fold, split=split)) for fold in range(5)]
    assert sorted(number for run in runs for number in run["test"]) == list(range(100))
    for fold, run in enumerate(runs):
        assert sorted(run["train"] + run["val"] + run["test"]) == list(range(100))
        assert run["val"] == (runs[(fold + 1) % 5]["test"] if split[1] else [])


def test_folds_repeat_with_another_seed():
    rows = letters("a" * 40)
    first, again, other = (held(ready(rows, folds=4, split_seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_folds_keep_classes_in_proportion():
    rows = Rows({"group": ["a"] * 50}, labels=[0] * 40 + [1] * 10)
    for fold in range(5):
        test = held(ready(rows, folds=5, fold=fold, stratified=True))["test"]
        assert sum(number >= 40 for number in test) == 2


def test_where_test_samples_are_given_a_fold_is_for_validation():
    datasets = {"train": letters("a" * 20), "test": letters("b" * 6)}
    runs = [ready(datasets, folds=4, fold=fold) for fold in range(4)]
    assert sorted(n for run in runs for n in held(run)["val"]) == list(range(20))
    assert all(held(run)["test"] == list(range(6)) for run in runs)
    published = Rows({"split": ["test"] * 5 + ["train_val"] * 20})
    tdc = ColumnDivision(column="split", train=["train_val"])
    runs = [held(ready(published, division=tdc, folds=4, fold=fold)) for fold in range(4)]
    assert all(run["test"] == list(range(5)) for run in runs)
    assert sorted(n for run in runs for n in run["val"]) == list(range(5, 25))


# ---- at random


@settings(deadline=None, max_examples=20)
@given(size=st.integers(3, 80), seed=st.integers(0, 5))
def test_without_a_division_the_samples_are_divided_as_ever(size, seed):
    plain = split_indices(torch.arange(size), SHARES, seed, 0)
    for division in (None, RandomDivision()):
        data = ready(letters("a" * size), division=division, split_seed=seed)
        assert held(data) == {split: part.tolist() for split, part in plain.items()}


def test_copies_stay_together():
    things = [f"m{number % 30}" for number in range(100)]
    rows = Rows({"thing": things, "group": [f"g{number % 7}" for number in range(100)]})
    for options in ({}, {"folds": 5}, {"division": HashDivision()}, {"division": HashDivision(), "folds": 5}):
        parts = held(ready(rows, together=True, **options))
        assert sum(len({things[n] for n in part}) for part in parts.values()) == 30
        assert all(parts.values())
    loose = held(ready(rows))
    assert sum(len({things[n] for n in part}) for part in loose.values()) > 30


# ---- by groups, and who else takes part


def molecules():
    rings = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccoc1", "C1CCNCC1", "c1ccsc1", "C1CCCC1", "c1cc[nH]c1"]
    tails = ["", "C", "CC", "CCC", "O", "CO", "N"]
    return [f"{tail}{ring}" for ring in rings for tail in tails]


def test_scaffolds_are_not_cut_and_other_clients_do_not_matter():
    smiles = molecules()
    column = ["one" if place % 3 else "two" for place in range(len(smiles))]
    rows = Rows({"lab": column}, smiles=smiles)
    both = ready(rows, partitioner=GroupBy(column="lab"), division=ScaffoldDivision(), split=(0.6, 0.2, 0.2))
    own = [place for place, lab in enumerate(column) if lab == "two"]
    order = [own[place] for place in torch.randperm(len(own), generator=seeded()).tolist()]
    alone = Rows({"lab": ["two"] * len(own)}, smiles=[smiles[place] for place in order])
    alone = ready(alone, partitioner=GroupBy(column="lab"), division=ScaffoldDivision(), split=(0.6, 0.2, 0.2))
    for split in SPLITS:
        expected = {smiles[n] for n in held(both, 1)[split]}
        assert expected == {smiles[order[n]] for n in held(alone, 0)[split]}
        assert expected
    scaffolds = murcko_scaffolds(smiles)
    parts = [{scaffolds[n] for n in held(both, 1)[split]} for split in SPLITS]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 8


def test_groups_by_a_column_and_without_molecules():
    parts = held(ready(letters("aabbccddeeffgghhiijj"), division=GroupDivision(column="group")))
    assert [len(parts[split]) for split in SPLITS] == [16, 2, 2]
    assert all(n ^ 1 in part for part in parts.values() for n in part)


# ---- by hash


def test_the_same_thing_is_in_the_same_part_everywhere():
    things = [f"m{number % 300}" for number in range(900)]
    rows = Rows({"thing": things, "lab": [f"lab{number % 7}" for number in range(900)]})
    for options in ({}, {"folds": 5, "fold": 2}):
        data = ready(rows, partitioner=GroupBy(column="lab"), division=HashDivision(), **options)
        parts = {split: {things[n] for c in range(7) for n in held(data, c)[split]} for split in SPLITS}
        assert sum(map(len, parts.values())) == 300
    other = ready(rows, partitioner=GroupBy(column="lab"), division=HashDivision(), split_seed=2)
    assert held(other, 0) != held(data, 0)


def test_hashes_are_spread_evenly_and_follow_the_shares():
    shares = hash_shares([f"key {number}" for number in range(4000)], 3)
    assert ((shares >= 0) & (shares < 1)).all()
    counts = torch.histc(shares, bins=10, min=0, max=1)
    assert float(((counts - 400) ** 2 / 400).sum()) < 27.9  # chi squared of 9 degrees of freedom, 0.1 %
    data = ready(Rows({"thing": [f"m{number}" for number in range(4000)]}), division=HashDivision())
    for split, share in zip(SPLITS, SHARES, strict=True):
        assert abs(len(held(data)[split]) - 4000 * share) < 4 * (4000 * share * (1 - share)) ** 0.5


# ---- by time


def test_the_oldest_train_and_the_newest_are_tested_on():
    days = [f"2020-{1 + n % 12:02d}-{1 + n // 12:02d}" for n in range(60)]
    parts = held(ready(Rows({"date": days}), division=OrderDivision(column="date")))
    chosen = {split: [days[n] for n in part] for split, part in parts.items()}
    assert max(chosen["train"]) < min(chosen["val"]) <= max(chosen["val"]) < min(chosen["test"])
    assert [len(parts[split]) for split in SPLITS] == [48, 6, 6]
    times = ["9", "10", "1e1", "-3", "100"]  # as texts they would be in another order
    parts = held(ready(Rows({"t": times}), division=OrderDivision(column="t"), split=(0.6, 0.2, 0.2)))
    assert parts == {"train": [0, 1, 2, 3], "val": [], "test": [4]}
    zones = ["2020-01-01T12:00+02:00", "2020-01-01T11:00", "2020-01-01T09:30Z", "2019-12-31"]
    parts = held(ready(Rows({"t": zones}), division=OrderDivision(column="t"), split=(0.5, 0.25, 0.25)))
    assert parts == {"train": [2, 3], "val": [0], "test": [1]}


def test_a_copy_counts_by_its_first_date():
    rows = Rows({"year": ["1", "2", "3", "4", "5", "6"], "thing": ["a", "b", "c", "d", "e", "a"]})
    parts = held(ready(rows, division=OrderDivision(column="year"), together=True, split=(0.6, 0.2, 0.2)))
    assert parts == {"train": [0, 1, 2, 5], "val": [3], "test": [4]}


# ---- as given


def test_a_column_says_the_parts():
    rows = Rows({"split": ["Train", "valid", "TEST", "training", "validation", "test", "val", "skip", None]})
    parts = held(ready(rows, division=ColumnDivision(column="split", leave_out=["skip", ""])))
    assert parts == {"train": [0, 3], "val": [1, 4, 6], "test": [2, 5]}
    without = held(ready(rows, division=ColumnDivision(column="split", leave_out=["skip", "", "valid"])))
    assert without == {"train": [0, 3], "val": [4, 6], "test": [2, 5]}
    other = Rows({"f": ["0", "1", "2", "2"]})
    parts = held(ready(other, division=ColumnDivision(column="f", train=["2"], val=["1"], test=["0"])))
    assert parts == {"train": [2, 3], "val": [1], "test": [0]}


def test_a_part_that_nobody_has_is_cut_from_training():
    labs = ["a"] * 40 + ["b"] * 40
    rows = Rows({"split": (["train"] * 36 + ["test"] * 4) + ["train"] * 40, "lab": labs})
    data = ready(rows, partitioner=GroupBy(column="lab"), division=ColumnDivision(column="split"))
    assert held(data, 0)["test"] == [36, 37, 38, 39]
    # 8 : 1 of the 36 and of the 40 training samples; the second has no published test samples and gets none
    assert [[len(held(data, c)[split]) for split in SPLITS] for c in (0, 1)] == [[32, 4, 4], [36, 4, 0]]


@pytest.mark.parametrize("kind", ["json", "yaml", "csv"])
def test_lists_in_a_file(tmp_path, kind):
    lists = {"train": ["m0", "m1", "m2", "m3"], "valid": ["m4"], "test": ["m5"]}
    path = tmp_path / f"lists.{kind}"
    if kind == "csv":
        path.write_text("split,id\n" + "".join(f"{part},{name}\n" for part, names in lists.items() for name in names))
    else:
        path.write_text(json.dumps(lists))
    rows = Rows({"name": [f"m{number}" for number in (5, 4, 3, 2, 1, 0)]})
    parts = held(ready(rows, division=ListDivision(path=str(path), id_column="name")))
    assert parts == {"train": [2, 3, 4, 5], "val": [1], "test": [0]}


def test_lists_of_rows(tmp_path):
    path = tmp_path / "rows.yaml"
    path.write_text("train: [2, 3, 4]\ntest: [6]\n")
    rows = letters("abcdef")
    parts = held(ready(rows, division=ListDivision(path=str(path), unlisted="leave_out"), split=(0.8, 0.0, 0.2)))
    assert parts == {"train": [0, 1, 2], "val": [], "test": [4]}
    with pytest.warns(UserWarning, match=r"rows\.yaml .*: 6\."):
        ready(letters("abc"), division=ListDivision(path=str(path)))


# ---- any data set, and the record


def test_any_data_set_is_divided_so_too():
    rows = letters("aabbccddeeffgghhiijj" * 2)
    data = Partitioned(rows, IID(num_clients=2), split_seed=1, folds=4, fold=3, division=GroupDivision(column="group"))
    data.setup("fit")
    for client in (0, 1):
        parts = [{rows.columns["group"][n] for n in held(data, client)[split]} for split in SPLITS]
        assert sum(map(len, parts)) == len(set().union(*parts))
    told = data.describe()
    assert told["division"] == {"name": "GroupDivision", "column": "group", "balanced": True}
    assert (told["folds"], told["fold"]) == (4, 3)


@pytest.mark.parametrize("division", [ScaffoldDivision(balanced=False), HashDivision(by="scaffold"), RandomDivision()])
def test_the_record_has_all_options(division):
    assert division.describe() == {"name": type(division).__name__} | vars(division)
    assert type(division).__name__ in repr(division)


def test_the_record_says_how_samples_were_divided():
    told = ready(letters("ab" * 20), partitioner=Quantity(ratios=[1.0]), division=RandomDivision(), folds=4).describe()
    assert told["division"] == {"name": "RandomDivision"}
    assert (told["folds"], told["fold"]) == (4, 0)
    assert not {"division", "folds", "fold"} & set(ready(letters("ab" * 20)).describe())
