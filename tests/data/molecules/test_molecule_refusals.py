"""Refusals of molecules: type of the error, and the option or thing at fault."""

import gzip
import importlib.util
import json
import re

import pytest
import torch
from molecule_tables import BROKEN, CSV, DRUGOOD, csv_module, drugood, molecule_table, read, ready, write

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data import (
    IID,
    ColumnDivision,
    DrugOOD,
    GroupBy,
    HashDivision,
    ListDivision,
    Mixture,
    MoleculeNet,
    Partitioner,
    PrivateTargets,
)
from lightning_fl.data.molecules.dataset import MoleculeDataset
from lightning_fl.data.molecules.duplicates import merge_duplicates, molecule_identities
from lightning_fl.data.molecules.table import TargetTransform


def card_module(**options):
    return MoleculeNet(**({"partitioner": IID(num_clients=2)} | options))


def drugood_module(**options):
    return DrugOOD(partitioner=IID(num_clients=2), **options)


def laboratories(**options):
    return PrivateTargets(**({"files": {"a": "a.csv"}, "num_targets": 1} | options))


def prepare(make, **options):
    make(**options).prepare_data()


@pytest.mark.parametrize(
    ("make", "options", "fault"),
    [
        (csv_module, {"target_columns": []}, "target_columns"),
        (csv_module, {"target_units": ["a", "b"]}, "target_units"),
        (csv_module, {"partitioner": None}, "group_column=None"),
        (csv_module, {"group_column": "lab", "partitioner": IID(num_clients=2)}, "group_column='lab'"),
        (csv_module, {"split": (0.8, 0.1, 0.2)}, "split"),
        (csv_module, {"invalid": "drop"}, "MoleculeCSV.invalid='drop'"),
        (csv_module, {"identity": "x"}, "MoleculeCSV.identity='x'"),
        (csv_module, {"duplicates": "x"}, "MoleculeCSV.duplicates='x'"),
        (csv_module, {"duplicates": "merge_mean", "division": ListDivision(path="a.csv")}, "ListDivision"),
        (csv_module, {"features": ["rdkit", "rdkit"]}, "features"),
        (csv_module, {"features": ["mordred"]}, "features[0]='mordred'"),
        (csv_module, {"features": "rdkit"}, "features"),
        (csv_module, {"target_transform": "ln"}, "MoleculeCSV.target_transform='ln'"),
        (csv_module, {"target_transform": "log10", "target_factor": 0}, "MoleculeCSV.target_factor=0"),
        (csv_module, {"target_factor": 2.0}, "target_factor=2.0"),
        (card_module, {"name": "esoll"}, "'esol'"),
        (card_module, {"name": "tdc_admet"}, "select: {dataset: NAME}"),
        (card_module, {"source": "fake"}, "MoleculeNet.source='fake'"),
        (card_module, {"target_columns": []}, "target_columns"),
        (card_module, {"graphs": "dgl"}, "MoleculeNet.graphs='dgl'"),
        (card_module, {"graphs": "chemprop", "features": ["morgan"]}, "features"),
        (drugood_module, {"path": "a", "data_root": "b"}, "data_root='b'"),
        (drugood_module, {"parts": ["tain"]}, "DrugOOD.parts[0]='tain'"),
        (drugood_module, {"parts": []}, "parts"),
        (drugood_module, {"card": "esol"}, "card='esol'"),
        (laboratories, {"files": {}}, "files"),
        (laboratories, {"target_columns": {"west": ["y"]}}, "target_columns['west']"),
        (laboratories, {"invalid": "drop"}, "PrivateTargets.invalid='drop'"),
        (laboratories, {"num_targets": 0}, "PrivateTargets.num_targets=0"),
    ],
)
def test_options_are_refused(make, options, fault, monkeypatch):
    monkeypatch.setattr("lightning_fl.data.molecules.module.expect_extra", lambda *_: None)
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        make(**options)


class Lopsided(Partitioner):
    def __call__(self, dataset, seed):
        return [torch.arange(len(dataset)), torch.arange(0)]


