"""New samples without targets: rows of a table in chunks, and the model inputs made from them."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lightning_fl.core.errors import DataError
from lightning_fl.files.table_file import kind_of_table, read_table_file
from lightning_fl.files.text_table import column_names, refuse_twice, require_columns, smiles_name, text_rows, unpacked
from lightning_fl.files.user_file import existing_file

if TYPE_CHECKING:
    import pandas as pd

#: Source of new samples: a file or folder, ``-`` for standard input, a table, or a list of texts (SMILES).
NewSamples: TypeAlias = "str | Path | pd.DataFrame | Sequence[str]"

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Reading:
    """Settings for reading new samples."""

    rows: int = 2_000  #: of a chunk, at most
    workers: int | None = None  #: processes that convert texts; ``None`` for one per core, or one for few samples
    smiles_column: str | None = None  #: the column of SMILES if it differs from the run's


@dataclass(frozen=True)
class Unlabelled:
    """A chunk of new samples."""

    frame: "pd.DataFrame"  #: the n given rows, as texts if they come from a file; the index has their numbers from 0
    data: Any  #: k samples preprocessed like the run's, with meaningless targets, or a loader of them; ``None`` if k=0
    kept: list[int]  #: the row of each sample, counted from 0 in the chunk, ascending
    errors: dict[int, str] = field(default_factory=dict)  #: row in the chunk -> reason why it has no sample
    sizes: Sequence[int] | None = None  #: cost of each in memory and time, such as its atoms; ``None`` if equal


def read_rows(source: NewSamples, rows: int, *, text_column: str | None = None) -> "Iterator[pd.DataFrame]":
    """Read the rows of a table in chunks, with a running index from 0; text files are streamed, others read whole.

    A list of texts is a table of the one column ``text_column``; ``None`` if a list is not supported.
    """
    import pandas as pd  # takes a second to import

    if isinstance(source, str | Path):
        path = None if str(source) == STANDARD_INPUT else existing_file(str(source), argument="")
        if path is None or kind_of_table(path) == "text":
            yield from _read_text_rows(path, rows)
            return
        table = read_table_file(path, smiles=text_column).fillna("")
    elif isinstance(source, pd.DataFrame):
        table = source
        refuse_twice(list(map(str, table.columns)), "the table")
        if not len(table):
            raise DataError("the table has no rows: give at least one.")
    else:
        texts = list(source)
        if text_column is None or not texts or not all(isinstance(text, str) for text in texts):
            expected = "a file or a table" if text_column is None else "a file, a table or a non-empty list of texts"
            raise DataError(f"new samples of type {type(source).__name__}: give {expected}.")
        table = pd.DataFrame({text_column: texts}, dtype=object)
    table = table.reset_index(drop=True)
    yield from (table.iloc[start : start + rows] for start in range(0, len(table), rows))


def _read_text_rows(path: Path | None, rows: int) -> "Iterator[pd.DataFrame]":
    """Read chunks of a text file; ``None`` is standard input, which is left open."""
    import pandas as pd

    place = "standard input" if path is None else str(path)
    with nullcontext(sys.stdin.buffer) if path is None else unpacked(path) as stream:
        found = text_rows(stream, place)
        names = column_names(next(found)[1])
        refuse_twice(names, place)
        start = 0
        while part := list(islice(found, rows)):
            cells = [[*row, *[""] * (len(names) - len(row))] for _, row in part]
            yield pd.DataFrame(cells, columns=names, index=range(start, start + len(cells)), dtype=object)
            start += len(cells)
    if not start:
        raise DataError(f"{place} has no rows of data, only a header: check the file.")


def read_smiles_column(frame: "pd.DataFrame", column: str, place: str) -> list[str]:
    """Read a column of SMILES (:func:`smiles_name`) as texts without surrounding blanks; "" for empty cells."""
    column = smiles_name(frame.columns, column)
    try:
        require_columns(frame, [column], place)
    except DataError as error:
        raise DataError(f"{error} Give the column of SMILES with --smiles_column.") from error
    return [str(value).strip() for value in frame[column].astype(object).where(frame[column].notna(), "")]


def name_of_source(source: Any) -> str:
    """Name of a source of new samples, for messages."""
    if isinstance(source, str | Path):
        return "standard input" if str(source) == STANDARD_INPUT else str(source)
    return "the table"
