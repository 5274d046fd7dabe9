import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rdkit import Chem

from lightning_fl.data.molecules.featurizer import ATOM_DIM, BOND_DIM, MoleculeGraphs, encode_smiles, molecule_graphs

# first column of each group, as the module's table states them
ELEMENT, DEGREE, HYDROGENS, CHARGE, HYBRID, AROMATIC, RING, CHIRAL = 0, 13, 20, 25, 30, 36, 37, 38
CARBON, NITROGEN, OXYGEN = 1, 2, 3
SP, SP2, SP3, SP3D2 = 0, 1, 2, 4
SINGLE, DOUBLE, TRIPLE, AROMATIC_BOND, CONJUGATED, BOND_IN_RING, Z, E = 0, 1, 2, 3, 5, 6, 7, 8


def atom(element, degree, hydrogens, hybrid, *, charge=0, aromatic=False, ring=False, chirality="") -> list[float]:
    row = torch.zeros(ATOM_DIM)
    for column in (ELEMENT + element, DEGREE + degree, HYDROGENS + hydrogens, CHARGE + charge + 2, HYBRID + hybrid):
        row[column] = 1
    row[AROMATIC], row[RING] = aromatic, ring
    if chirality:
        row[CHIRAL + "RS".index(chirality)] = 1
    return row.tolist()


def bond(*columns: int) -> list[float]:
    return [float(column in columns) for column in range(BOND_DIM)]


def graph(smiles: str) -> MoleculeGraphs:
    return molecule_graphs(encode_smiles([smiles]))


def test_dimensions():
    assert (ATOM_DIM, BOND_DIM) == (13 + 7 + 5 + 5 + 6 + 1 + 1 + 2, 5 + 1 + 1 + 2)


def test_ethanol():
    ethanol = graph("CCO")
    assert ethanol.x.tolist() == [atom(CARBON, 1, 3, SP3), atom(CARBON, 2, 2, SP3), atom(OXYGEN, 1, 1, SP3)]
    assert ethanol.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert ethanol.edge_attr.tolist() == [bond(SINGLE)] * 4
    assert ethanol.x.dtype == ethanol.edge_attr.dtype == torch.float32
    assert ethanol.edge_index.dtype == torch.int64


def test_benzene():
    benzene = graph("c1ccccc1")
    assert benzene.x.tolist() == [atom(CARBON, 2, 1, SP2, aromatic=True, ring=True)] * 6
    assert benzene.edge_attr.tolist() == [bond(AROMATIC_BOND, CONJUGATED, BOND_IN_RING)] * 12
    neighbours = {frozenset(pair) for pair in benzene.edge_index.T.tolist()}
    assert neighbours == {frozenset((i, (i + 1) % 6)) for i in range(6)}


def test_elements():
    text = ["[BH3]", "C", "N", "O", "F", "[SiH4]", "P", "S", "Cl", "[SeH2]", "Br", "I", "[Na+]"]
    x = molecule_graphs(encode_smiles(text)).x
    assert x[:, ELEMENT : ELEMENT + 13].tolist() == torch.eye(13).tolist()


def test_double_bond_stereo():
    assert graph("C/C=C/C").edge_attr[2].tolist() == bond(DOUBLE, E)
    assert graph("C/C=C\\C").edge_attr[2].tolist() == bond(DOUBLE, Z)
    assert graph("CC=CC").edge_attr[2].tolist() == bond(DOUBLE)


def test_chirality_is_the_cip_label():
    l_alanine, d_alanine = graph("C[C@H](N)C(=O)O"), graph("C[C@@H](N)C(=O)O")
    assert l_alanine.x[1].tolist() == atom(CARBON, 3, 1, SP3, chirality="S")
    assert d_alanine.x[1].tolist() == atom(CARBON, 3, 1, SP3, chirality="R")
    assert graph("CC(N)C(=O)O").x[1].tolist() == atom(CARBON, 3, 1, SP3)


MOLECULES = ["C[C@H](N)C(=O)O", "C/C=C/c1ccncc1", "OC1CCCC[C@@H]1Cl", "[Na+].[Cl-]", "CC(C)(C)c1cc2ccccc2[nH]1"]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(MOLECULES), st.randoms(use_true_random=False))
def test_atom_order_does_not_matter(smiles, random):
    molecule = Chem.MolFromSmiles(smiles)
    order = list(range(molecule.GetNumAtoms()))
    random.shuffle(order)
    shuffled = Chem.MolToSmiles(Chem.RenumberAtoms(molecule, order), canonical=False)
    assert canonical(graph(smiles)) == canonical(graph(shuffled))


def canonical(of: MoleculeGraphs) -> tuple[list, list]:
    """Atoms, and edges with the atoms at their ends, each as a sorted list."""
    edges = torch.cat([of.x[of.edge_index[0]], of.edge_attr, of.x[of.edge_index[1]]], dim=1)
    return sorted(of.x.tolist()), sorted(edges.tolist())


def test_many_molecules_are_their_graphs_one_after_another():
    smiles = ["CCO", "not a molecule", "C", "", "c1ccccc1", "[Na+].[Cl-]"]
    codes = encode_smiles(iter(smiles))
    assert codes.num_atoms.tolist() == [3, 0, 1, 0, 6, 2]
    assert codes.num_bonds.tolist() == [2, 0, 0, 0, 6, 0]
    together = molecule_graphs(codes)
    assert together.atom_ptr.tolist() == [0, 3, 3, 4, 4, 10, 12]
    assert together.edge_ptr.tolist() == [0, 4, 4, 4, 4, 16, 16]
    for number, text in enumerate(smiles):
        alone = graph(text)
        atoms = slice(*together.atom_ptr[number : number + 2].tolist())
        edges = slice(*together.edge_ptr[number : number + 2].tolist())
        assert torch.equal(together.x[atoms], alone.x)
        assert torch.equal(together.edge_index[:, edges], alone.edge_index)
        assert torch.equal(together.edge_attr[edges], alone.edge_attr)


def test_no_molecules():
    nothing = molecule_graphs(encode_smiles([]))
    assert nothing.x.shape == (0, ATOM_DIM)
    assert nothing.edge_index.shape == (2, 0)
    assert nothing.atom_ptr.tolist() == [0]
