"""Tiny tables and files of molecules."""

import json
from pathlib import Path

import torch

from lightning_fl.data import IID, MoleculeCSV
from lightning_fl.data.molecules.table import MoleculeTable, read_table

CSV = "smiles,y,z,lab\n CCO ,1.5,,a\nC,-2,3e-1,\nc1ccccc1,,7,b\n"
BROKEN = ["CCO", "C(C", "c1ccccc1", "", "C", "CN(C)(C)(C)C"]


def molecule_table(smiles: list[str], targets: object = None, **changes: object) -> MoleculeTable:
    """A table whose targets are 0, 1, 2, ... in two columns unless given."""
    count = len(smiles)
    values = torch.arange(2.0 * count) if targets is None else torch.as_tensor(targets, dtype=torch.float32)
    values = values.reshape(count, -1)
    names = [f"y{number}" for number in range(values.shape[1])]
    arguments = {
        "smiles": smiles,
        "targets": values,
        "target_names": names,
        "target_units": ["u"] * len(names),
        "columns": {"lab": [f"lab{number % 2}" for number in range(count)]},
        "rows": list(range(2, count + 2)),
        "place": "mine.csv",
    }
    return MoleculeTable(**(arguments | changes))  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    """The path of a new text file."""
    path.write_text(text)
    return path


def csv_module(path: object = "a.csv", **options: object) -> MoleculeCSV:
    """A data module of two IID clients with the target y, unless given otherwise."""
    if "group_column" not in options:
        options = {"partitioner": IID(num_clients=2)} | options
    return MoleculeCSV(path=str(path), **({"target_columns": ["y"], "split_seed": 0} | options))  # type: ignore[arg-type]


def ready(data):
    """The data module after preparation and set-up."""
    data.prepare_data()
    data.setup("fit")
    return data


def read(path: Path, **changes):
    """A table with the target y, unless given otherwise."""
    arguments = {"file_format": "csv", "smiles": "smiles", "targets": ["y"], "units": ["kcal/mol"]}
    return read_table(path, **(arguments | changes))


def record(smiles: str, value: float, assay: int) -> dict:
    """A record of DrugOOD."""
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


def drugood(folder: Path, text: str = json.dumps(DRUGOOD), **changes):
    """A DrugOOD file, read."""
    path = write(folder / "drugood.json", text)
    return read(path, file_format="drugood-json", targets=["reg_label"], required=["assay_id", "split"], **changes)
