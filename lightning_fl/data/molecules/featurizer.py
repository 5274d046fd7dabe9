"""Molecules as graphs: atom and bond features of the models, in their order.

Atom features (``ATOM_DIM`` columns, float32; every group but the last three is one-hot):

======================  =======  ==============================================================
group                   columns  values
======================  =======  ==============================================================
element                 13       B, C, N, O, F, Si, P, S, Cl, Se, Br, I, any other
degree                  7        0 to 5, 6 or more (bonded atoms, hydrogens left out)
hydrogens               5        0 to 3, 4 or more (implicit and explicit)
formal charge           5        -2 or less, -1, 0, +1, +2 or more (elementary charges)
hybridisation           6        sp, sp2, sp3, sp3d, sp3d2, any other
aromatic                1        yes
in a ring               1        yes
chirality               2        R, S; neither for an atom that is no (assigned) centre
======================  =======  ==============================================================

Bond features (``BOND_DIM`` columns): type (5: single, double, triple, aromatic, any other), conjugated (1), in a ring
(1), stereo (2: Z or cis, E or trans; neither where there is none).

Chirality is the CIP label, not RDKit's winding tag, so that features do not depend on the order of the atoms.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from lightning_fl.data.molecules.codes import ATOM_GROUPS, BOND_GROUPS, read_codes
from lightning_fl.data.molecules.reading import read_blocks

__all__ = ["ATOM_DIM", "BOND_DIM", "FEATURIZER_VERSION", "MoleculeCodes", "MoleculeGraphs", "encode_smiles"]

#: To be increased whenever a feature changes; cached codes of other versions are not used.
FEATURIZER_VERSION = "1"

#: Width of the atom features.
ATOM_DIM = sum(size - first for size, first in ATOM_GROUPS)
#: Width of the bond features.
BOND_DIM = sum(size - first for size, first in BOND_GROUPS)


@dataclass(frozen=True)
class MoleculeGraphs:
    """n molecules as flat tensors; molecule i has the atoms ``atom_ptr[i]:atom_ptr[i + 1]``, and its edges by
    ``edge_ptr``.

    Attributes:
        x: atom features, float32 ``[V, ATOM_DIM]``.
        edge_index: int64 ``[2, E]``, both directions of a bond next to each other, atoms numbered from 0 in each
            molecule.
        edge_attr: bond features, float32 ``[E, BOND_DIM]``.
        atom_ptr: int64 ``[n + 1]``.
        edge_ptr: int64 ``[n + 1]``.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    atom_ptr: Tensor
    edge_ptr: Tensor


@dataclass(frozen=True)
class MoleculeCodes:
    """n molecules before one-hot encoding, 20 times smaller: the form in the cache.

    Attributes:
        atoms: uint8 ``[V, 8]``, a code per atom and group of features.
        bonds: uint8 ``[B, 4]``, a code per bond and group of features.
        ends: int16 ``[B, 2]``, the atoms of a bond, numbered from 0 in each molecule.
        num_atoms: int32 ``[n]``; 0 for a molecule that could not be read.
        num_bonds: int32 ``[n]``.
    """

    atoms: Tensor
    bonds: Tensor
    ends: Tensor
    num_atoms: Tensor
    num_bonds: Tensor

    def __post_init__(self) -> None:
        shapes = (
            self.atoms.shape == (int(self.num_atoms.sum()), len(ATOM_GROUPS)),
            self.bonds.shape == (int(self.num_bonds.sum()), len(BOND_GROUPS)),
            self.ends.shape == (len(self.bonds), 2),
            self.num_atoms.shape == self.num_bonds.shape == (len(self.num_atoms),),
        )
        if not all(shapes):
            raise ValueError(f"codes do not fit together: {[tuple(getattr(self, f.name).shape) for f in fields(self)]}")

    def graphs(self) -> MoleculeGraphs:
        """Return the graphs that models get. An unreadable molecule becomes a graph without atoms."""
        both_ways = torch.stack([self.ends, self.ends.flip(1)], dim=1).reshape(-1, 2)
        return MoleculeGraphs(
            x=_one_hot_groups(self.atoms, ATOM_GROUPS),
            edge_index=both_ways.T.long().contiguous(),
            edge_attr=_one_hot_groups(self.bonds, BOND_GROUPS).repeat_interleave(2, dim=0),
            atom_ptr=_pointers(self.num_atoms),
            edge_ptr=_pointers(2 * self.num_bonds),
        )


def encode_smiles(smiles: Iterable[str], workers: int | None = None) -> MoleculeCodes:
    """Read molecules with RDKit's default sanitisation.

    Args:
        smiles: n SMILES strings. A molecule without atoms, or that RDKit cannot read, gets ``num_atoms`` 0.
        workers: number of processes, this one included; ``None`` for one, or one per core from 5,000 molecules on. The
            result is the same.

    Raises:
        DataError: one of several processes died.

    Example:
        >>> graphs = encode_smiles(["CCO", "C"]).graphs()
        >>> graphs.x.shape, graphs.edge_index.tolist(), graphs.atom_ptr.tolist()
        (torch.Size([4, 40]), [[0, 1, 1, 2], [1, 0, 2, 1]], [0, 3, 4])
    """
    parts = zip(*chain([read_codes([])], read_blocks(smiles, workers)), strict=True)
    return MoleculeCodes(*(torch.from_numpy(np.concatenate(part)) for part in parts))


def _one_hot_groups(codes: Tensor, groups: tuple[tuple[int, int], ...]) -> Tensor:
    """Codes uint8 ``[V, groups]`` to float32 ``[V, columns]``."""
    columns = torch.zeros(len(codes), sum(size - first for size, first in groups))
    start = 0
    for group, (size, first) in enumerate(groups):
        columns[:, start : start + size - first] = codes[:, group : group + 1] == torch.arange(first, size)
        start += size - first
    return columns


def _pointers(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).long()
