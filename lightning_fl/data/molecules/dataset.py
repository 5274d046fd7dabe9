"""The data set of molecular graphs that all clients share, featurised once and kept on disk."""

import hashlib
import io
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import rdkit
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from lightning_fl.atomic import remove_leftovers, whole_file
from lightning_fl.data.cards.catalogue import did_you_mean
from lightning_fl.data.molecules.featurizer import FEATURIZER_VERSION, MoleculeCodes, encode_smiles
from lightning_fl.data.molecules.table import INVALID_POLICIES, Invalid, MoleculeTable
from lightning_fl.data.text_table import list_rows
from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.tensor_files import read_torch

__all__ = ["MoleculeDataset"]

_PROGRESS_FROM = 2000
_LINE_FROM = 5000


class MoleculeDataset(InMemoryDataset):
    """n molecules as graphs with the features of :mod:`lightning_fl.data.molecules.featurizer`.

    An item is a ``torch_geometric.data.Data`` with ``x [V, ATOM_DIM]``, ``edge_index [2, E]``, ``edge_attr
    [E, BOND_DIM]`` and ``y [1, T]`` float32, NaN where a target is missing. A molecule without bonds has E = 0.

    Indexing with a slice or a list gives a view; ``smiles``, ``targets``, ``rows`` and ``column`` follow it.

    Args:
        table: the molecules.
        invalid: what to do with SMILES that RDKit cannot read: ``"refuse"`` them with an error or ``"skip"`` their rows
            with a warning. Either names the rows.
        cache: folder that keeps the features under a sum of the SMILES and the versions of RDKit and the featuriser;
            ``None`` to keep nothing. A damaged entry is made again, a folder that cannot be written is done without.
        codes: the molecules' features, where they are made already.

    Raises:
        ConfigurationError: ``invalid`` is unknown.
        DataError: SMILES cannot be read and ``invalid="refuse"``, or none is left.
    """

    def __init__(
        self,
        table: MoleculeTable,
        *,
        invalid: Invalid = "refuse",
        cache: Path | None = None,
        codes: MoleculeCodes | None = None,
    ) -> None:
        if invalid not in INVALID_POLICIES:
            raise ConfigurationError(f"invalid={invalid!r}: expected one of {', '.join(INVALID_POLICIES)}.")
        super().__init__()
        codes = _load_or_encode(table, cache) if codes is None else codes
        valid = (codes.num_atoms > 0).nonzero()[:, 0]
        if len(valid) < len(table.smiles):
            _report_invalid(table, (codes.num_atoms == 0).nonzero()[:, 0].tolist(), invalid)
        kept: list[int] = valid.tolist()
        self.target_names = list(table.target_names)
        self.target_units = list(table.target_units)
        self._place = table.place
        self._smiles = [table.smiles[index] for index in kept]
        self._rows = [table.rows[index] for index in kept]
        self._columns = {name: [values[index] for index in kept] for name, values in table.columns.items()}
        graphs = codes.graphs()
        # a molecule that could not be read has no atoms and no bonds: dropping its pointer removes it
        atom_ptr = torch.cat([graphs.atom_ptr[:1], graphs.atom_ptr[valid + 1]])
        edge_ptr = torch.cat([graphs.edge_ptr[:1], graphs.edge_ptr[valid + 1]])
        targets = table.targets[valid]
        self._data = Data(x=graphs.x, edge_index=graphs.edge_index, edge_attr=graphs.edge_attr, y=targets)
        self.slices = {
            "x": atom_ptr,
            "edge_index": edge_ptr,
            "edge_attr": edge_ptr,
            "y": torch.arange(len(targets) + 1),
        }

    @property
    def smiles(self) -> list[str]:
        """The n SMILES strings, as they stand in the source."""
        return [self._smiles[index] for index in self.indices()]

    @property
    def targets(self) -> Tensor:
        """float32 ``[n, T]``; NaN where a value is missing."""
        return self._data.y if self._indices is None else self._data.y[list(self._indices)]

    @property
    def rows(self) -> list[int]:
        """The n row numbers in the source, as a spreadsheet shows them (the header is row 1)."""
        return [self._rows[index] for index in self.indices()]

    @property
    def column_names(self) -> list[str]:
        """The further columns of the source."""
        return list(self._columns)

    def column(self, name: str) -> list[str]:
        """The n values of a further column, as text.

        Raises:
            DataError: there is no such column, or a cell of it is empty.
        """
        if name not in self._columns:
            known = ", ".join(self._columns) or "none"
            raise DataError(
                f"{self._place} has no column {name!r}{did_you_mean(name, self._columns)}. Besides molecules and "
                f"targets it has: {known}."
            )
        values = [self._columns[name][index] for index in self.indices()]
        empty = [row for row, value in zip(self.rows, values, strict=True) if value is None]
        if empty:
            raise DataError(
                f"{self._place}, column {name!r} is empty in {len(empty)} rows: {list_rows(empty, [''] * len(empty))}. "
                "Fill them in, or choose another column."
            )
        return [value for value in values if value is not None]


