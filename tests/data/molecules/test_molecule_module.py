import hashlib
import json
import pickle
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from molecule_tables import ready
from torch.utils.data import Subset

from lightning_fl.core.errors import DataError
from lightning_fl.data import DrugOOD, MoleculeCSV, MoleculeNet
from lightning_fl.data.cards import lookup
from lightning_fl.data.cards.card import CardFile
from lightning_fl.data.cards.lookup import load_card
from lightning_fl.data.module import SPLITS
from lightning_fl.data.molecules import card_modules
from lightning_fl.data.partition import IID, FromFile, GroupBy, Scaffold
from lightning_fl.data.partition.from_file import split_file_text

ESOL_TARGET = "measured log solubility in mols per litre"
CSV = "smiles,y,z,lab\n" + "".join(f"{'C' * (i + 1)}O,{i},{-i},lab{i % 3}\n" for i in range(30))


@pytest.fixture
def csv(tmp_path: Path) -> str:
    (tmp_path / "mine.csv").write_text(CSV)
    return str(tmp_path / "mine.csv")


@pytest.fixture
def esol_file(tmp_path: Path) -> Path:
    """A small file in ESOL's place; its sum is not the card's."""
    rows = "".join(f"{'C' * (i + 1)}O ,{-i / 2}\n" for i in range(20))
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "delaney-processed.csv").write_text(f"smiles,{ESOL_TARGET}\n{rows}")
    return folder


@pytest.fixture(scope="module")
def features_of_the_stand_in(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture
def known_stand_in(features_of_the_stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache in which the first test to need them leaves the features of the stand-in's molecules."""
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(features_of_the_stand_in))


# ---- partition and division


def test_every_molecule_belongs_to_one_client_and_one_split(csv):
    data = ready(MoleculeCSV(path=csv, target_columns=["y"], partitioner=IID(num_clients=3), split_seed=1))
    seen = []
    for client in range(data.num_clients):
        for split in SPLITS:
            part = data.client_data(client, split)
            assert isinstance(part, Subset)
            assert part.dataset is data.dataset  # shared, not copied
            assert len(part) == data.num_samples(split)[client]
            seen += part.indices
    assert sorted(seen) == list(range(30))
    assert [data.num_samples(split) for split in SPLITS] == [[8, 8, 8], [1, 1, 1], [1, 1, 1]]
    assert data.client_sizes() == [8, 8, 8]


def test_groups_are_clients_with_names(csv):
    data = ready(MoleculeCSV(path=csv, target_columns=["y", "z"], group_column="lab"))
    assert data.num_clients == 3
    assert data.client_names() == ["lab0", "lab1", "lab2"]
    for client in range(3):
        for split in SPLITS:
            assert {int(i) % 3 for i in data.client_data(client, split).indices} == {client}
    item = data.client_data(1, "test")[0]
    assert item.y.shape == (1, 2)
    assert item.y[0, 0] == -item.y[0, 1]


def test_it_travels_to_other_processes(csv):
    data = ready(MoleculeCSV(path=csv, target_columns=["y"], group_column="lab"))
    other = pickle.loads(pickle.dumps(data))
    assert other.num_samples("train") == data.num_samples("train")
    assert torch.equal(other.client_data(2, "val")[0].x, data.client_data(2, "val")[0].x)


# ---- a CSV of one's own


def test_csv_record(csv):
    data = ready(
        MoleculeCSV(path=csv, target_columns=["z"], target_units=["mM"], partitioner=IID(num_clients=2), batch_size=4)
    )
    assert (data.source, data.batch_size, data.target_names, data.target_units) == ("user", 4, ["z"], ["mM"])
    record = data.describe()
    assert record["file"] == "mine.csv"
    assert record["sha256"] == hashlib.sha256(CSV.encode()).hexdigest()
    assert (record["rows"], record["molecules"], record["num_clients"]) == (30, 30, 2)
    # 15 molecules by 8:1:1
    assert record["client_sizes"] == {"train": [12, 12], "val": [2, 2], "test": [1, 1]}
    assert json.loads(json.dumps(record)) == record


def test_csv_skips_what_it_is_told_to(tmp_path):
    (tmp_path / "mine.csv").write_text(CSV + "xx,1,1,lab0\n")
    arguments = {"path": str(tmp_path / "mine.csv"), "target_columns": ["y"], "group_column": "lab"}
    with pytest.raises(DataError, match=r"row 32 'xx'.*data\.invalid=skip"):
        MoleculeCSV(**arguments).prepare_data()
    with pytest.warns(UserWarning, match="row 32 'xx'"):
        record = ready(MoleculeCSV(**arguments, invalid="skip")).describe()
    assert (record["rows"], record["molecules"]) == (31, 30)


# ---- a card


def test_a_cards_file_is_measured_data(esol_file):
    data = MoleculeNet(name="esol", data_root=str(esol_file), partitioner=IID(num_clients=2))
    with pytest.warns(UserWarning, match="is not the file that card esol describes"):
        ready(data)
    assert data.source == "measured"
    assert (data.target_names, data.target_units) == ([ESOL_TARGET], ["log10(mol/L)"])
    record = data.describe()
    assert (record["source"], record["verified"], record["rows"]) == ("measured", False, 20)
    assert record["sha256"] == hashlib.sha256((esol_file / "delaney-processed.csv").read_bytes()).hexdigest()
    assert record["licence"] == load_card("esol").licence
    assert record["title"] == load_card("esol").title
    assert record["partitioner"]["num_clients"] == 2


def test_columns_can_be_chosen(esol_file):
    (esol_file / "delaney-processed.csv").write_text("mol,other\n" + "".join(f"{'C' * i},{i}\n" for i in range(1, 9)))
    data = MoleculeNet(
        data_root=str(esol_file), smiles_column="mol", target_columns=["other"], partitioner=IID(num_clients=2)
    )
    with pytest.warns(UserWarning, match="is not the file"):
        ready(data)
    assert (data.target_names, data.target_units) == (["other"], ["not given"])
    assert data.dataset.targets[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_the_stand_in_is_loud_and_on_record(monkeypatch, known_stand_in):
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    data = MoleculeNet(name="esol", partitioner=Scaffold(num_clients=3), split_seed=0)
    with pytest.warns(UserWarning, match=r"STAND-IN DATA.*LIGHTNING_FL_OFFLINE"):
        data.prepare_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once is enough
        data.setup("fit")
    assert data.source == "stand-in"
    record = data.describe()
    assert record["title"].startswith("STAND-IN")
    assert (record["source"], record["file"], record["sha256"], record["verified"]) == ("stand-in", None, None, False)
    assert data.target_names == [ESOL_TARGET]
    assert sum(data.num_samples("train")) > 800


@pytest.mark.slow
def test_a_process_that_only_sets_up_gets_the_same_stand_in_without_a_download(monkeypatch, known_stand_in):
    attempts = []
    monkeypatch.setattr(lookup, "download", lambda *arguments: attempts.append(arguments))
    data = MoleculeNet(name="esol", partitioner=Scaffold(num_clients=3))
    with pytest.warns(UserWarning, match="STAND-IN DATA"):
        data.setup("fit")
    assert attempts == []
    assert data.source == "stand-in"


@pytest.mark.slow
def test_stand_in_by_choice_goes_before_a_file(esol_file, known_stand_in):
    data = MoleculeNet(source="standin", data_root=str(esol_file), partitioner=GroupBy(column="assay"))
    with pytest.warns(UserWarning, match="STAND-IN DATA"):
        ready(data)
    assert data.client_names() == ["assay_a", "assay_b", "assay_c", "assay_d"]


# ---- DrugOOD


def drugood(folder: Path, name: str = "lbap_core_ic50_assay.json") -> Path:
    def part(start: int, count: int) -> list[dict]:
        return [
            {"smiles": "C" * i, "reg_label": i / 2, "cls_label": 0, "assay_id": i % 4, "domain_id": i % 4}
            for i in range(start, start + count)
        ]

    names = ("train", "iid_val", "iid_test", "ood_val", "ood_test")
    split = {name: part(1 + 20 * number, 20) for number, name in enumerate(names)}
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"cfg": {}, "split": split, "statistics": {}}))
    return folder


