"""New molecules without targets, as a run's models see them; why a SMILES is none, in words."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rdkit import Chem, rdBase

from lightning_fl.core.errors import cut
from lightning_fl.data.molecules.codes import MOST_ATOMS, MOST_CHARACTERS, Codes, read_codes
from lightning_fl.data.molecules.featurizer import MoleculeCodes
from lightning_fl.data.molecules.reading import read_blocks
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled, place_of, read_rows, texts_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["smiles_fault", "unlabelled_molecules"]


def unlabelled_molecules(
    source: NewSamples,
    record: Mapping[str, Any],
    reading: Reading,
    smiles_column: str,
    make: Callable[[MoleculeTable, MoleculeCodes], Any],
) -> Iterator[Unlabelled]:
    """Molecules in chunks.

    Args:
        source: rows with a column of SMILES, or SMILES.
        record: of the run's data.
        reading: chunks, processes, and the column where it is another.
        smiles_column: the run's.
        make: data of molecules that can all be read.

    Raises:
        DataError: the rows cannot be read, or there is no such column.
    """
    column, place = reading.smiles_column or smiles_column, place_of(source)
    names = list(record["target_names"])
    units = list(record["target_units"])
    frames = read_rows(source, reading.rows, text_column=column)
    for frame, smiles, codes in _encoded(frames, column, place, reading.workers):
        readable = codes.num_atoms > 0
        kept: list[int] = readable.nonzero()[:, 0].tolist()
        errors = {row: smiles_fault(smiles[row]) for row in (~readable).nonzero()[:, 0].tolist()}
        if not kept:
            yield Unlabelled(frame, None, [], errors)
            continue
        counts = codes.num_atoms[readable]
        table = MoleculeTable(
            smiles=[smiles[row] for row in kept],
            targets=torch.full((len(kept), len(names)), torch.nan),
            target_names=names,
            target_units=units,
            columns={},
            rows=[int(frame.index[row]) + 2 for row in kept],
            place=place,
        )
        # a molecule that could not be read has no atoms and no bonds
        codes = MoleculeCodes(codes.atoms, codes.bonds, codes.ends, counts, codes.num_bonds[readable])
        yield Unlabelled(frame, make(table, codes), kept, errors, sizes=counts.tolist())


def _encoded(
    frames: "Iterator[pd.DataFrame]", column: str, place: str, workers: int | None
) -> "Iterator[tuple[pd.DataFrame, list[str], MoleculeCodes]]":
    """Each chunk with its SMILES and their codes; the next ones are read meanwhile by the other processes."""
    waiting: deque[tuple[pd.DataFrame, list[str]]] = deque()

    def texts() -> Iterator[str]:
        for frame in frames:
            smiles = texts_of(frame, column, place)
            waiting.append((frame, smiles))
            yield from smiles

    held = read_codes([])
    for block in read_blocks(texts(), workers):
        held = Codes(*(np.concatenate([before, new]) for before, new in zip(held, block, strict=True)))
        while waiting and len(held.num_atoms) >= len(waiting[0][1]):
            frame, smiles = waiting.popleft()
            first, held = _cut(held, len(smiles))
            yield frame, smiles, MoleculeCodes(*map(torch.from_numpy, first))


def _cut(codes: Codes, count: int) -> tuple[Codes, Codes]:
    """The first so many molecules, and the others."""
    atoms, bonds = int(codes.num_atoms[:count].sum()), int(codes.num_bonds[:count].sum())
    first = (codes.atoms[:atoms], codes.bonds[:bonds], codes.ends[:bonds])
    rest = (codes.atoms[atoms:], codes.bonds[bonds:], codes.ends[bonds:])
    return (
        Codes(*first, codes.num_atoms[:count], codes.num_bonds[:count]),
        Codes(*rest, codes.num_atoms[count:], codes.num_bonds[count:]),
    )


def smiles_fault(smiles: str) -> str:
    """Why RDKit reads no molecule from a text, in a few words."""
    if not smiles:
        return "no SMILES"
    if len(smiles) > MOST_CHARACTERS:
        return f"more than {MOST_CHARACTERS:,} characters"
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is None:
            return f"not a SMILES: {cut(smiles)}"
        if not molecule.GetNumAtoms():
            return "no atom in it"
        if molecule.GetNumAtoms() > MOST_ATOMS:
            return f"more than {MOST_ATOMS:,} atoms"
        problems = Chem.DetectChemistryProblems(molecule)
    return problems[0].Message().strip() if problems else "no molecule for RDKit"
