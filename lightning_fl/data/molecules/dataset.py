"""Data set of molecular graphs, featurised once and cached on disk, and new molecules without targets."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn
from rdkit import Chem, rdBase
from rich.progress import track
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from lightning_fl.core.errors import DataError, cut
from lightning_fl.core.escaping import terminal
from lightning_fl.core.validation import checked
from lightning_fl.data.molecules.codes import MAX_ATOMS, MAX_CHARACTERS, Codes, read_codes
from lightning_fl.data.molecules.descriptors import (
    FeatureName,
    clean_descriptors,
    compute_descriptors,
    descriptor_names,
    distinct_features,
)
from lightning_fl.data.molecules.featurizer import FEATURIZER_VERSION, encode_smiles, molecule_graphs, read_blocks
from lightning_fl.data.molecules.table import Invalid, MoleculeTable
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled, name_of_source, read_rows, read_smiles_column
from lightning_fl.files.tensors import load_or_compute
from lightning_fl.files.text_table import list_rows, require_columns

if TYPE_CHECKING:
    import pandas as pd

_PROGRESS_FROM = 2000
_REPORT_FROM = 5000


class MoleculeDataset(InMemoryDataset):
    """n molecules as graphs with the features of :mod:`lightning_fl.data.molecules.featurizer`.

    An item is a ``torch_geometric.data.Data`` with ``x [V, ATOM_DIM]``, ``edge_index [2, E]``, ``edge_attr
    [E, BOND_DIM]`` and ``y [1, T]`` float32, NaN where a target is missing; where targets are censored also ``y_bound
    [1, T]`` (0: a value, -1: at most this, +1: at least this). A molecule without bonds has E = 0.

    A slice or a list as index gives a view; ``smiles``, ``targets``, ``rows`` and ``column`` follow it.

    ``invalid`` SMILES are refused, or skipped with a warning. With ``features`` items have ``descriptors [1, F]`` as
    well. ``cache`` is the folder of :func:`~lightning_fl.files.tensors.load_or_compute`; ``codes`` are those of the
    molecules, if they are computed already.
    """

    @checked
    def __init__(
        self,
        table: MoleculeTable,
        *,
        invalid: Invalid = "refuse",
        cache: Path | None = None,
        codes: Codes | None = None,
        features: Sequence[FeatureName] = (),
    ) -> None:
        kinds = distinct_features(features)
        super().__init__()
        codes = _load_or_encode(table, cache) if codes is None else codes
        kept: list[int] = np.flatnonzero(codes.num_atoms).tolist()
        valid = torch.tensor(kept, dtype=torch.long)
        if len(kept) < len(table.smiles):
            _report_invalid(table, np.flatnonzero(codes.num_atoms == 0).tolist(), invalid)
        self.target_names, self.target_units = list(table.target_names), list(table.target_units)
        whole, table = table, table.take(kept)
        self._place, self._smiles, self._rows, self._columns = table.place, table.smiles, table.rows, table.columns
        graphs = molecule_graphs(codes)
        # an unreadable molecule has no atoms and no bonds: dropping its pointer removes it
        atom_ptr = torch.cat([graphs.atom_ptr[:1], graphs.atom_ptr[valid + 1]])
        edge_ptr = torch.cat([graphs.edge_ptr[:1], graphs.edge_ptr[valid + 1]])
        self._data = Data(x=graphs.x, edge_index=graphs.edge_index, edge_attr=graphs.edge_attr, y=table.targets)
        each = torch.arange(len(kept) + 1)
        self.slices = {"x": atom_ptr, "edge_index": edge_ptr, "edge_attr": edge_ptr, "y": each}
        if table.bounds is not None:
            self._data.y_bound, self.slices["y_bound"] = table.bounds, each
        self.descriptor_dim = 0
        if kinds:
            self._data.descriptors = torch.cat([_descriptors(whole, kind, cache) for kind in kinds], dim=1)[valid]
            self.slices["descriptors"] = each
            self.descriptor_dim = self._data.descriptors.size(1)

    @property
    def smiles(self) -> list[str]:
        return [self._smiles[index] for index in self.indices()]

    @property
    def targets(self) -> Tensor:
        """float32 ``[n, T]``; NaN where a value is missing."""
        return self._data.y if self._indices is None else self._data.y[list(self._indices)]

    @property
    def bounds(self) -> Tensor | None:
        """float32 ``[n, T]``, see ``y_bound``; ``None`` where targets are not censored."""
        if "y_bound" not in self._data:
            return None
        return self._data.y_bound if self._indices is None else self._data.y_bound[list(self._indices)]

    @property
    def rows(self) -> list[int]:
        """The n row numbers in the source, as a spreadsheet shows them (the header is row 1)."""
        return [self._rows[index] for index in self.indices()]

    def column(self, name: str) -> list[str]:
        """Return the n values of another column, as text; refuse empty cells."""
        values = self.cells(name)
        if empty := [row for row, value in zip(self.rows, values, strict=True) if value is None]:
            rows = list_rows(empty, [""] * len(empty))
            raise DataError(f"{self._place}, column {name!r} has gaps: {rows}. Fill them, or choose another column.")
        return [value for value in values if value is not None]

    def cells(self, name: str) -> list[str | None]:
        """Return the n cells of another column, as text, ``None`` for an empty one."""
        require_columns(self._columns, [name], f"{self._place}, besides SMILES and targets,")
        return [self._columns[name][index] for index in self.indices()]


def _report_invalid(table: MoleculeTable, wrong: list[int], invalid: Invalid) -> None:
    texts = [table.smiles[index] for index in wrong]
    shown = [explain_unreadable(text) if len(text) > MAX_ATOMS else text for text in texts]
    rows = list_rows([table.rows[index] for index in wrong], shown)
    found = f"{len(wrong)} of {len(table.smiles)} SMILES in {table.place} cannot be read: {rows}"
    if len(wrong) == len(table.smiles):
        raise DataError(f"{found}. No molecule is left: check the column of SMILES.")
    if invalid == "refuse":
        raise DataError(f"{found}. Correct them, or leave these rows out with data.invalid=skip.")
    rank_zero_warn(f"{found}. These rows are left out.")


def _load_or_encode(table: MoleculeTable, cache: Path | None) -> Codes:
    def compute() -> dict[str, Tensor]:
        codes = encode_smiles(_with_progress(table.smiles, "Reading", "molecules"))
        return {name: torch.from_numpy(part) for name, part in codes._asdict().items()}

    value = load_or_compute(cache, f"featuriser {FEATURIZER_VERSION}", table.smiles, compute)
    return Codes(**{name: part.numpy() for name, part in value.items()})


def _descriptors(table: MoleculeTable, kind: FeatureName, cache: Path | None) -> Tensor:
    def compute() -> Tensor:
        return compute_descriptors(_with_progress(table.smiles, "Describing", f"molecules ({kind})"), kind)

    value = load_or_compute(cache, f"descriptors {kind} {len(descriptor_names(kind))}", table.smiles, compute)
    return clean_descriptors(value, kind)


def _with_progress(smiles: list[str], action: str, noun: str) -> Iterable[str]:
    if getattr(rank_zero_only, "rank", 0) == 0 and len(smiles) > _PROGRESS_FROM and sys.stderr.isatty():
        return track(smiles, f"{action} {noun}", console=terminal(stderr=True), transient=True)
    if len(smiles) > _REPORT_FROM:
        rank_zero_info(f"{action} {len(smiles):,} {noun}")
    return smiles


def unlabelled_molecules(
    source: NewSamples,
    record: Mapping[str, Any],
    reading: Reading,
    smiles_column: str,
    make: Callable[[MoleculeTable, Codes], Any],
) -> Iterator[Unlabelled]:
    """Read new molecules in chunks of rows, or of SMILES; ``make`` makes a data set of readable ones."""
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
    atoms, bonds = int(codes.num_atoms[:count].sum()), int(codes.num_bonds[:count].sum())
    arrays, ends = codes._asdict().values(), (atoms, bonds, bonds, count, count)
    parts = [np.split(values, [end]) for values, end in zip(arrays, ends, strict=True)]
    return Codes(*(first for first, _ in parts)), Codes(*(rest for _, rest in parts))


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