def test_drugood_by_its_card(tmp_path):
    data = ready(DrugOOD(data_root=str(drugood(tmp_path / "root")), partitioner=GroupBy(column="assay_id")))
    assert data.source == "measured"
    assert (data.num_clients, data.client_names()) == (4, ["0", "1", "2", "3"])
    assert (len(data.dataset), data.target_names) == (100, ["reg_label"])
    assert data.dataset.targets[:3, 0].tolist() == [0.5, 1.0, 1.5]
    assert data.dataset.column("split")[::20] == ["train", "iid_val", "iid_test", "ood_val", "ood_test"]


def test_drugood_by_its_path_and_in_parts(tmp_path):
    folder = drugood(tmp_path, "lbap_core_ki_assay.json")
    data = ready(DrugOOD(path=str(folder / "lbap_core_ki_assay.json"), parts=["train"], partitioner=IID(num_clients=2)))
    record = data.describe()
    assert (record["molecules"], record["parts"], record["name"]) == (20, ["train"], "lbap_core_ki_assay")
    assert "ki_assay" in record["title"]


@pytest.mark.parametrize("parts", [["iid_test", "train"], ["ood_test", "iid_test", "train", "iid_val"]])
def test_a_split_file_holds_the_same_molecules_whatever_the_order_of_parts(tmp_path, parts):
    path = str(drugood(tmp_path) / "lbap_core_ic50_assay.json")

    def held(parts, partitioner):
        data = ready(DrugOOD(path=path, parts=parts, partitioner=partitioner))
        views = {(client, split): data.client_data(client, split) for client in range(2) for split in SPLITS}
        return data, {key: sorted(data.dataset.smiles[place] for place in view.indices) for key, view in views.items()}

    data, of_run = held(["train", "iid_test"], IID(num_clients=2))
    (tmp_path / "splits.json").write_text(split_file_text(data, range(2)))
    assert held(parts, FromFile(path=str(tmp_path / "splits.json")))[1] == of_run


def test_a_verified_sum_is_on_record(tmp_path, monkeypatch):
    folder = drugood(tmp_path / "root")
    content = (folder / "lbap_core_ic50_assay.json").read_bytes()
    sums = (hashlib.sha256(content).hexdigest(),)
    card = load_card("drugood_ic50")
    known = replace(card, files=(CardFile(card.file.name, sums, ()),))
    monkeypatch.setattr(card_modules, "load_card", lambda *_: known)
    data = ready(DrugOOD(data_root=str(folder), partitioner=IID(num_clients=2)))
    assert data.describe()["verified"] is True
