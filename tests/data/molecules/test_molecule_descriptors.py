"""Descriptors of molecules: RDKit's numbers, gaps, the cache, and their way into batches."""

import pytest
import torch
from molecule_tables import csv_module, ready, write
from molecule_tables import molecule_table as table
from rdkit import Chem
from rdkit.Chem import Descriptors, rdMolDescriptors
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from torch.utils.data import Subset

from lightning_fl.data.molecules import dataset as molecules
from lightning_fl.data.molecules.dataset import MoleculeDataset
from lightning_fl.data.molecules.descriptors import clean_descriptors, compute_descriptors, descriptor_names
from lightning_fl.engine.batches.graph_packs import pack_graphs

SMILES = ["CCO", "C", "c1ccccc1C(=O)O", "[Na+].[Cl-]", "CC(=O)Oc1ccccc1C(=O)O"]


def test_rdkits_descriptors_are_rdkits():
    values, names = compute_descriptors(SMILES, "rdkit"), descriptor_names("rdkit")
    assert values.shape == (5, len(names))
    assert not {"Ipc", "AvgIpc"} & {*names}  # minutes for a chain of 200 atoms
    for row, smiles in zip(values, SMILES, strict=True):
        molecule = Chem.MolFromSmiles(smiles)
        assert row[names.index("MolWt")].item() == pytest.approx(Descriptors.MolWt(molecule))
        assert row[names.index("TPSA")].item() == pytest.approx(rdMolDescriptors.CalcTPSA(molecule))
    assert len(names) == len(Descriptors.descList) - 2


def test_morgan_counts():
    values = compute_descriptors(SMILES, "morgan")
    generator = GetMorganGenerator(radius=2, fpSize=2048)
    for row, smiles in zip(values, SMILES, strict=True):
        counts = generator.GetCountFingerprint(Chem.MolFromSmiles(smiles)).GetNonzeroElements()
        assert {bit: row[bit].item() for bit in row.nonzero().flatten().tolist()} == counts


@pytest.mark.parametrize("kind", ["rdkit", "morgan"])
def test_descriptors_do_not_depend_on_the_order_of_the_atoms(kind):
    molecule = Chem.MolFromSmiles(SMILES[4])
    other = Chem.MolToSmiles(Chem.RenumberAtoms(molecule, list(range(molecule.GetNumAtoms()))[::-1]), canonical=False)
    assert other != SMILES[4]
    first, second = compute_descriptors([SMILES[4], other], kind)
    torch.testing.assert_close(first, second, equal_nan=True)


def test_a_large_chain_has_finite_numbers():
    values = clean_descriptors(compute_descriptors(["C" * 400, "*", "[U]"], "rdkit"), "rdkit")
    assert values.isfinite().all()
    assert values.double().square().sum(0).isfinite().all()


def test_gaps_are_zero_and_said(monkeypatch):
    said = []
    monkeypatch.setattr("lightning_fl.data.molecules.descriptors.rank_zero_info", said.append)
    names = descriptor_names("rdkit")
    values = torch.ones(3, len(names))
    values[0, 4], values[2, 4], values[2, 0] = float("nan"), float("inf"), 1e20
    usable = clean_descriptors(values, "rdkit")
    assert (usable[0, 4], usable[2, 4]) == (0, 0)
    assert usable[2, 0] == 1e9
    assert said == [
        f"features rdkit: 2 of 3 molecules have no finite value of 1 descriptors ({names[4]}); 0 is used instead."
    ]


def test_items_and_batches_have_them():
    dataset = MoleculeDataset(table(SMILES), features=["rdkit", "morgan"])
    width = len(descriptor_names("rdkit")) + 2048
    assert dataset.descriptor_dim == width
    assert dataset[2].descriptors.shape == (1, width)
    pack = pack_graphs(dataset)
    (batch,) = pack.gather(torch.tensor([3, 1]), [2])
    assert torch.equal(batch.descriptors, torch.cat([dataset[3].descriptors, dataset[1].descriptors]))
    assert torch.equal(pack.attribute("descriptors")[4], dataset[4].descriptors[0])
    assert pack.attribute("x") is None
    plain = MoleculeDataset(table(SMILES))
    assert plain.descriptor_dim == 0
    assert "descriptors" not in plain[0]


@pytest.mark.parametrize(("wrong", "features"), [("not a molecule", "morgan"), ("", "rdkit")])
def test_left_out_molecules_shift_nothing(wrong, features):
    smiles = ["CCO", wrong, "c1ccccc1C(=O)O"]
    with pytest.warns(UserWarning, match="1 of 3 SMILES"):
        dataset = MoleculeDataset(table(smiles), invalid="skip", features=[features])
    alone = MoleculeDataset(table([smiles[0], smiles[2]]), features=[features])
    assert torch.equal(dataset._data.descriptors, alone._data.descriptors)


def test_they_are_computed_once_and_kept(tmp_path, monkeypatch):
    first = MoleculeDataset(table(SMILES), cache=tmp_path, features=["morgan"])
    assert len(list(tmp_path.glob("*.pt"))) == 2  # graphs and descriptors
    monkeypatch.setattr(molecules, "compute_descriptors", lambda *_: pytest.fail("computed again"))
    again = MoleculeDataset(table(SMILES), cache=tmp_path, features=["morgan"])
    assert torch.equal(first._data.descriptors, again._data.descriptors)
    with pytest.raises(BaseException, match="computed again"):
        MoleculeDataset(table(SMILES[:2]), cache=tmp_path, features=["morgan"])


def test_the_data_module_hands_them_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "mine.csv", "smiles,y\n" + "".join(f"{'C' * (i + 1)}O,{i}\n" for i in range(12)))
    data = ready(csv_module(path, features=["morgan"]))
    assert data.descriptor_dim == 2048
    part = data.client_data(0, "train")
    assert isinstance(part, Subset)
    assert part[0].descriptors.shape == (1, 2048)
    assert data.describe()["features"] == ["morgan"]
    new = data.newcomer_data(str(write(tmp_path / "new.csv", "smiles,y\nCCN,1\n")), dict(data.describe()))
    assert torch.equal(new[0].descriptors, compute_descriptors(["CCN"], "morgan").float())
