"""Refusals of tables and synthetic data: type of the error, and the option or thing at fault."""

import gzip
import json
import re

import pytest
from table_files import OWN, ready

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data import BoundaryNoise, SyntheticMixture
from lightning_fl.data.partition import IID, FromFile, GroupBy
from lightning_fl.data.partition.from_file import split_file_text
from lightning_fl.data.tables.dataset import read_c45
from lightning_fl.data.tables.module import TableData


def table_data(**options):
    return TableData(partitioner=IID(num_clients=1), **options)


FILE = {"path": "x.csv", "target": "y"}


@pytest.mark.parametrize(
    ("make", "options", "fault"),
    [
        (table_data, {}, "name=None, path=None"),
        (table_data, {"name": "adult", "path": "x.csv"}, "name='adult', path='x.csv'"),
        (table_data, FILE | {"data_root": "d"}, "data_root='d'"),
        (table_data, {"path": "x.csv"}, "path='x.csv' without target"),
        (table_data, FILE | {"columns": []}, "columns=[]"),
        (table_data, FILE | {"columns": ["y"]}, "columns=['y']"),
        (table_data, FILE | {"columns": ["a"], "drop": ["b"]}, "drop=['b']"),
        (table_data, FILE | {"event": "e", "columns": ["e"]}, "columns=['e']"),
        *[
            (table_data, {"name": name, "columns": ["age", told]}, f"columns=['age', {told!r}]: {told!r}")
            for name, told in (
                ("adult", "income"),
                ("tcga_brca", "T"),
                ("heart_disease", "disease"),
                ("heart_disease", "num"),
            )
        ],
        *[
            (table_data, {"name": name, "target": target, "columns": ["age", told]}, f"columns=['age', {told!r}]")
            for name, target, told in (("heart_disease", "num", "disease"), ("adult", "education", "doctorate"))
        ],
        (table_data, FILE | {"event": "e", "task": "regression"}, "event='e'"),
        (table_data, FILE | {"task": "ranking"}, "TableData.task='ranking'"),
        (table_data, FILE | {"incomplete": "drop"}, "TableData.incomplete='drop'"),
        (table_data, {"name": "esol"}, "MoleculeNet"),
        (SyntheticMixture, {"num_clients": 0}, "SyntheticMixture.num_clients=0"),
        (SyntheticMixture, {"mixture": "1:2"}, "mixture='1:2'"),
        (SyntheticMixture, {"task": "ranking"}, "SyntheticMixture.task='ranking'"),
        (SyntheticMixture, {"num_features": 0}, "SyntheticMixture.num_features=0"),
        (SyntheticMixture, {"min_samples": 0}, "SyntheticMixture.min_samples=0"),
        (SyntheticMixture, {"min_samples": 300}, "min_samples=300"),
        (SyntheticMixture, {"coefficient_std": 0.0}, "SyntheticMixture.coefficient_std=0.0"),
        (SyntheticMixture, {"batch_size": 0}, "batch_size=0"),
        (BoundaryNoise, {"flip_probability": 1.1}, "BoundaryNoise.flip_probability=1.1"),
        (BoundaryNoise, {"train_samples": 0}, "BoundaryNoise.train_samples=0"),
    ],
)
def test_options_are_refused(make, options, fault):
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        make(**options)


