"""Encoding of SMILES as arrays of codes; run as a program, it serves another process.

:mod:`lightning_fl.data.molecules.featurizer` defines the codes. This file imports only RDKit and NumPy, so that a
process starts in a fraction of a second. It reads lines of JSON, each a list of SMILES, from standard input, answers
each with a line of :meth:`Codes.to_line`, and ends with its input.
"""

import json
import os
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import Atom, Bond, BondStereo, BondType, HybridizationType, Mol

#: Most atoms of a molecule: RDKit writes SMILES recursively, and a chain of twice as many atoms overflows its stack.
MAX_ATOMS = 10_000
#: Longest SMILES that is parsed.
MAX_CHARACTERS = 20 * MAX_ATOMS

_ELEMENTS = {5: 0, 6: 1, 7: 2, 8: 3, 9: 4, 14: 5, 15: 6, 16: 7, 17: 8, 34: 9, 35: 10, 53: 11}
_OTHER_ELEMENT = 12
_HYBRIDISATIONS = {
    HybridizationType.SP: 0,
    HybridizationType.SP2: 1,
    HybridizationType.SP3: 2,
    HybridizationType.SP3D: 3,
    HybridizationType.SP3D2: 4,
}
_OTHER_HYBRIDISATION = 5
_CHIRALITIES = {"": 0, "R": 1, "S": 2}
# By Bond.GetBondTypeAsDouble, whose numbers are faster to make and look up than RDKit's enumeration; but it returns 1.0
# for a dative bond, too.
_ORDERS = {BondType.SINGLE: 1.0, BondType.DOUBLE: 2.0, BondType.TRIPLE: 3.0, BondType.AROMATIC: 1.5}
_OTHER_ORDER = 0.0
_BOND_TYPES = ((1.0, 0), (2.0, 1), (3.0, 2), (1.5, 3))
_OTHER_BOND_TYPE = 4
_STEREO = {BondStereo.STEREOZ: 1, BondStereo.STEREOCIS: 1, BondStereo.STEREOE: 2, BondStereo.STEREOTRANS: 2}

#: (number of codes, first code that gets a column): a group that starts at 1 leaves code 0 without a column
ATOM_GROUPS = ((13, 0), (7, 0), (5, 0), (5, 0), (6, 0), (2, 1), (2, 1), (3, 1))
BOND_GROUPS = ((5, 0), (2, 1), (2, 1), (3, 1))

# Characters without which a SMILES (or its extension after "|") has no CIP labels, no stereo bonds, and no bonds of
# rare types, which organometallic compounds get as well.
_CHIRAL, _STEREO_BONDS, _RARE_BONDS = "@|", "/\\|", "<>~$|"
_WITHOUT_RARE_BONDS = frozenset((1, *_ELEMENTS))

_ATOM_GETTERS: tuple[Callable[[Atom], int], ...] = (
    *(Atom.GetAtomicNum, Atom.GetDegree, Atom.GetTotalNumHs, Atom.GetFormalCharge, Atom.GetHybridization),
    *(Atom.GetIsAromatic, Atom.IsInRing),
)


def _table(codes: dict[Any, int], other: int) -> NDArray[np.uint8]:
    table = np.full(256, other, dtype=np.uint8)
    table[list(map(int, codes))] = list(codes.values())
    return table


_ELEMENT_TABLE = _table(_ELEMENTS, _OTHER_ELEMENT)
_HYBRIDISATION_TABLE = _table(_HYBRIDISATIONS, _OTHER_HYBRIDISATION)


class Codes(NamedTuple):
    """n molecules before one-hot encoding, 20 times smaller: the form in the cache and between processes."""

    atoms: NDArray[np.uint8]  #: [V, 8], a code per atom and group of features
    bonds: NDArray[np.uint8]  #: [B, 4], a code per bond and group of features
    ends: NDArray[np.int16]  #: [B, 2], the atoms of a bond, numbered from 0 in each molecule
    num_atoms: NDArray[np.int32]  #: [n]; 0 for a molecule that could not be read
    num_bonds: NDArray[np.int32]  #: [n]

    def to_line(self) -> bytes:
        """Serialise as a line of text: NumPy's ``.npz`` in base 64."""
        content = BytesIO()
        np.savez(content, **self._asdict())
        return b64encode(content.getvalue()) + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> "Codes":
        return cls(**np.load(BytesIO(b64decode(line)), allow_pickle=False))


def read_molecule(smiles: str) -> Mol | None:
    """Read a molecule with RDKit's default sanitisation; ``None`` if unreadable, empty or above ``MAX_ATOMS``."""
    molecule = Chem.MolFromSmiles(smiles) if len(smiles) <= MAX_CHARACTERS else None
    return molecule if molecule is not None and 0 < molecule.GetNumAtoms() <= MAX_ATOMS else None


