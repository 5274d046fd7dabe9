import math

import pytest
import torch
from molecule_tables import csv_module, write

from lightning_fl.core.errors import DataError
from lightning_fl.data import MoleculeNet
from lightning_fl.data.cards.catalogue import load_card
from lightning_fl.data.molecules.table import TargetTransform, read_table
from lightning_fl.data.partition import IID

TABLE = "smiles,ic50\nCCO,> 99.5\nCCC,<=0.05\nCCN,10\nCCCC,\nCO,≥1e1\n"
NAN = math.nan


@pytest.fixture
def path(tmp_path):
    (tmp_path / "mine.csv").write_text(TABLE)
    return tmp_path / "mine.csv"


def read(path, **changes):
    return read_table(path, file_format="csv", smiles="smiles", targets=["ic50"], units=["uM"], **changes)


def test_relations_are_bounds(path):
    table = read(path, censored=True)
    expected = torch.tensor([[99.5], [0.05], [10.0], [NAN], [10.0]])
    torch.testing.assert_close(table.targets, expected, equal_nan=True)
    assert table.bounds.flatten().tolist() == [1, -1, 0, 0, 1]


def test_a_negative_logarithm_turns_the_bounds(path):
    table = read(path, censored=True, transforms={"ic50": TargetTransform("-log10", 1e-6)})
    expected = [-math.log10(99.5e-6), -math.log10(0.05e-6), 5.0, NAN, 5.0]
    torch.testing.assert_close(table.targets.flatten(), torch.tensor(expected), equal_nan=True)
    assert table.bounds.flatten().tolist() == [-1, 1, 0, 0, -1]
    straight = read(path, censored=True, transforms={"ic50": TargetTransform("log10")})
    assert straight.bounds.flatten().tolist() == [1, -1, 0, 0, 1]


def test_batches_carry_the_bounds(path):
    data = csv_module(path, target_columns=["ic50"], censored=True)
    data.setup("fit")
    bounds = {text: data.dataset[place].y_bound.tolist() for place, text in enumerate(data.dataset.smiles)}
    assert bounds == {"CCO": [[1.0]], "CCC": [[-1.0]], "CCN": [[0.0]], "CCCC": [[0.0]], "CO": [[1.0]]}


def test_without_bounds_batches_do_not(tmp_path):
    path = write(tmp_path / "mine.csv", "smiles,ic50\nC,2\nCC,1\nCCC,1\n")
    data = csv_module(path, target_columns=["ic50"], censored=True)
    data.setup("fit")
    assert "y_bound" not in data.dataset[0]


def test_a_card_says_what_a_target_is_changed_by():
    (target,) = load_card("moonshot").targets
    assert (target.transform, target.factor, target.unit) == ("-log10", 1e-6, "-log10(mol/L)")
    assert load_card("moonshot").censored


def write_several(tmp_path):
    (tmp_path / "tdc_admet_group.csv.gz").write_text(
        "dataset,split,Drug_ID,Drug,Y\nherg,test,1,CC,1\nherg,train_val,2,CCC,0\nppbr_az,test,3,CCO,7\n"
    )
    return str(tmp_path)


@pytest.mark.filterwarnings("ignore:.*is not the file that card")
def test_rows_are_selected(tmp_path):
    root = write_several(tmp_path)
    data = MoleculeNet(name="tdc_admet", select={"dataset": "herg"}, data_root=root, partitioner=IID(num_clients=1))
    data.prepare_data()
    assert data.dataset.smiles == ["CC", "CCC"]
    assert data.dataset.rows == [2, 3]
    wrong = MoleculeNet(name="tdc_admet", select={"dataset": "hreg"}, data_root=root, partitioner=IID(num_clients=1))
    with pytest.raises(DataError, match="'herg'"):
        wrong.prepare_data()


def test_all_other_columns_are_targets(tmp_path):
    (tmp_path / "mine.csv").write_text("id,smiles,a,b,empty\n1,C,1,,\n2,CC,,0,\n")
    table = read_table(
        tmp_path / "mine.csv",
        file_format="csv",
        smiles="smiles",
        targets=None,
        units="1 = active",
        not_targets=["id"],
    )
    assert (table.target_names, table.target_units) == (["a", "b"], ["1 = active"] * 2)
