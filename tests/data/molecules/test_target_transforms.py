"""Logarithms of targets that a file of one's own asks for, and a new client's file, which is read as the run's was."""

import math
from dataclasses import replace

import torch
from molecule_tables import csv_module, ready
from molecule_tables import write as written

from lightning_fl.data import MoleculeNet
from lightning_fl.data.cards.catalogue import load_card
from lightning_fl.data.partition import IID

VALUES = [99.5, 0.05, 7.0, 12.0]
CSV = "smiles,ic50\nC,> 99.5\nCC,<0.05\nCCC,7\nCCCC,12\n"


def module(path, **changes):
    return ready(csv_module(path, **({"target_columns": ["ic50"], "censored": True} | changes)))


def test_an_ic50_in_micromolar_becomes_a_pic50_and_bounds_turn(tmp_path):
    data = module(written(tmp_path / "a.csv", CSV), target_transform="-log10", target_factor=1e-6)
    expected = torch.tensor([6 - math.log10(value) for value in VALUES])
    torch.testing.assert_close(data.dataset.targets[:, 0], expected)
    assert data.dataset.bounds[:, 0].tolist() == [-1, 1, 0, 0]
    assert data.dataset[[1, 3]].bounds[:, 0].tolist() == [1, 0]  # of a view


def test_the_logarithm_keeps_bounds(tmp_path):
    data = module(written(tmp_path / "a.csv", CSV), target_transform="log10")
    torch.testing.assert_close(data.dataset.targets[:, 0], torch.tensor(VALUES).log10())
    assert data.dataset.bounds[:, 0].tolist() == [1, -1, 0, 0]


def test_values_only_have_no_bounds(tmp_path):
    data = module(written(tmp_path / "a.csv", "smiles,ic50\nC,1\nCC,2\nCCC,3\nCCCC,4\n"), censored=False)
    assert data.dataset.bounds is None


def test_a_new_clients_file_is_read_as_the_runs(tmp_path):
    data = module(written(tmp_path / "a.csv", CSV), target_transform="-log10", target_factor=1e-6)
    new = data.newcomer_data(str(written(tmp_path / "new.csv", "smiles,ic50\nCO,>10\n")), data.describe())
    torch.testing.assert_close(new.targets, torch.tensor([[5.0]]))
    assert new.bounds.tolist() == [[-1.0]]


def test_a_card_s_transform_holds_for_new_clients_and_for_columns_that_are_named_again(tmp_path, monkeypatch):
    name = "IC50_(µM)"
    card = load_card("moonshot")
    rows = "".join(f"{'C' * (number + 1)},{cell}\n" for number, cell in enumerate(["> 10", "1", "0.1", "< 0.01"]))
    written(tmp_path / card.file.name.removesuffix(".gz"), f"suspected_SMILES,{name}\n{rows}")
    monkeypatch.setattr(
        "lightning_fl.data.molecules.card_modules.load_card",
        lambda *_: replace(card, files=(replace(card.file, name=card.file.name.removesuffix(".gz")),)),
    )
    for columns in (None, [name]):
        data = ready(
            MoleculeNet(
                name="moonshot", data_root=str(tmp_path), target_columns=columns, partitioner=IID(num_clients=2)
            )
        )
        torch.testing.assert_close(data.dataset.targets[:, 0], torch.tensor([5.0, 6.0, 7.0, 8.0]))
        assert data.dataset.bounds[:, 0].tolist() == [-1, 0, 0, 1]
        new = data.newcomer_data(
            str(written(tmp_path / "new.csv", f"suspected_SMILES,{name}\nCO,100\n")), data.describe()
        )
        torch.testing.assert_close(new.targets, torch.tensor([[4.0]]))
