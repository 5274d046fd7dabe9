"""Codes of molecules against features asked of RDKit one by one, and the same from several processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem, rdBase
from rdkit.Chem import BondStereo, BondType

from lightning_fl.core.errors import DataError
from lightning_fl.data.molecules import codes
from lightning_fl.data.molecules import featurizer as reading
from lightning_fl.data.molecules.codes import Codes
from lightning_fl.data.molecules.featurizer import encode_smiles

MOLECULES = [
    "CCO",
    "C",
    "not a molecule",
    "",
    "[Na+].[Cl-].CC(=O)[O-]",
    "[CH2]C",
    "[CH3]",
    "[2H]O[2H]",
    "[H][H]",
    "*C*",
    "C[C@H](N)C(=O)O",
    "C[C@@H](N)C(=O)O named@/",
    "F/C=C/F",
    "F/C=C\\F",
    "CN(C)->[B](F)F",
    "N[Pt](N)(Cl)Cl",
    "c1ccccc1[Mg]Br",
    "C~C",
    "C$C",
    "C=CC#N",
    "C[C@H](F)C |$a;;;$|",
    "c1ccc2[nH]ccc2c1",
    "FS(F)(F)(F)(F)F",
    "[Fe+3].[O-2]",
    "C1CC[C@H]2CCCC[C@H]2C1",
    "C" * 3000,
    "c1ccccc1" * 300,
]


def asked_one_by_one(smiles: str) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Codes of atoms, codes of bonds and ends of bonds, as the table of the featuriser states them."""
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        return [], [], []
    elements = ["B", "C", "N", "O", "F", "Si", "P", "S", "Cl", "Se", "Br", "I"]
    hybridisations = ["SP", "SP2", "SP3", "SP3D", "SP3D2"]
    types = [BondType.SINGLE, BondType.DOUBLE, BondType.TRIPLE, BondType.AROMATIC]
    stereo = {BondStereo.STEREOZ: 1, BondStereo.STEREOCIS: 1, BondStereo.STEREOE: 2, BondStereo.STEREOTRANS: 2}

    def place(value, among):
        return among.index(value) if value in among else len(among)

    atoms = [
        [
            place(atom.GetSymbol(), elements),
            min(atom.GetDegree(), 6),
            min(atom.GetTotalNumHs(), 4),
            max(-2, min(2, atom.GetFormalCharge())) + 2,
            place(str(atom.GetHybridization()), hybridisations),
            int(atom.GetIsAromatic()),
            int(atom.IsInRing()),
            " RS".index(atom.GetProp("_CIPCode")) if atom.HasProp("_CIPCode") else 0,
        ]
        for atom in molecule.GetAtoms()
    ]
    bonds = [
        [place(bond.GetBondType(), types), bond.GetIsConjugated(), bond.IsInRing(), stereo.get(bond.GetStereo(), 0)]
        for bond in molecule.GetBonds()
    ]
    return atoms, bonds, [[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()] for bond in molecule.GetBonds()]


def equal(one: Codes, other: Codes) -> bool:
    return all(map(np.array_equal, one, other))


@pytest.mark.parametrize("smiles", MOLECULES, ids=lambda smiles: smiles[:20])
def test_codes_are_what_rdkit_says(smiles):
    found = encode_smiles([smiles])
    atoms, bonds, ends = asked_one_by_one(smiles)
    assert found.atoms.tolist() == atoms
    assert found.bonds.tolist() == bonds
    assert found.ends.tolist() == ends
    assert found.num_atoms.tolist() == [len(atoms)]
    assert found.num_bonds.tolist() == [len(bonds)]


def test_rare_bonds_are_no_single_bonds():
    # dative bonds, which Bond.GetBondTypeAsDouble takes for single ones: written as such, and made by RDKit for a metal
    assert encode_smiles(["CN(C)->[B](F)F"]).bonds[:, 0].tolist() == [0, 0, 4, 0, 0]
    assert encode_smiles(["CN(C)(C)[Pt]"]).bonds[:, 0].tolist() == [0, 0, 0, 4]


@pytest.mark.processes
def test_several_processes_give_the_same(monkeypatch):
    monkeypatch.setattr(reading, "_BLOCK", 3)
    alone = encode_smiles(MOLECULES * 2, workers=1)
    assert equal(encode_smiles(iter(MOLECULES * 2), workers=3), alone)
    assert equal(encode_smiles(["C"], workers=2), encode_smiles(["C"]))
    assert equal(encode_smiles([], workers=2), encode_smiles([]))


@pytest.mark.processes
def test_few_molecules_are_read_here_and_many_by_one_process_a_core(monkeypatch):
    monkeypatch.setattr(reading, "_PARALLEL_FROM", 4)
    monkeypatch.setattr(reading, "_count_own_cores", lambda: 2)
    started = []
    start = reading._start
    monkeypatch.setattr(reading, "_start", lambda: started.append(start()) or started[-1])
    encode_smiles(["C"] * 3)
    assert not started
    assert encode_smiles(iter(["C", "CC", "CCC", "N"])).num_atoms.tolist() == [1, 2, 3, 1]
    assert [process.returncode is not None for process in started] == [True]


@pytest.mark.processes
def test_an_interrupt_ends_the_processes(monkeypatch):
    started = []
    start = reading._start
    monkeypatch.setattr(reading, "_start", lambda: started.append(start()) or started[-1])

    def interrupted():
        yield from ["C"] * 1000
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_smiles(interrupted(), workers=3)
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


@pytest.mark.processes
def test_a_process_that_ends_is_named(monkeypatch):
    dying = [sys.executable, "-c", "raise SystemExit(3)"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    monkeypatch.setattr(reading, "_start", lambda: subprocess.Popen(dying, **pipes))
    with pytest.raises(DataError, match="exit code 3.* fewer processes"):
        encode_smiles(["C"] * 10, workers=2)


@pytest.mark.processes
def test_the_program_needs_nothing_of_the_package():
    loaded = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", str(Path(codes.__file__))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert "rdkit" in loaded
    assert not any(name in loaded for name in ("| lightning", "| torch", "| pandas"))
