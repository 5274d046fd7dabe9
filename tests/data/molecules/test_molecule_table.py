import gzip
import json
import re
from pathlib import Path

import pytest
import torch

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.molecules.table import read_table
from lightning_fl.data.text_table import list_rows

CSV = "smiles,y,z,lab\n CCO ,1.5,,a\nC,-2,3e-1,\nc1ccccc1,,7,b\n"


def write(folder: Path, text: str, name: str = "mine.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def read(path: Path, **changes):
    arguments = {"file_format": "csv", "smiles": "smiles", "targets": ["y"], "units": ["kcal/mol"]}
    return read_table(path, **(arguments | changes))


@pytest.mark.parametrize(("name", "file_format"), [("mine.csv", "csv"), ("mine.csv.gz", "csv.gz")])
def test_a_csv_file(tmp_path, name, file_format):
    table = read(write(tmp_path, CSV, name), targets=["z", "y"], units=["u", "v"], file_format=file_format)
    assert table.smiles == ["CCO", "C", "c1ccccc1"]
    nan = float("nan")
    torch.testing.assert_close(table.targets, torch.tensor([[nan, 1.5], [0.3, -2], [7, nan]]), equal_nan=True)
    assert (table.target_names, table.target_units) == (["z", "y"], ["u", "v"])
    assert table.columns == {"lab": ["a", None, "b"]}
    assert table.rows == [2, 3, 4]
    assert table.place == str(tmp_path / name)


def test_rows_are_counted_as_a_spreadsheet_does(tmp_path):
    table = read(write(tmp_path, "﻿smiles,y\r\nC,1\r\n\r\nCC,2\r\n,3\r\n\r\n"))
    assert table.smiles == ["C", "CC", ""]
    assert table.rows == [2, 4, 5]


def test_a_missing_column_is_named_with_the_nearest(tmp_path):
    with pytest.raises(
        DataError, match=r"has no column 'Smile' \(did you mean 'smiles'\?\)\. It has smiles, y, z, lab"
    ):
        read(write(tmp_path, CSV), smiles="Smile")
    with pytest.raises(DataError, match="has no column 'assay'"):
        read(write(tmp_path, CSV), required=["assay"])


def test_targets_must_be_numbers(tmp_path):
    path = write(tmp_path, "smiles,y\nC,1\nC,>5\nC,inf\nC,1e399\nC,\n")
    with pytest.raises(
        DataError, match="column 'y': 3 values are not finite numbers: row 3 '>5', row 4 'inf', row 5 '1e399'"
    ):
        read(path)


def test_targets_whose_squares_overflow_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"'y': 2 values are above 1e\+17, .*: row 3 '1e30', row 4 '-1e39'\. Choose a"):
        read(write(tmp_path, "smiles,y\nC,1e16\nC,1e30\nC,-1e39\n"))


def test_a_target_without_values_is_refused(tmp_path):
    with pytest.raises(DataError, match="target column 'y' is empty: choose another"):
        read(write(tmp_path, "smiles,y\nC,\nCC,NaN\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"mine\.csv is empty"),
        ("smiles,y\n", "has no rows of data, only a header"),
        ("smiles,y\nC,1\nC,1,2,3\n", r"cannot be read as a table: .*line 3"),
    ],
)
def test_files_that_are_no_tables(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(write(tmp_path, text))


def test_bytes_that_are_no_text_or_no_gzip(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"smiles,y\n\xff\xfe,1\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(CSV.encode())[:-20])
    for name, file_format in (("a.csv", "csv"), ("b.csv.gz", "csv.gz"), ("missing.csv", "csv")):
        with pytest.raises(DataError, match=f"{re.escape(name)} cannot be read as a table"):
            read(tmp_path / name, file_format=file_format)


def test_arguments_are_checked(tmp_path):
    path = write(tmp_path, CSV)
    with pytest.raises(ConfigurationError, match="file_format='xlsx': expected one of csv"):
        read(path, file_format="xlsx")
    with pytest.raises(ConfigurationError, match=r"targets=\[\], units=\[\]: name at least one"):
        read(path, targets=[], units=[])
    with pytest.raises(ConfigurationError, match="one unit for each"):
        read(path, targets=["y", "z"])
    with pytest.raises(ConfigurationError, match="format csv has no parts"):
        read(path, parts=["train"])


# ---- DrugOOD


def record(smiles: str, value: float, assay: int) -> dict:
    return {"smiles": smiles, "reg_label": value, "cls_label": int(value > 6), "assay_id": assay, "domain_id": 0}


DRUGOOD = {
    "cfg": {},
    "split": {
        "train": [record("C", 5.0, 11), record("CC", 7.5, 12)],
        "ood_val": [],
        "ood_test": [record("CCO", 6.0, 14)],
        "iid_val": [record("CCC", 6.5, 11)],
        "iid_test": [record("CCN", 4.0, 12)],
    },
}


def drugood(folder: Path, content: object = DRUGOOD, **changes):
    path = write(folder, json.dumps(content), "drugood.json")
    return read(path, file_format="drugood-json", targets=["reg_label"], required=["assay_id", "split"], **changes)


def test_drugood_parts_are_read_one_after_another(tmp_path):
    table = drugood(tmp_path)
    assert table.smiles == ["C", "CC", "CCC", "CCN", "CCO"]
    assert table.targets[:, 0].tolist() == [5.0, 7.5, 6.5, 4.0, 6.0]
    assert table.columns["assay_id"] == ["11", "12", "11", "12", "14"]
    assert table.columns["split"] == ["train", "train", "iid_val", "iid_test", "ood_test"]
    assert table.rows == [1, 2, 3, 4, 5]


def test_drugood_parts_can_be_chosen(tmp_path):
    table = drugood(tmp_path, parts=["ood_test", "train"])
    assert table.smiles == ["CCO", "C", "CC"]
    with pytest.raises(DataError, match="has no records in ood_val"):
        drugood(tmp_path, parts=["ood_val"])
    for wrong in (["test"], [], ["train", "train"]):
        with pytest.raises(ConfigurationError, match=r"parts=\[.*name one or more of train, iid_val"):
            drugood(tmp_path, parts=wrong)


def test_drugood_whole_numbers_stay_whole_beside_gaps(tmp_path):
    gap = {"split": DRUGOOD["split"] | {"train": [record("C", 5.0, 11), {"smiles": "CC", "reg_label": 1.0}]}}
    assert drugood(tmp_path, gap, parts=["train"]).columns["assay_id"] == ["11", None]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "not a DrugOOD file: expected an object with the key 'split'"),
        ({"train": []}, "not a DrugOOD file"),
        (
            {"split": {"train": [], "iid_val": {}}},
            r"no list of records in split\['iid_val'\]; its parts are train, iid_val",
        ),
        ({"split": DRUGOOD["split"] | {"train": ["C"]}}, r"no list of records in split\['train'\]"),
    ],
)
def test_json_of_another_shape(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        drugood(tmp_path, content)


def test_text_that_is_no_json(tmp_path):
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read(write(tmp_path, "{", "x.json"), file_format="drugood-json")


def test_list_rows_stops_at_ten():
    assert list_rows([3, 9], ["a", "b"]) == "row 3 'a', row 9 'b'"
    listed = list_rows(list(range(13)), ["x"] * 13)
    assert listed.startswith("row 0 'x', ")
    assert listed.endswith("row 9 'x' and 3 more")
