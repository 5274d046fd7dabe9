"""Stand-ins: equations by hand, labels, laboratories that differ; the same every time."""

import hashlib
import sys
from functools import cache

import pytest
import torch
from processes import run
from rdkit import Chem
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmilesFromSmiles

from lightning_fl.data import GroupBy, MoleculeNet
from lightning_fl.data.molecules.standin import (
    ASSAYS,
    LABORATORIES,
    clark_log_bb,
    delaney_log_solubility,
    make_standin,
)


def make(name, count=1):
    names = [f"task {number}" for number in range(count)]
    return make_standin(name, target_names=names, target_units=["u"] * count)


made = cache(make)


@pytest.fixture(scope="module")
def table():
    return make_standin("esol", target_names=["logS"], target_units=["log10(mol/L)"])


def check_noise(residual, groups, declared):
    """Offset and deviation of every group, within four standard errors of normal noise."""
    for name, (offset, deviation) in declared.items():
        chosen = residual[torch.tensor([group == name for group in groups])]
        count = len(chosen)
        assert count > 30
        assert chosen.mean().item() == pytest.approx(offset, abs=4 * deviation / count**0.5)
        assert chosen.std().item() == pytest.approx(deviation, abs=4 * deviation / (2 * count) ** 0.5)


def residual_of(table):
    return table.targets[:, 0] - torch.tensor([delaney_log_solubility(Chem.MolFromSmiles(s)) for s in table.smiles])


def test_equations_by_hand():
    # Crippen contributions (J. Chem. Inf. Comput. Sci. 39, 1999): aromatic CH (C18) 0.1581 and its H (H1) 0.1230;
    # CH3/CH2 (C1) 0.1441 with H1 0.1230 each. Atomic weights C 12.011, H 1.008.
    benzene = 0.16 - 0.63 * 6 * (0.1581 + 0.1230) - 0.0062 * (6 * 12.011 + 6 * 1.008) - 0.74 * 1
    assert delaney_log_solubility(Chem.MolFromSmiles("c1ccccc1")) == pytest.approx(benzene, abs=1e-3)
    # three of hexane's bonds are rotatable, none of its atoms aromatic
    hexane = 0.16 - 0.63 * (6 * 0.1441 + 14 * 0.1230) - 0.0062 * (6 * 12.011 + 14 * 1.008) + 0.066 * 3
    assert delaney_log_solubility(Chem.MolFromSmiles("CCCCCC")) == pytest.approx(hexane, abs=1e-3)
    # cLogP of RDKit's Crippen -0.0014, polar surface of a hydroxyl group 20.23 (Ertl, J. Med. Chem. 43, 2000)
    ethanol = clark_log_bb(Chem.MolFromSmiles("CCO"))
    assert ethanol == pytest.approx(0.139 + 0.152 * -0.0014 - 0.0148 * 20.23, abs=1e-3)


@pytest.mark.slow
def test_many_distinct_molecules_over_many_scaffolds(table):
    canonical = {Chem.MolToSmiles(Chem.MolFromSmiles(smiles)) for smiles in table.smiles}
    assert len(canonical) == len(table.smiles) >= 1000
    assert len(set(table.columns["scaffold"])) >= 60
    assert table.targets.shape == (len(table.smiles), 1)
    assert torch.isfinite(table.targets).all()
    assert (table.target_names, table.target_units) == (["logS"], ["log10(mol/L)"])


@pytest.mark.slow
def test_scaffolds_are_bemis_murcko_and_each_is_measured_in_one_assay(table):
    found = [MurckoScaffoldSmilesFromSmiles(smiles) or "acyclic" for smiles in table.smiles]
    assert found == table.columns["scaffold"]
    assert len(set(zip(found, table.columns["assay"], strict=True))) == len(set(found))
    assert set(table.columns["assay"]) == set(ASSAYS)


@pytest.mark.slow
def test_labels_are_the_equation_plus_the_assays_offset_and_noise(table):
    check_noise(residual_of(table), table.columns["assay"], ASSAYS)


def test_the_brains_barrier_has_two_classes_that_the_equation_tells():
    table = made("bbbp")
    assert set(table.targets.unique().tolist()) == {0.0, 1.0}
    assert 0.4 < table.targets.mean() < 0.7
    exact = torch.tensor([clark_log_bb(Chem.MolFromSmiles(text)) for text in table.smiles])
    far = exact.abs() > 0.9  # three deviations of the noise
    assert (table.targets[far, 0] == (exact[far] > 0)).float().mean() > 0.99


def test_twelve_assays_with_gaps_and_few_that_are_active():
    table, alone = made("tox21", 12), made("tox21")
    assert table.targets.shape == (len(table.smiles), 12)
    gaps = table.targets.isnan().float().mean(0)
    assert ((gaps > 0.15) & (gaps < 0.25)).all()  # a fifth, four standard errors of 1,418 draws
    assert (table.targets.nanmean(0) - (0.06 + 0.01 * torch.arange(12))).abs().max() < 0.03
    assert torch.unique(table.targets.nan_to_num(0), dim=1).shape[1] == 12  # assays differ
    # labels do not depend on the other assays
    assert torch.equal(alone.targets[:, 0].nan_to_num(-1), table.targets[:, 0].nan_to_num(-1))


def test_nine_laboratories_differ_as_declared():
    table, every = made("aqsoldb"), len(made("esol").smiles)
    assert list(dict.fromkeys(table.columns["Source"])) == list(LABORATORIES)
    assert len(set(table.smiles)) < 0.6 * len(table.smiles)  # many molecules are in several
    for name, (share, _, _) in LABORATORIES.items():
        count = table.columns["Source"].count(name)
        assert count == pytest.approx(share * every, abs=4 * (share * every) ** 0.5)
    check_noise(residual_of(table), table.columns["Source"], {name: rest for name, (_, *rest) in LABORATORIES.items()})


@pytest.mark.parametrize("name", ["bbbp", "aqsoldb"])
def test_they_are_the_same_every_time(name):
    first, second = made(name), make(name)
    assert (first.smiles, first.columns) == (second.smiles, second.columns)
    assert torch.equal(first.targets, second.targets)


def digest(table) -> str:
    text = "\n".join(f"{smiles} {value:.3f}" for smiles, value in zip(table.smiles, table.targets[:, 0], strict=True))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.processes
@pytest.mark.slow
def test_the_same_bits_in_every_process(table):
    code = (
        "import hashlib; from lightning_fl.data.molecules.standin import make_standin as make;"
        "t = make('esol', target_names=['y'], target_units=['']);"
        "rows = [f'{s} {v:.3f}' for s, v in zip(t.smiles, t.targets[:, 0])];"
        r"print(hashlib.sha256('\n'.join(rows).encode()).hexdigest())"
    )
    ended = run(sys.executable, "-c", code, environment={"PYTHONHASHSEED": "4711", "OMP_NUM_THREADS": "1"})
    assert ended.code == 0, ended.err
    assert ended.out.strip() == digest(table)


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