def read_codes(smiles: Sequence[str]) -> Codes:
    """Encode molecules; one that :func:`read_molecule` cannot read gets ``num_atoms`` 0."""
    atoms = [array("i") for _ in _ATOM_GETTERS]
    chiral: list[tuple[int, int]] = []  # place and code
    orders, conjugated, in_ring = array("d"), array("b"), array("b")
    stereo: list[tuple[int, int]] = []
    begins, ends = array("h"), array("h")
    num_atoms, num_bonds = array("i"), array("i")
    with rdBase.BlockLogs():  # the caller reports unreadable SMILES with their rows
        for text in smiles:
            molecule = read_molecule(text)
            first_atom, first_bond = len(atoms[0]), len(orders)
            if molecule is not None:
                # One by one: the sequences of GetAtoms and GetBonds are written in Python and slow.
                of_molecule = list(map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())))
                for column, getter in zip(atoms, _ATOM_GETTERS, strict=True):
                    column.extend(map(getter, of_molecule))
                if any(sign in text for sign in _CHIRAL):
                    centres = [(place, atom) for place, atom in enumerate(of_molecule) if atom.HasProp("_CIPCode")]
                    chiral += [(first_atom + at, _CHIRALITIES.get(atom.GetProp("_CIPCode"), 0)) for at, atom in centres]
                bonds = list(map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())))
                rare = any(sign in text for sign in _RARE_BONDS)
                if rare or not _WITHOUT_RARE_BONDS.issuperset(atoms[0][first_atom:]):
                    orders.extend(_ORDERS.get(bond.GetBondType(), _OTHER_ORDER) for bond in bonds)
                else:
                    orders.extend(map(Bond.GetBondTypeAsDouble, bonds))
                conjugated.extend(map(Bond.GetIsConjugated, bonds))
                in_ring.extend(map(Bond.IsInRing, bonds))
                if any(sign in text for sign in _STEREO_BONDS):
                    codes = (_STEREO.get(bond.GetStereo(), 0) for bond in bonds)
                    stereo += [(first_bond + place, code) for place, code in enumerate(codes) if code]
                begins.extend(map(Bond.GetBeginAtomIdx, bonds))
                ends.extend(map(Bond.GetEndAtomIdx, bonds))
            num_atoms.append(len(atoms[0]) - first_atom)
            num_bonds.append(len(orders) - first_bond)
    return Codes(
        atoms=_atom_codes([np.frombuffer(column, dtype=np.intc) for column in atoms], chiral),
        bonds=_bond_codes(np.frombuffer(orders), conjugated, in_ring, stereo),
        ends=np.stack([np.frombuffer(begins, dtype=np.int16), np.frombuffer(ends, dtype=np.int16)], axis=1),
        num_atoms=np.array(num_atoms, dtype=np.int32),
        num_bonds=np.array(num_bonds, dtype=np.int32),
    )


def _atom_codes(columns: list[NDArray[np.intc]], chiral: list[tuple[int, int]]) -> NDArray[np.uint8]:
    element, degree, hydrogens, charge, hybridisation, aromatic, ring = columns
    codes = np.zeros((len(element), len(ATOM_GROUPS)), dtype=np.uint8)
    codes[:, 0] = _ELEMENT_TABLE[element]
    codes[:, 1] = np.minimum(degree, 6)
    codes[:, 2] = np.minimum(hydrogens, 4)
    codes[:, 3] = np.clip(charge, -2, 2) + 2
    codes[:, 4] = _HYBRIDISATION_TABLE[hybridisation]
    codes[:, 5] = aromatic
    codes[:, 6] = ring
    for place, code in chiral:
        codes[place, 7] = code
    return codes


def _bond_codes(
    orders: NDArray[np.float64], conjugated: "array[int]", in_ring: "array[int]", stereo: list[tuple[int, int]]
) -> NDArray[np.uint8]:
    codes = np.zeros((len(orders), len(BOND_GROUPS)), dtype=np.uint8)
    codes[:, 0] = _OTHER_BOND_TYPE
    for order, code in _BOND_TYPES:
        codes[orders == order, 0] = code
    codes[:, 1] = np.frombuffer(conjugated, dtype=np.int8)
    codes[:, 2] = np.frombuffer(in_ring, dtype=np.int8)
    for place, code in stereo:
        codes[place, 3] = code
    return codes


if __name__ == "__main__":
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library's prints must not mix with the answers
    for block in sys.stdin.buffer:
        answers.write(read_codes(json.loads(block)).to_line())
        answers.flush()