def _report_invalid(table: MoleculeTable, wrong: list[int], invalid: Invalid) -> None:
    listed = list_rows([table.rows[index] for index in wrong], [table.smiles[index] for index in wrong])
    found = f"{len(wrong)} of {len(table.smiles)} SMILES in {table.place} cannot be read: {listed}"
    if len(wrong) == len(table.smiles):
        raise DataError(f"{found}. No molecule is left: check the column of SMILES.")
    if invalid == "refuse":
        raise DataError(f"{found}. Correct them, or leave these rows out with --data.invalid skip.")
    rank_zero_warn(f"{found}. These rows are left out.")


def _load_or_encode(table: MoleculeTable, cache: Path | None) -> MoleculeCodes:
    """The molecules' codes, from the cache if they are there."""
    if cache is None:
        return encode_smiles(_with_progress(table.smiles))
    versions = f"featuriser {FEATURIZER_VERSION}, rdkit {rdkit.__version__}"
    key = hashlib.sha256(json.dumps([versions, table.smiles]).encode()).hexdigest()
    path = cache / f"{key}.pt"
    try:
        return _load(path, len(table.smiles))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # nothing is there yet; what is wrong with the folder is said below
    except Exception as error:  # whatever its bytes lead to
        rank_zero_warn(f"cached features {path} are damaged ({type(error).__name__}) and are made again.")
    codes = encode_smiles(_with_progress(table.smiles))
    content = io.BytesIO()  # torch.save says in words of its own what is wrong with a disk
    torch.save(asdict(codes), content)
    try:
        remove_leftovers(cache)
        with whole_file(path, by_several=True) as file:
            file.write(content.getbuffer())
    except OSError as error:
        rank_zero_warn(
            f"cannot keep features in {cache} ({error}), so they are computed in every run: set LIGHTNING_FL_CACHE to "
            "a folder that can be written."
        )
    return codes


def _load(path: Path, num_molecules: int) -> MoleculeCodes:
    """Cached codes."""
    if not path.exists():
        raise FileNotFoundError(path)
    codes = MoleculeCodes(**read_torch(path, "a file of features", "They are made again.", error=DataError))
    if len(codes.num_atoms) != num_molecules:
        raise ValueError(f"it holds {len(codes.num_atoms)} molecules, not {num_molecules}")
    return codes


def _with_progress(smiles: list[str]) -> Iterable[str]:
    if getattr(rank_zero_only, "rank", 0) == 0 and len(smiles) > _PROGRESS_FROM and sys.stderr.isatty():
        return track(smiles, "Reading molecules", console=Console(stderr=True), transient=True)
    if len(smiles) > _LINE_FROM:
        rank_zero_info(f"Reading {len(smiles):,} molecules")
    return smiles