@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        (OWN, {"target": "sik"}, "own.csv .*'sik' .*'sick'.* age, colour"),
        (OWN, {"columns": ["ag"]}, "'ag'"),
        (OWN, {"drop": ["colours"]}, "'colours'"),
        (OWN, {"drop": ["age", "colour", "site"]}, "target 'sick'"),
        (OWN, {"categorical": ["sick"]}, "categorical=.*'sick'"),
        (OWN, {"categorical": ["site"]}, "'colour' has values .*row 2 'red', row"),
        (OWN, {"partitioner": GroupBy(column="town")}, "'town'"),
        (OWN, {"partitioner": GroupBy(column="colour")}, r"'colour' has values .*row 3 \(empty\)"),
        ("a,sick\n1,no\n2,?\n", {}, "'sick' has fewer than two different values"),
        ("a,sick\n1,no\n2,?\n3,yes\n", {}, "'sick' has values .*no, yes.*row 3"),
        ("a,sick\n1,0\n2,NA\n3,1\n", {}, "'sick' has values .*0, 1.*row 3 'NA'"),
        ("a,sick\n1,no\n2,no\n", {}, "'sick' has fewer than two different values"),
        ("a,sick\n1,0.5\n2,0.7\n", {}, "'sick' has 2 different values, such as '0.5'.* not classes"),
        ("x,sick\n1,0.5\n2,1.5\n3,2.5\n4,none yet\n", {}, "'sick'.*not classes"),
        ("a,sick\n1,\n2,\n", {}, "'sick' has fewer than two different values"),
        ("a,sick\n", {}, "no rows"),
        ("a,sick\n\n\n", {}, "no rows"),
        ("", {}, "own.csv is empty"),
        ("a,b,sick\n1,?,no\n2,,yes\n", {}, "'b' has no value"),
        (
            "a,sick\n" + "".join(f"n{i},{i % 2}\n" for i in range(1001)),
            {},
            "'a' has 1001 different values, such as 'n0'",
        ),
        ("a,sick\n" + "".join(f"1,n{i}\n" for i in range(1001)), {}, "1001 different values, .* not classes"),
        ('a,sick\n"1,no\n', {}, "own.csv"),
        ("a,sick\n1,no\n2,yes\ninf,no\n3,yes\n", {}, "'a' has values .*row 4 'inf'.* categorical"),
        ("a,sick\n1,no\n2,yes\n12 mg,no\n", {}, "row 4 '12 mg'"),
        ("a,sick\n1,no\n-1e200,yes\n", {}, r"'a' has values .*1e\+150.*row 3 '-1e200'"),
        ("age,extra,sick\n30,,no\n,1,yes\n", {"incomplete": "leave_out"}, "incomplete=leave_out"),
    ],
)
def test_tables_are_refused(tmp_path, text, options, fault):
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(DataError, match=fault):
        ready(**({"path": str(tmp_path / "own.csv"), "target": "sick"} | options))


def test_the_splits_of_other_rows_are_refused(tmp_path):
    (tmp_path / "own.csv").write_text(OWN)
    given = {"path": str(tmp_path / "own.csv"), "target": "sick"}
    splits = tmp_path / "splits.json"
    again = FromFile(path=str(splits))
    splits.write_text(split_file_text(ready(**given, split=(1.0, 0.0, 0.0)), [0]))
    with pytest.raises(DataError, match=r"splits\.json names 2 rows that the data do not have: 3, 4\."):
        ready(**given, incomplete="leave_out", partitioner=again)
    # an older version counted samples
    text = json.dumps(json.loads(splits.read_text()) | {"numbering": "samples from 0", "sizes": {"train": 3}})
    splits.write_text(text)
    with pytest.raises(DataError, match=r"splits\.json .*3} samples, not .*5}"):
        ready(**given, partitioner=FromFile(path=str(splits)))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"1, 2\n\n3\n", "line 3 has 1 values for 2 columns, a, b"),
        (b"| nothing but a comment\n", "no rows"),
        (gzip.compress(b"1,2\n" * 1000, mtime=0)[:-20], "cannot be read"),
    ],
)
def test_files_without_a_header_are_refused(tmp_path, content, fault):
    (tmp_path / "own.data").write_bytes(content)
    with pytest.raises(DataError, match=f"own.data.*{fault}"):
        read_c45(tmp_path / "own.data", ["a", "b"])


@pytest.mark.parametrize(
    ("options", "fault"), [({"path": "absent.csv", "target": "y"}, "absent.csv"), ({"name": "adult"}, "adult.data")]
)
def test_missing_files_are_refused(options, fault):
    with pytest.raises(DataError, match=fault):
        table_data(**options).setup("fit")


@pytest.mark.parametrize("name", ["classes", "feature_names", "num_classes", "num_features"])
def test_access_before_setup_is_refused(name):
    with pytest.raises(DataError, match=r"prepare_data\(\)"):
        getattr(table_data(**FILE), name)
