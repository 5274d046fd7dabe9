"""What divisions and split files refuse: the exception and the option or thing at fault."""

import re

import pytest
import torch
from division_tiny import Rows, letters, ready

from lightning_fl.core.errors import ConfigurationError, DataError
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
from lightning_fl.data.division.grouped import hash_shares
from lightning_fl.data.module import SPLITS
from lightning_fl.data.partition import IID, GroupBy, Mixture


@pytest.mark.parametrize(
    ("kind", "arguments", "name"),
    [
        (HashDivision, {"by": "atom"}, "HashDivision.by='atom'"),
        (HashDivision, {"by": "scaffold", "column": "x"}, "HashDivision.by='scaffold' and column='x'"),
        (ColumnDivision, {"column": "s", "train": ["x"], "test": ["x"]}, "ColumnDivision: the value 'x'"),
        (ListDivision, {"path": "a.csv", "unlisted": "x"}, "ListDivision.unlisted='x'"),
        (ListDivision, {"path": "a.txt"}, "ListDivision.path='a.txt'"),
    ],
)
def test_arguments(kind, arguments, name):
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        kind(**arguments)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"fold": 1}, "fold=1 without folds"),
        ({"folds": 5, "fold": 5}, "fold=5 with folds=5"),
        ({"folds": 1}, "GivenRows.folds=1"),
        ({"folds": 3, "fold": -1}, "GivenRows.fold=-1"),
        ({"folds": 2}, "folds=2 with split=[0.8, 0.1, 0.1]"),
        ({"folds": 3, "split": (0.9, 0.1, 0.0)}, "folds=3 with split="),
        ({"folds": 3, "division": OrderDivision(column="t")}, "folds=3 with OrderDivision"),
        ({"stratified": True, "division": HashDivision()}, "stratified=True with HashDivision"),
    ],
)
def test_settings_that_contradict(options, name):
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        ready(letters("a" * 20), **options)


@pytest.mark.parametrize("fractions", [[0.8, 0.1], [0.8, 0.1, 0.2], [0.0, 0.5, 0.5], [1.2, -0.1, -0.1]])
def test_shares(fractions):
    with pytest.raises(ConfigurationError, match="split="):
        split_indices(torch.arange(10), fractions, 0, 0)


def test_a_client_without_samples():
    with pytest.raises(DataError, match="client 4"):
        split_indices(torch.arange(0), [0.8, 0.1, 0.1], 0, 4)


@pytest.mark.parametrize("options", [{"folds": 5}, {"division": RandomDivision()}])
def test_all_splits_are_given_already(options):
    rows = letters("ab" * 30)
    mixture = Mixture(num_clients=2, column="group", values_a=["a"], values_b=["b"], mixture="50:50")
    for data, partitioner in ((rows, mixture), (dict.fromkeys(SPLITS, rows), IID(num_clients=1))):
        with pytest.raises(ConfigurationError, match="division"):
            ready(data, partitioner=partitioner, **options)


COLUMN = ColumnDivision(column="s")
BY_LAB = GroupBy(column="lab")
#: A seed with which the one key is not in training.
HELD_OUT = next(seed for seed in range(99) if hash_shares(["a"], seed) < 0.1)


@pytest.mark.parametrize(
    ("data", "options", "name"),
    [
        (letters("abc"), {"folds": 5}, "3 samples for folds=5"),
        (letters("aaaabbbb"), {"folds": 5, "division": GroupDivision(column="group")}, "2 groups for folds=5"),
        (letters("ab"), {"division": ScaffoldDivision()}, "Rows has no attribute smiles"),
        (letters("ab"), {"division": HashDivision()}, "HashDivision: Rows .*HashDivision.column"),
        (letters("aaa"), {"division": HashDivision(column="group"), "split_seed": HELD_OUT}, "client 0: none of its 3"),
        (
            Rows({"t": ["2020-01-01", "soon", "2021-01-01"]}),
            {"division": OrderDivision(column="t")},
            "column='t' has values .*dates.* row 3 'soon'",
        ),
        (
            Rows({"t": ["nan", "3", "4", "2020-01-01"]}),
            {"division": OrderDivision(column="t")},
            "values .*numbers.* row 2 'nan', row 5 '2020-01-01'",
        ),
        (
            Rows({"s": ["a", None]}),
            {"division": GroupDivision(column="s")},
            "GroupDivision.column='s': sample 1 .* no value",
        ),
        (Rows({"s": ["train", "holdout", "x"]}), {"division": COLUMN}, "column='s' .*'holdout', 'x'"),
        (Rows({"s": ["test", "val"]}), {"division": COLUMN}, "column 's' has no sample for training"),
        (Rows({"s": list(SPLITS)}), {"division": COLUMN, "folds": 5}, "folds=5: ColumnDivision"),
        (
            Rows({"s": ["train", "test", "test"], "lab": ["a", "b", "b"]}),
            {"division": COLUMN, "partitioner": BY_LAB},
            "client b: none of its 2 samples",
        ),
        (
            {"train": Rows({"s": ["train", "test"]}), "test": letters("a")},
            {"division": COLUMN},
            "1 samples of client 0 are for test",
        ),
        (
            Rows({"s": ["train", "test", "train"], "thing": ["a", "a", "b"]}),
            {"division": COLUMN, "together": True},
            "ColumnDivision .* copies of 1 of 2 molecules",
        ),
        (
            Rows({"thing": ["a", "b"] * 20}, labels=[0, 0, 1, 1] * 10),
            {"partitioner": Mixture(num_clients=1), "together": True},
            "partitioner .* copies of 2 of 2 molecules",
        ),
    ],
)
def test_data(data, options, name):
    with pytest.raises(DataError, match=name):
        ready(data, **options)


@pytest.mark.parametrize(
    ("file", "text", "error", "name"),
    [
        ("x.yaml", "train: [1]\ntest: [1]\n", DataError, "'1' in both train and test"),
        ("x.yaml", "train: [1]\nholdout: [2]\n", ConfigurationError, "the part 'holdout'"),
        ("x.yaml", "- 1\n", ConfigurationError, "x.yaml: .*lists"),
        ("x.yaml", "train: 1\n", ConfigurationError, "x.yaml: .*lists"),
        ("x.yaml", "train: [2]\n", DataError, "lacks 1 of the rows, such as 3"),
        ("x.csv", "id,split\n1,train\n2,\n", DataError, "1 rows, the first 3, lack id or split"),
    ],
)
def test_files_of_lists(tmp_path, file, text, error, name):
    (tmp_path / file).write_text(text)
    with pytest.raises(error, match=name):
        ready(letters("ab"), division=ListDivision(path=str(tmp_path / file)))
