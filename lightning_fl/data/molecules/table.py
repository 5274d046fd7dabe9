"""Tables of molecules: SMILES, targets and further columns, read from a file and checked."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from lightning_fl.data.cards.catalogue import FORMATS, did_you_mean
from lightning_fl.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DRUGOOD_PARTS", "INVALID_POLICIES", "Invalid", "MoleculeTable", "list_rows", "read_table"]

#: The parts of a DrugOOD file, in the order in which they are read.
DRUGOOD_PARTS = ("train", "iid_val", "iid_test", "ood_val", "ood_test")
_LISTED = 10

#: What is done with SMILES that RDKit cannot read.
Invalid = Literal["refuse", "skip"]
INVALID_POLICIES: tuple[Invalid, ...] = ("refuse", "skip")


@dataclass(frozen=True)
class MoleculeTable:
    """n molecules with T targets, as they stand in their source.

    Attributes:
        smiles: n SMILES strings, blanks at both ends removed.
        targets: float32 ``[n, T]``; NaN where a value is missing.
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


def read_table(
    path: Path,
    *,
    file_format: str,
    smiles: str,
    targets: Sequence[str],
    units: Sequence[str],
    required: Sequence[str] = (),
    parts: Sequence[str] | None = None,
) -> MoleculeTable:
    """Read a file of molecules.

    Args:
        path: the file.
        file_format: ``"csv"``, ``"csv.gz"`` or ``"drugood-json"``: an object whose ``split`` holds lists of records,
            one list a part; the part's name is kept as the column ``split``.
        smiles: the column of SMILES.
        targets: the columns to predict, at least one.
        units: their units, as text.
        required: further columns that must be there.
        parts: the parts of a DrugOOD file to read, in this order; ``None`` for all.

    Raises:
        ConfigurationError: the format or a part is unknown, ``parts`` is given for another format, no target is named,
            or there is not one unit per target.
        DataError: the file cannot be read, is empty, lacks a column, a target is not a number or has no value at all.
    """
    if file_format not in FORMATS:
        raise ConfigurationError(f"file_format={file_format!r}: expected one of {', '.join(FORMATS)}.")
    if not targets or len(units) != len(targets):
        raise ConfigurationError(
            f"targets={list(targets)!r}, units={list(units)!r}: name at least one target and one unit for each."
        )
    if file_format == "drugood-json":
        frame = _read_drugood(path, DRUGOOD_PARTS if parts is None else parts)
        first_row = 1
    elif parts is not None:
        raise ConfigurationError(f"parts={list(parts)!r}: a file of format {file_format} has no parts; leave it out.")
    else:
        frame = _read_csv(path)
        first_row = 2  # the header is row 1
    frame.index += first_row
    for name in (smiles, *targets, *required):
        if name not in frame.columns:
            names = list(map(str, frame.columns))
            raise DataError(f"{path} has no column {name!r}{did_you_mean(name, names)}. It has {', '.join(names)}.")
    frame = frame.dropna(how="all")  # blank lines, which keep their row number
    if frame.empty:
        raise DataError(f"{path} has no rows of data, only a header: check the file.")
    others = [name for name in frame.columns if name not in (smiles, *targets)]
    return MoleculeTable(
        smiles=[_cell(value) or "" for value in frame[smiles]],
        targets=torch.stack([_numbers(frame[name], path) for name in targets], dim=1),
        target_names=list(targets),
        target_units=list(units),
        columns={str(name): [_cell(value) for value in frame[name]] for name in others},
        rows=list(map(int, frame.index)),
        place=str(path),
    )


def list_rows(rows: Sequence[int], values: Sequence[object]) -> str:
    """``"row 3 'abc', row 9 'x' and 4 more"``: the first ten rows with their values, for messages."""
    listed = ", ".join(f"row {row} {value!r}" for row, value in zip(rows[:_LISTED], values[:_LISTED], strict=True))
    return listed + (f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else "")


def _read_csv(path: Path) -> "pd.DataFrame":
    import pandas as pd  # takes a second to import

    try:
        # blank lines are kept to count rows as a spreadsheet does; numbers are read later, with their row
        return pd.read_csv(path, dtype=str, skip_blank_lines=False, encoding="utf-8-sig", index_col=False)
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty: check the file.") from error
    except (OSError, EOFError, ValueError) as error:  # ParserError and UnicodeDecodeError are ValueErrors
        raise DataError(f"{path} cannot be read as a table: {error}. Check that it is a CSV file.") from error


def _read_drugood(path: Path, parts: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd  # takes a second to import

    unknown = [part for part in parts if part not in DRUGOOD_PARTS]
    if unknown or not parts or len(set(parts)) != len(parts):
        raise ConfigurationError(f"parts={list(parts)!r}: name one or more of {', '.join(DRUGOOD_PARTS)}, each once.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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
    return frame


def _cell(value: object) -> str | None:
    """A cell as text without blanks at its ends, a whole number without a point; ``None`` for an empty cell."""
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer():  # what pandas makes of whole numbers in a column with gaps
        value = int(value)
    return str(value).strip() or None


def _numbers(column: "pd.Series", path: Path) -> Tensor:
    """A target column as float32 ``[n]``."""
    cells = [_cell(value) for value in column]
    numbers = [_number(cell) for cell in cells]
    wrong = [index for index, number in enumerate(numbers) if number is None]
    if wrong:
        raise DataError(
            f"{path}, target column {column.name!r}: {len(wrong)} values are not finite numbers: "
            f"{list_rows([int(column.index[i]) for i in wrong], [cells[i] for i in wrong])}. Correct them, or leave "
            "the cells empty for missing values."
        )
    if all(cell is None for cell in cells):
        raise DataError(f"{path}, target column {column.name!r} is empty: choose another column.")
    return torch.tensor(numbers, dtype=torch.float32)


def _number(cell: str | None) -> float | None:
    """NaN for a missing value, ``None`` for what is no finite float32."""
    if cell is None:
        return float("nan")
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) <= torch.finfo(torch.float32).max else None
