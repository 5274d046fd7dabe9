import gzip
import json
from pathlib import Path

import pytest
import torch
from molecule_tables import CSV, DRUGOOD, drugood, read, record

from lightning_fl.files.text_table import list_rows


def write(folder: Path, text: str, name: str = "mine.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


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


def test_a_column_of_smiles_in_another_case_is_no_target(tmp_path):
    table = read(write(tmp_path, "Canonical_SMILES,y\nC,1\n"), targets=None, units="u")
    assert (table.smiles, table.target_names) == (["C"], ["y"])


# ---- DrugOOD


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
    assert table.rows == [5, 1, 2]  # as if all parts were read


def test_drugood_whole_numbers_stay_whole_beside_gaps(tmp_path):
    gap = {"split": DRUGOOD["split"] | {"train": [record("C", 5.0, 11), {"smiles": "CC", "reg_label": 1.0}]}}
    assert drugood(tmp_path, json.dumps(gap), parts=["train"]).columns["assay_id"] == ["11", None]


def test_list_rows_stops_at_ten():
    assert list_rows([3, 9], ["a", "b"]) == "row 3 'a', row 9 'b'"
    listed = list_rows(list(range(13)), ["x"] * 13)
    assert listed.startswith("row 0 'x', ")
    assert listed.endswith("row 9 'x' and 3 more")
