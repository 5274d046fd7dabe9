import hashlib
import sys

import pytest
import torch
from processes import run
from rdkit import Chem
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmilesFromSmiles

from lightning_fl.data.molecules.standin import ASSAYS, delaney_log_solubility, esol_standin


@pytest.fixture(scope="module")
def table():
    return esol_standin(target_name="logS", target_unit="log10(mol/L)")


def test_benzene_and_hexane_by_hand():
    # Crippen contributions (J. Chem. Inf. Comput. Sci. 39, 1999): aromatic CH (C18) 0.1581 and its H (H1) 0.1230;
    # CH3/CH2 (C1) 0.1441 with H1 0.1230 each. Atomic weights C 12.011, H 1.008.
    benzene = 0.16 - 0.63 * 6 * (0.1581 + 0.1230) - 0.0062 * (6 * 12.011 + 6 * 1.008) - 0.74 * 1
    assert delaney_log_solubility(Chem.MolFromSmiles("c1ccccc1")) == pytest.approx(benzene, abs=1e-3)
    # three of hexane's bonds are rotatable, none of its atoms aromatic
    hexane = 0.16 - 0.63 * (6 * 0.1441 + 14 * 0.1230) - 0.0062 * (6 * 12.011 + 14 * 1.008) + 0.066 * 3
    assert delaney_log_solubility(Chem.MolFromSmiles("CCCCCC")) == pytest.approx(hexane, abs=1e-3)


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
    assays_of: dict[str, set] = {}
    for scaffold, assay in zip(found, table.columns["assay"], strict=True):
        assays_of.setdefault(scaffold, set()).add(assay)
    assert all(len(assays) == 1 for assays in assays_of.values())
    assert set(table.columns["assay"]) == set(ASSAYS)


@pytest.mark.slow
def test_labels_are_the_equation_plus_the_assays_offset_and_noise(table):
    exact = torch.tensor([delaney_log_solubility(Chem.MolFromSmiles(smiles)) for smiles in table.smiles])
    residual = table.targets[:, 0] - exact
    for assay, (offset, deviation) in ASSAYS.items():
        chosen = residual[torch.tensor([name == assay for name in table.columns["assay"]])]
        count = len(chosen)
        assert count > 100
        # four standard errors of a mean, and of a standard deviation of normal noise
        assert chosen.mean().item() == pytest.approx(offset, abs=4 * deviation / count**0.5)
        assert chosen.std().item() == pytest.approx(deviation, abs=4 * deviation / (2 * count) ** 0.5)


def digest(table) -> str:
    text = "\n".join(f"{smiles} {value:.3f}" for smiles, value in zip(table.smiles, table.targets[:, 0], strict=True))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.processes
@pytest.mark.slow
def test_the_same_bits_in_every_process(table):
    assert digest(esol_standin(target_name="logS", target_unit="")) == digest(table)
    code = (
        "import hashlib; from lightning_fl.data.molecules.standin import esol_standin as make;"
        "t = make(target_name='y', target_unit='');"
        "rows = [f'{s} {v:.3f}' for s, v in zip(t.smiles, t.targets[:, 0])];"
        r"print(hashlib.sha256('\n'.join(rows).encode()).hexdigest())"
    )
    ended = run(sys.executable, "-c", code, environment={"PYTHONHASHSEED": "4711", "OMP_NUM_THREADS": "1"})
    assert ended.code == 0, ended.err
    assert ended.out.strip() == digest(table)
