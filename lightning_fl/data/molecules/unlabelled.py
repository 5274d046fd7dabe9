"""New molecules without targets, and why a SMILES cannot be read."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rdkit import Chem, rdBase

from lightning_fl.core.errors import cut
from lightning_fl.data.molecules.codes import MAX_ATOMS, MAX_CHARACTERS, Codes, read_codes
from lightning_fl.data.molecules.reading import read_blocks
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled, name_of_source, read_rows, read_smiles_column

if TYPE_CHECKING:
    import pandas as pd


def unlabelled_molecules(
    source: NewSamples,
    record: Mapping[str, Any],
    reading: Reading,
    smiles_column: str,
    make: Callable[[MoleculeTable, Codes], Any],
) -> Iterator[Unlabelled]:
    """Read molecules in chunks, from rows with a column of SMILES, or SMILES; ``make`` makes a data set of readable
    ones.
    """
    column, place = reading.smiles_column or smiles_column, name_of_source(source)
    names, units = list(record["target_names"]), list(record["target_units"])
    frames = read_rows(source, reading.rows, text_column=column)
    for frame, smiles, codes in _encoded(frames, column, place, reading.workers):
        readable = codes.num_atoms > 0
        kept: list[int] = np.flatnonzero(readable).tolist()
        errors = {row: explain_unreadable(smiles[row]) for row in np.flatnonzero(~readable).tolist()}
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
        # unreadable molecules have no atoms and no bonds
        codes = codes._replace(num_atoms=counts, num_bonds=codes.num_bonds[readable])
        yield Unlabelled(frame, make(table, codes), kept, errors, sizes=counts.tolist())


def _encoded(
    frames: "Iterator[pd.DataFrame]", column: str, place: str, workers: int | None
) -> "Iterator[tuple[pd.DataFrame, list[str], Codes]]":
    """Yield each chunk with its SMILES and their codes, while other processes read the next ones."""
    waiting: deque[tuple[pd.DataFrame, list[str]]] = deque()

    def texts() -> Iterator[str]:
        for frame in frames:
            smiles = read_smiles_column(frame, column, place)
            waiting.append((frame, smiles))
            yield from smiles

    held = read_codes([])
    for block in read_blocks(texts(), workers):
        held = Codes(*(np.concatenate([before, new]) for before, new in zip(held, block, strict=True)))
        while waiting and len(held.num_atoms) >= len(waiting[0][1]):
            frame, smiles = waiting.popleft()
            first, held = _split(held, len(smiles))
            yield frame, smiles, first


def _split(codes: Codes, count: int) -> tuple[Codes, Codes]:
    """Split off the first molecules."""
    atoms, bonds = int(codes.num_atoms[:count].sum()), int(codes.num_bonds[:count].sum())
    first = (codes.atoms[:atoms], codes.bonds[:bonds], codes.ends[:bonds])
    rest = (codes.atoms[atoms:], codes.bonds[bonds:], codes.ends[bonds:])
    return (
        Codes(*first, codes.num_atoms[:count], codes.num_bonds[:count]),
        Codes(*rest, codes.num_atoms[count:], codes.num_bonds[count:]),
    )


def explain_unreadable(smiles: str) -> str:
    """Explain in a few words why a SMILES gives no molecule."""
    if not smiles:
        return "no SMILES"
    if len(smiles) > MAX_CHARACTERS:
        return f"more than {MAX_CHARACTERS:,} characters"
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is None:
            return f"not a SMILES: {cut(smiles)}"
        if not molecule.GetNumAtoms():
            return "no atom in it"
        if molecule.GetNumAtoms() > MAX_ATOMS:
            return f"more than {MAX_ATOMS:,} atoms"
        problems = Chem.DetectChemistryProblems(molecule)
    return problems[0].Message().strip() if problems else "RDKit makes no molecule of it"
