"""Bounds and logarithms of targets, in a file of one's own, by a card and for a new client."""

import math
from dataclasses import replace

import pytest
import torch
from molecule_tables import csv_module, ready, write

from lightning_fl.core.errors import DataError
from lightning_fl.data import IID, MoleculeNet
from lightning_fl.data.cards.lookup import load_card
from lightning_fl.data.molecules.table import TargetTransform, read_table

TABLE = "smiles,ic50\nCCO,> 99.5\nCCC,<=0.05\nCCN,10\nCCCC,\nCO,≥1e1\n"
VALUES = [99.5, 0.05, 10.0, math.nan, 10.0]
BOUNDS = [1, -1, 0, 0, 1]
PIC50 = {"target_transform": "-log10", "target_factor": 1e-6}


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "mine.csv", TABLE)


def module(path, **changes):
    return ready(csv_module(path, **({"target_columns": ["ic50"], "censored": True} | changes)))


@pytest.mark.parametrize(
    ("transform", "values", "sign"),
    [
        (None, VALUES, 1),
        (TargetTransform("log10"), [math.log10(value) for value in VALUES], 1),
        (TargetTransform("-log10", 1e-6), [6 - math.log10(value) for value in VALUES], -1),
    ],
)
def test_relations_are_bounds_that_a_negative_logarithm_turns(path, transform, values, sign):
    options = {"target_transform": transform.function, "target_factor": transform.factor} if transform else {}
    data = module(path, **options)
    order = [data.dataset.smiles.index(smiles) for smiles in ("CCO", "CCC", "CCN", "CCCC", "CO")]
    torch.testing.assert_close(data.dataset.targets[order, 0], torch.tensor(values), equal_nan=True)
    assert data.dataset.bounds[order, 0].tolist() == [sign * bound for bound in BOUNDS]
    assert [data.dataset[place].y_bound.tolist() for place in order] == [[[sign * bound]] for bound in BOUNDS]
    assert data.dataset[order[:2]].bounds[:, 0].tolist() == [sign, -sign]  # of a view


@pytest.mark.parametrize("censored", [True, False])
def test_values_only_have_no_bounds(tmp_path, censored):
    data = module(write(tmp_path / "a.csv", "smiles,ic50\nC,2\nCC,1\nCCC,1\n"), censored=censored)
    assert data.dataset.bounds is None
    assert "y_bound" not in data.dataset[0]


def test_a_new_clients_file_is_read_as_the_runs(path, tmp_path):
    data = module(path, **PIC50)
    new = data.newcomer_data(str(write(tmp_path / "new.csv", "smiles,ic50\nCO,>10\n")), data.describe())
    torch.testing.assert_close(new.targets, torch.tensor([[5.0]]))
    assert new.bounds.tolist() == [[-1.0]]


@pytest.mark.parametrize("columns", [None, ["IC50_(µM)"]])
def test_a_card_s_transform_holds_for_new_clients_and_for_columns_that_are_named_again(tmp_path, monkeypatch, columns):
    card = load_card("moonshot")
    (target,) = card.targets
    assert (target.transform, target.factor, target.unit) == ("-log10", 1e-6, "-log10(mol/L)")
    assert card.censored
    head = "suspected_SMILES,IC50_(µM)\n"
    rows = "".join(f"{'C' * (number + 1)},{cell}\n" for number, cell in enumerate(["> 10", "1", "0.1", "< 0.01"]))
    name = card.file.name.removesuffix(".gz")
    write(tmp_path / name, head + rows)
    known = replace(card, files=(replace(card.file, name=name),))
    monkeypatch.setattr("lightning_fl.data.molecules.card_modules.load_card", lambda *_: known)
    options = {"data_root": str(tmp_path), "target_columns": columns, "partitioner": IID(num_clients=2)}
    with pytest.warns(UserWarning, match="is not the file that card"):
        data = ready(MoleculeNet(name="moonshot", **options))
    torch.testing.assert_close(data.dataset.targets[:, 0], torch.tensor([5.0, 6.0, 7.0, 8.0]))
    assert data.dataset.bounds[:, 0].tolist() == [-1, 0, 0, 1]
    new = data.newcomer_data(str(write(tmp_path / "new.csv", f"{head}CO,100\n")), data.describe())
    torch.testing.assert_close(new.targets, torch.tensor([[4.0]]))


@pytest.mark.filterwarnings("ignore:.*is not the file that card")
def test_rows_are_selected(tmp_path):
    (tmp_path / "tdc_admet_group.csv.gz").write_text(
        "dataset,split,Drug_ID,Drug,Y\nherg,test,1,CC,1\nherg,train_val,2,CCC,0\nppbr_az,test,3,CCO,7\n"
    )

    def selected(name):
        options = {"data_root": str(tmp_path), "partitioner": IID(num_clients=1)}
        data = MoleculeNet(name="tdc_admet", select={"dataset": name}, **options)
        data.prepare_data()
        return data.dataset

    assert (selected("herg").smiles, selected("herg").rows) == (["CC", "CCC"], [2, 3])
    with pytest.raises(DataError, match="'herg'"):
        selected("hreg")


def test_all_other_columns_are_targets(tmp_path):
    path = write(tmp_path / "mine.csv", "id,smiles,a,b,empty\n1,C,1,,\n2,CC,,0,\n")
    options = {"smiles": "smiles", "targets": None, "units": "1 = active", "not_targets": ["id"]}
    table = read_table(path, file_format="csv", **options)
    assert (table.target_names, table.target_units) == (["a", "b"], ["1 = active"] * 2)
