"""The further stand-ins: labels of classes, gaps, laboratories that differ; the same every time."""

import pytest
import torch
from rdkit import Chem

from lightning_fl.data import MoleculeNet
from lightning_fl.data.molecules.standin import LABORATORIES, clark_log_bb, delaney_log_solubility, make_standin
from lightning_fl.data.partition import GroupBy


def made(name, count=1):
    names = [f"task {number}" for number in range(count)]
    return make_standin(name, target_names=names, target_units=["u"] * count)


def test_ethanol_by_hand():
    # cLogP of RDKit's Crippen -0.0014, polar surface of a hydroxyl group 20.23 (Ertl, J. Med. Chem. 43, 2000)
    value = clark_log_bb(Chem.MolFromSmiles("CCO"))
    assert value == pytest.approx(0.139 + 0.152 * -0.0014 - 0.0148 * 20.23, abs=1e-3)


def test_the_brains_barrier_has_two_classes_that_the_equation_tells():
    table = made("bbbp")
    assert set(table.targets.unique().tolist()) == {0.0, 1.0}
    assert 0.4 < table.targets.mean() < 0.7
    exact = torch.tensor([clark_log_bb(Chem.MolFromSmiles(text)) for text in table.smiles])
    far = exact.abs() > 0.9  # three deviations of the noise
    assert (table.targets[far, 0] == (exact[far] > 0)).float().mean() > 0.99


def test_twelve_assays_with_gaps_and_few_that_are_active():
    table = made("tox21", 12)
    assert table.targets.shape == (len(table.smiles), 12)
    gaps = table.targets.isnan().float().mean(0)
    assert ((gaps > 0.15) & (gaps < 0.25)).all()  # a fifth, four standard errors of 1,418 draws
    expected = 0.06 + 0.01 * torch.arange(12)
    assert (table.targets.nanmean(0) - expected).abs().max() < 0.03
    # assays differ
    filled = table.targets.nan_to_num(0)
    assert torch.unique(filled, dim=1).shape[1] == 12
    # labels do not depend on the other assays
    alone = make_standin("tox21", target_names=["task 0"], target_units=["u"])
    assert torch.equal(alone.targets.isnan()[:, 0], table.targets.isnan()[:, 0])
    assert torch.equal(alone.targets[:, 0].nan_to_num(-1), table.targets[:, 0].nan_to_num(-1))


def test_nine_laboratories_differ_as_declared():
    table = made("aqsoldb")
    assert list(dict.fromkeys(table.columns["Source"])) == list(LABORATORIES)
    assert len(set(table.smiles)) < 0.6 * len(table.smiles)  # many molecules are in several
    every = len(made("esol").smiles)
    exact = torch.tensor([delaney_log_solubility(Chem.MolFromSmiles(text)) for text in table.smiles])
    residual = table.targets[:, 0] - exact
    for name, (share, offset, deviation) in LABORATORIES.items():
        chosen = residual[torch.tensor([source == name for source in table.columns["Source"]])]
        count = len(chosen)
        assert count == pytest.approx(share * every, abs=4 * (share * every) ** 0.5)
        assert chosen.mean().item() == pytest.approx(offset, abs=4 * deviation / count**0.5)
        assert chosen.std().item() == pytest.approx(deviation, abs=4 * deviation / (2 * count) ** 0.5)


def test_they_are_the_same_every_time():
    for name in ("bbbp", "aqsoldb"):
        first, second = made(name), made(name)
        assert (first.smiles, first.columns) == (second.smiles, second.columns)
        assert torch.equal(first.targets, second.targets)


def test_a_card_is_replaced_loudly():
    data = MoleculeNet(name="aqsoldb", source="standin", partitioner=GroupBy(column="Source"))
    with pytest.warns(UserWarning, match="STAND-IN DATA"):
        data.prepare_data()
    data.setup("fit")
    assert data.num_clients == 9
    assert data.describe()["title"].startswith("STAND-IN")
    assert data.target_names == ["Solubility"]
    tox = MoleculeNet(name="tox21", source="standin", partitioner=GroupBy(column="scaffold", num_clients=3))
    with pytest.warns(UserWarning, match="STAND-IN DATA"):
        tox.prepare_data()
    assert tox.dataset.targets.shape[1] == 12