@pytest.mark.parametrize(
    ("make", "options", "fault"),
    [
        (csv_module, {"path": "gone.csv"}, "path='gone.csv'"),
        (csv_module, {"group_column": "Lab"}, "'lab'"),
        (card_module, {"source": "real"}, "data set esol"),
        (card_module, {"target_columns": ["Molecular Weight"]}, "data set esol"),
        (card_module, {"name": "freesolv"}, "Put SAMPL.csv in"),
        (drugood_module, {}, "Put lbap_core_ic50_assay.json in"),
        (drugood_module, {"path": "gone.json"}, "path='gone.json'"),
    ],
)
def test_missing_files_and_columns_are_refused(make, options, fault, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    if make is csv_module:
        options = {"path": write(tmp_path / "mine.csv", CSV)} | options
    with pytest.raises(DataError, match=re.escape(fault)):
        make(**options).prepare_data()


@pytest.mark.parametrize(
    "using",
    [
        {"partitioner": GroupBy(column="Lab")},
        {"partitioner": Mixture(num_clients=2, mixture="30:70", column="Lab", values_a=["a"])},
        {"division": ColumnDivision(column="Lab")},
        {"division": HashDivision(column="Lab")},
    ],
)
def test_a_missing_column_is_refused_before_molecules_are_read(using, tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(tmp_path / "cache"))
    data = csv_module(write(tmp_path / "mine.csv", CSV), features=["rdkit"], **using)
    with pytest.raises(DataError, match="'lab'"):
        data.prepare_data()
    assert not (tmp_path / "cache" / "molecules").exists()


def test_a_stand_in_without_the_columns_is_refused():
    with pytest.raises(ConfigurationError, match="esol has no stand-in"):
        card_module(source="standin", smiles_column="mol").prepare_data()


def test_a_client_without_molecules_is_refused(tmp_path):
    with pytest.raises(DataError, match="client 1 gets no"):
        ready(csv_module(write(tmp_path / "mine.csv", CSV), partitioner=Lopsided()))


def test_access_before_setup_is_refused(tmp_path):
    data = csv_module(write(tmp_path / "mine.csv", CSV), group_column="lab")
    with pytest.raises(DataError, match=r"prepare_data\(\)"):
        _ = data.target_names
    data.prepare_data()
    with pytest.raises(DataError, match=r"prepare_data\(\)"):
        _ = data.num_clients


def test_a_missing_extra_is_named(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "chemprop" else found(name, *rest)
    )
    with pytest.raises(ConfigurationError, match=r"lightning-fl\[chemprop\]"):
        card_module(graphs="chemprop")


def test_a_new_clients_file_needs_pyg_graphs(monkeypatch):
    monkeypatch.setattr("lightning_fl.data.molecules.module.expect_extra", lambda *_: None)
    with pytest.raises(ConfigurationError, match="graphs='chemprop'"):
        card_module(graphs="chemprop").newcomer_data("new.csv", {})


# ---- tables


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"file_format": "xlsx"}, "file_format='xlsx'"),
        ({"targets": [], "units": []}, "targets=[]"),
        ({"targets": ["y", "z"]}, "units"),
        ({"parts": ["train"]}, "parts=['train']"),
        ({"file_format": "drugood-json", "parts": ["test"]}, "parts[0]='test'"),
        ({"file_format": "drugood-json", "parts": []}, "parts=[]"),
        ({"file_format": "drugood-json", "parts": ["train", "train"]}, "parts"),
    ],
)
def test_arguments_of_a_table_are_refused(tmp_path, options, fault):
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        read(write(tmp_path / "mine.csv", CSV), **options)


LOG = {"transforms": {"y": TargetTransform("-log10")}}


@pytest.mark.parametrize(
    ("text", "options", "faults"),
    [
        (CSV, {"smiles": "Smile"}, ["'Smile'", "'smiles'"]),
        (CSV, {"required": ["assay"]}, ["'assay'"]),
        (CSV, {"select": {"lab": "aa"}}, ["'lab'", "'aa'", "'a'"]),
        (CSV, {"targets": None, "units": "x", "not_targets": ["lab", "y", "z"]}, ["lab, smiles, y, z"]),
        ("smiles,y\nC,1\nC,>5\nC,inf\nC,1e399\n", {}, ["'y'", "row 3 '>5'", "row 4 'inf'", "row 5 '1e399'"]),
        ("smiles,y\nC,>5\n", {}, ["censored: true"]),
        ("smiles,y\nC,active\nCC,inactive\n", {}, ["classes", "0, 1"]),
        ("smiles,y\nC,~3\nC,1\n", {"censored": True}, ["row 2 '~3'"]),
        ("smiles,y\nC,1e16\nC,1e30\nC,-1e39\n", {}, ["'y'", "row 3 '1e30'", "row 4 '-1e39'"]),
        ("smiles,y\nC,\nCC,NaN\n", {}, ["'y' is empty"]),
        ("smiles,y\nC,0\nCC,1\n", LOG, ["-log10", "row 2 '0'"]),
        ("", {}, ["mine.csv is empty"]),
        ("smiles,y\n", {}, ["no rows"]),
        ("smiles,y\nC,1\nC,1,2,3\n", {}, ["line 3"]),
    ],
)
def test_tables_are_refused(tmp_path, text, options, faults):
    with pytest.raises(DataError) as error:
        read(write(tmp_path / "mine.csv", text), **options)
    assert [fault for fault in faults if fault not in str(error.value)] == []


