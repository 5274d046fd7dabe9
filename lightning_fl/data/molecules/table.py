"""Tables of molecules: SMILES, targets and further columns, read from a file and checked."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError, did_you_mean, listed
from lightning_fl.data.cards.catalogue import FORMATS
from lightning_fl.data.table_file import read_table_file
from lightning_fl.data.text_table import read_numbers, refuse_values, require_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "DRUGOOD_PARTS",
    "INVALID_POLICIES",
    "Invalid",
    "MoleculeTable",
    "TargetTransform",
    "Transform",
    "read_table",
]

#: The parts of a DrugOOD file, in the order in which they are read.
DRUGOOD_PARTS = ("train", "iid_val", "iid_test", "ood_val", "ood_test")
#: Beyond it, float32 cannot hold the sum of the squares of some thousands.
_LARGEST = 1e17

#: A bound: "at most" and "at least" are not told from "less" and "more".
_RELATION = r"([<>≤≥])\s*=?\s*(?=[-+.\d])"

#: What is done with SMILES that RDKit cannot read.
Invalid = Literal["refuse", "skip"]
INVALID_POLICIES: tuple[Invalid, ...] = ("refuse", "skip")


#: What a target may be changed by: its logarithm, or the negative of it, as in pIC50.
Transform = Literal["log10", "-log10"]


@dataclass(frozen=True)
class TargetTransform:
    """What the values of a target are changed by when they are read.

    Attributes:
        function: ``"log10"`` or ``"-log10"``, as in pIC50.
        factor: what values are multiplied by before: 1e-6 for micromolar to molar.
    """

    function: Transform
    factor: float = 1.0

    @property
    def sign(self) -> float:
        """Of the change: "at most" becomes "at least" where it is negative."""
        return -1.0 if self.function.startswith("-") else 1.0

    def values(self, numbers: "pd.Series") -> "pd.Series":
        """The changed numbers."""
        import numpy as np

        return self.sign * np.log10(self.factor * numbers)


@dataclass(frozen=True)
class MoleculeTable:
    """n molecules with T targets, as they stand in their source.

    Attributes:
        smiles: n SMILES strings, blanks at both ends removed.
        targets: float32 ``[n, T]``; NaN where a value is missing.
        bounds: float32 ``[n, T]``: 0 for a value, -1 for "at most", +1 for "at least"; ``None`` where all are values.
        target_names: the T columns' names.
        target_units: the T units, as text.
        columns: every other column: name to n texts, ``None`` where a cell is empty.
        rows: the n row numbers a spreadsheet shows: the header is row 1. (In a DrugOOD file: the number of the record,
            counted from 1 over the parts read.)
        place: where the molecules come from, for messages.
    """

    smiles: list[str]
    targets: Tensor
    target_names: list[str]
    target_units: list[str]
    columns: dict[str, list[str | None]]
    rows: list[int]
    place: str
    bounds: Tensor | None = None


def read_table(
    path: Path,
    *,
    file_format: str,
    smiles: str,
    targets: Sequence[str] | None,
    units: Sequence[str] | str,
    required: Sequence[str] = (),
    parts: Sequence[str] | None = None,
    not_targets: Sequence[str] = (),
    select: Mapping[str, str] | None = None,
    censored: bool = False,
    transforms: Mapping[str, TargetTransform] | None = None,
) -> MoleculeTable:
    """Read a file of molecules.

    Args:
        path: the file.
        file_format: ``"csv"`` or ``"csv.gz"`` for any table that
            :func:`~lightning_fl.data.table_file.read_table_file` reads, or ``"drugood-json"``: an object whose
            ``split`` holds lists of records, one list a part; the part's name is kept as the column ``split``.
        smiles: the column of SMILES.
        targets: the columns to predict, at least one; ``None`` for all but ``smiles``, ``required`` and
            ``not_targets`` that have a value in some row.
        units: their units, as text; one for all where ``targets`` is ``None``.
        required: further columns that must be there.
        parts: the parts of a DrugOOD file to read, in this order; ``None`` for all.
        not_targets: see ``targets``.
        select: column -> the value that rows must have there; ``None`` for all rows.
        censored: targets may be bounds, such as "> 99.5" or "<= 0.05"; else these are refused.
        transforms: target -> what its values are changed by.

    Raises:
        ConfigurationError: the format or a part is unknown, ``parts`` is given for another format, no target is named,
            or there is not one unit per target.
        DataError: the file cannot be read, is empty, lacks a column, a target is not a number or has no value at all.
    """
    if file_format not in FORMATS:
        raise ConfigurationError(f"file_format={file_format!r}: expected one of {', '.join(FORMATS)}.")
    if targets is not None and (not targets or len(units) != len(targets)):
        raise ConfigurationError(
            f"targets={list(targets)!r}, units={list(units)!r}: name at least one target and one unit for each."
        )
    if file_format == "drugood-json":
        frame = _read_drugood(path, DRUGOOD_PARTS if parts is None else parts)
    elif parts is not None:
        raise ConfigurationError(f"parts={list(parts)!r}: a file of format {file_format} has no parts; leave it out.")
    else:
        frame = read_table_file(path, smiles=smiles)
    require_columns(frame, (smiles, *(targets or ()), *required, *(select or {})), str(path))
    for column, value in (select or {}).items():
        frame = _selected(frame, column, value, path)
    if targets is None:
        known = {smiles, *required, *not_targets}
        targets = [str(name) for name in frame.columns if name not in known and frame[name].notna().any()]
        if not targets:
            raise DataError(f"{path} has no column with a value to predict besides {', '.join(sorted(known))}.")
        units = [str(units)] * len(targets)
    others = [name for name in frame.columns if name not in (smiles, *targets)]
    read = [_numbers(frame[name], path, censored, (transforms or {}).get(name)) for name in targets]
    bounds = torch.stack([bound for _, bound in read], dim=1)
    return MoleculeTable(
        smiles=[value or "" for value in frame[smiles]],
        targets=torch.stack([numbers for numbers, _ in read], dim=1),
        bounds=bounds if bool(bounds.any()) else None,
        target_names=list(targets),
        target_units=list(units),
        columns={str(name): frame[name].tolist() for name in others},
        rows=list(map(int, frame.index)),
        place=str(path),
    )


def _selected(frame: "pd.DataFrame", column: str, value: str, path: Path) -> "pd.DataFrame":
    """The rows that have a value in a column."""
    found = frame[frame[column] == value]
    if found.empty:
        known = sorted({str(other) for other in frame[column] if other is not None})
        raise DataError(
            f"{path}, column {column!r} has no {value!r}{did_you_mean(value, known)}. It has {listed(known)}."
        )
    return found


def _read_drugood(path: Path, parts: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd  # takes a second to import

    unknown = [part for part in parts if part not in DRUGOOD_PARTS]
    if unknown or not parts or len(set(parts)) != len(parts):
        raise ConfigurationError(f"parts={list(parts)!r}: name one or more of {', '.join(DRUGOOD_PARTS)}, each once.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}. Check the file.") from error
    split = content.get("split") if isinstance(content, dict) else None
    if not isinstance(split, dict):
        raise DataError(f"{path} is not a DrugOOD file: expected an object with the key 'split'.")
    frames = []
    for part in parts:
        records = split.get(part)
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            raise DataError(f"{path} has no list of records in split[{part!r}]; its parts are {', '.join(split)}.")
        frames.append(pd.DataFrame.from_records(records).assign(split=part))
    frame = pd.concat([part for part in frames if len(part)] or frames, ignore_index=True)
    if frame.empty:
        raise DataError(f"{path} has no records in {', '.join(parts)}: check the file.")
    frame.index += 1
    frame = frame.map(_cell).astype(object)
    return frame.where(frame.notna(), None)


def _cell(value: object) -> str | None:
    """A cell as text without blanks at its ends, a whole number without a point; ``None`` for an empty cell."""
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer():  # what pandas makes of whole numbers in a column with gaps
        value = int(value)
    return str(value).strip() or None


def _numbers(
    column: "pd.Series", path: Path, censored: bool, transform: TargetTransform | None
) -> tuple[Tensor, Tensor]:
    """A target column as float32 ``[n]``, and which of its values are bounds, float32 ``[n]``."""
    place = f"{path}, target column {column.name!r}"
    bounds = torch.zeros(len(column))
    if censored:
        column, bounds = _without_relations(column)
    numbers, wrong = read_numbers(column)
    mend = "Correct them, or leave the cells empty for missing values"
    if not censored and wrong.astype(str).str.match(_RELATION).any():
        mend += ", or read bounds such as '>5' as censored values with censored: true"
    refuse_values(wrong, place, "are not finite numbers", mend)
    if transform is not None:
        refuse_values(
            column[numbers <= 0], place, f"are not above 0, and have no logarithm ({transform.function})", mend
        )
        numbers, bounds = transform.values(numbers), bounds * transform.sign
    large = column[numbers.abs() > _LARGEST]
    refuse_values(
        large, place, f"are above {_LARGEST:g}, where float32 cannot hold their squares", "Choose a smaller unit"
    )
    if numbers.isna().all():
        raise DataError(f"{place} is empty: choose another column.")
    return torch.from_numpy(numbers.to_numpy(copy=True)).float(), bounds


def _without_relations(column: "pd.Series") -> "tuple[pd.Series, Tensor]":
    """The cells without "<" and ">" before a number, and -1 or +1 where one stood."""
    cells, bounds = column.copy(), torch.zeros(len(column))
    for place, cell in enumerate(column):
        if cell is not None and (found := re.match(_RELATION, str(cell))):
            cells.iloc[place] = str(cell)[found.end() :]
            bounds[place] = -1.0 if found[1] in ("<", "≤") else 1.0
    return cells, bounds
