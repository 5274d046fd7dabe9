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
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_fl.data.molecules.codes import ATOM_GROUPS, BOND_GROUPS, Codes, read_codes
from lightning_fl.data.molecules.reading import read_blocks

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

    ``x`` float32 ``[V, ATOM_DIM]``; ``edge_index`` int64 ``[2, E]``, both directions of a bond next to each other,
    atoms numbered from 0 in each molecule; ``edge_attr`` float32 ``[E, BOND_DIM]``; pointers int64 ``[n + 1]``.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    atom_ptr: Tensor
    edge_ptr: Tensor


def molecule_graphs(codes: Codes) -> MoleculeGraphs:
    """Make the graphs that models get. An unreadable molecule becomes a graph without atoms."""
    ends = torch.from_numpy(codes.ends)
    both_ways = torch.stack([ends, ends.flip(1)], dim=1).reshape(-1, 2)
    return MoleculeGraphs(
        x=_one_hot_groups(codes.atoms, ATOM_GROUPS),
        edge_index=both_ways.T.long().contiguous(),
        edge_attr=_one_hot_groups(codes.bonds, BOND_GROUPS).repeat_interleave(2, dim=0),
        atom_ptr=_pointers(codes.num_atoms),
        edge_ptr=_pointers(2 * codes.num_bonds),
    )


def encode_smiles(smiles: Iterable[str], workers: int | None = None) -> Codes:
    """Read n molecules with RDKit's default sanitisation; one without atoms, or unreadable, gets ``num_atoms`` 0.

    ``workers`` is the number of processes, this one included; ``None`` for one, or one per core from 5,000 molecules
    on. The result is the same.

    Example:
        >>> graphs = molecule_graphs(encode_smiles(["CCO", "C"]))
        >>> graphs.x.shape, graphs.edge_index.tolist(), graphs.atom_ptr.tolist()
        (torch.Size([4, 40]), [[0, 1, 1, 2], [1, 0, 2, 1]], [0, 3, 4])
    """
    parts = zip(*chain([read_codes([])], read_blocks(smiles, workers)), strict=True)
    return Codes(*(np.concatenate(part) for part in parts))


def _one_hot_groups(codes: NDArray[np.uint8], groups: tuple[tuple[int, int], ...]) -> Tensor:
    """Codes uint8 ``[V, groups]`` to float32 ``[V, columns]``."""
    chosen, columns = torch.from_numpy(codes), torch.zeros(len(codes), sum(size - first for size, first in groups))
    start = 0
    for group, (size, first) in enumerate(groups):
        columns[:, start : start + size - first] = chosen[:, group : group + 1] == torch.arange(first, size)
        start += size - first
    return columns


def _pointers(counts: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], counts.cumsum()])).long()