def test_bytes_that_are_no_text_or_no_gzip(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"smiles,y\n\xff\xfe,1\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(CSV.encode())[:-20])
    for name, file_format in (("a.csv", "csv"), ("b.csv.gz", "csv.gz"), ("missing.csv", "csv")):
        with pytest.raises(DataError, match=re.escape(name)):
            read(tmp_path / name, file_format=file_format)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ([1], "'split'"),
        ({"train": []}, "'split'"),
        ({"split": {"train": [], "iid_val": {}}}, "split['iid_val']"),
        ({"split": DRUGOOD["split"] | {"train": ["C"]}}, "split['train']"),
        ({"split": DRUGOOD["split"] | {"train": [], "iid_val": [], "iid_test": [], "ood_test": []}}, "no records"),
        ("{", "JSON"),
    ],
)
def test_files_of_drugood_are_refused(tmp_path, content, fault):
    with pytest.raises(DataError, match=re.escape(fault)):
        drugood(tmp_path, content if isinstance(content, str) else json.dumps(content))


# ---- data sets


@pytest.mark.parametrize(
    ("smiles", "options", "faults"),
    [
        (BROKEN, {}, ["3 of 6", "mine.csv", "row 3 'C(C', row 5 (empty), row 7 'CN(C)(C)(C)C'", "data.invalid=skip"]),
        (["CCO", "C" * 40_000], {"features": ["morgan"]}, ["1 of 2", "row 3", "atoms"]),
        (["CCO", "C" + "(C" * 20_000 + ")" * 20_000], {"features": ["morgan"]}, ["1 of 2", "row 3", "atoms"]),
        (["CCO", "(" * 300_000], {"features": ["morgan"]}, ["1 of 2", "row 3", "characters"]),
        (["xx"], {"invalid": "refuse"}, ["1 of 1", "No molecule is left"]),
        (["xx"], {"invalid": "skip"}, ["1 of 1", "No molecule is left"]),
    ],
)
def test_smiles_are_refused_with_their_rows(smiles, options, faults):
    with pytest.raises(DataError) as error:
        MoleculeDataset(molecule_table(smiles), **options)
    assert [fault for fault in faults if fault not in str(error.value)] == []
    if len(smiles[-1]) > 10_000:
        assert molecule_identities(smiles[-1:], "smiles") == [None]


@pytest.mark.parametrize(
    ("call", "kind", "fault"),
    [
        (lambda: MoleculeDataset(molecule_table(["C"]), invalid="drop"), ConfigurationError, "invalid='drop'"),
        (lambda: molecule_identities(["C"], "x"), ConfigurationError, "identity='x'"),
        (lambda: incomplete().column("asay"), DataError, "'assay'"),
        (lambda: incomplete().column("assay"), DataError, "'assay' has gaps: row 3 (empty), row 5 (empty)"),
    ],
)
def test_arguments_of_a_data_set_are_refused(call, kind, fault):
    with pytest.raises(kind, match=re.escape(fault)):
        call()


def incomplete():
    return MoleculeDataset(molecule_table(["C", "CC", "CO", "CN"], columns={"assay": ["a", None, "b", None]}))


@pytest.mark.parametrize(
    ("how", "targets", "bounds", "faults"),
    [
        ("merge_refuse", [1.0, 3.0, 2.0, 2.0], None, ["1 molecules", "'y0'", "row 2 1.0, row 3 3.0"]),
        ("merge_mean", [1.0, 0.0, 0.0, 0.0], None, ["1 molecules", "'y0'", "row 2 1.0, row 3 0.0"]),
        ("merge_mean", [1.0, 3.0, 2.0, 2.0], [0.0, 0.0, 1.0, -1.0], ["4, 5", "bounds"]),
    ],
)
def test_rows_that_cannot_be_merged_are_refused(how, targets, bounds, faults):
    bounds = None if bounds is None else torch.tensor(bounds)[:, None]
    table = molecule_table(["CCO", "OCC", "CC", "CC"], targets, bounds=bounds)
    with pytest.raises(DataError) as error:
        merge_duplicates(table, molecule_identities(table.smiles), how)
    assert [fault for fault in faults if fault not in str(error.value)] == []
