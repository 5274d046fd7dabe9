"""New molecules without targets, as a run's models see them; why a SMILES is none, in words."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from rdkit import Chem, rdBase

from lightning_fl.data.molecules.featurizer import MoleculeCodes, encode_smiles
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled, place_of, read_rows, texts_of
from lightning_fl.errors import cut

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
    for frame in read_rows(source, reading.rows, text_column=column):
        smiles = texts_of(frame, column, place)
        codes = encode_smiles(smiles)
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


def smiles_fault(smiles: str) -> str:
    """Why RDKit reads no molecule from a text, in a few words."""
    if not smiles:
        return "no SMILES"
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is None:
            return f"not a SMILES: {cut(smiles)}"
        if not molecule.GetNumAtoms():
            return "no atom in it"
        problems = Chem.DetectChemistryProblems(molecule)
    return problems[0].Message().strip() if problems else "no molecule for RDKit"
