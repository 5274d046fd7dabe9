"""New samples without targets: rows of a table in chunks, and the model inputs made from them."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from lightning_fl.core.errors import DataError
from lightning_fl.core.escaping import printable
from lightning_fl.data.table_file import is_text, read_table_file
from lightning_fl.data.text_table import PACKED, refuse_twice, require_columns, separator_of
from lightning_fl.files.user_file import existing_file, foreign_content

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["STANDARD_INPUT", "NewSamples", "Reading", "Unlabelled", "name_of_source", "read_rows", "read_smiles_column"]

#: Source of new samples: a file or folder, ``-`` for standard input, a table, or a list of texts (SMILES).
NewSamples: TypeAlias = "str | Path | pd.DataFrame | Sequence[str]"

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Reading:
    """Settings for reading new samples.

    Args:
        rows: maximal number of rows in a chunk.
        workers: processes that convert texts to samples; ``None`` for one per core, or one for few samples.
        smiles_column: the column of SMILES if it differs from the run's.
    """

    rows: int = 2_000
    workers: int | None = None
    smiles_column: str | None = None


@dataclass(frozen=True)
class Unlabelled:
    """A chunk of new samples.

    Attributes:
        frame: the n given rows, as texts if they come from a file; the index holds their numbers from 0.
        data: k samples preprocessed like the run's data, with meaningless targets, or a loader of them; ``None`` if k
            is 0.
        kept: the row of each sample, counted from 0 in the chunk, ascending.
        errors: row in the chunk -> reason why it has no sample.
        sizes: cost of each sample in memory and time, such as its atoms; ``None`` if they are equal.
    """

    frame: "pd.DataFrame"
    data: Any
    kept: list[int]
    errors: dict[int, str] = field(default_factory=dict)
    sizes: Sequence[int] | None = None


def read_rows(source: NewSamples, rows: int, *, text_column: str | None = None) -> "Iterator[pd.DataFrame]":
    """Read the rows of a table in chunks; a text file is streamed, so it may be larger than the memory.

    Args:
        source: a text file (possibly packed by gzip, bzip2 or xz; separators as in
            :mod:`lightning_fl.data.text_table`), ``-`` for standard input, or a table. A list of texts is a table of
            one column. Parquet, Excel, SDF and zip are read whole, see
            :func:`~lightning_fl.data.table_file.read_table_file`.
        rows: maximal number of rows in a chunk.
        text_column: the name of the column for a list; ``None`` if a list is not supported.

    Yields:
        Frames, with a running index from 0. The cells of a file are texts without leading blanks; empty lines are
        skipped.

    Raises:
        DataError: there is no such file, it is of another kind, is empty, has no rows, two columns of one name, or a
            row longer than the header.
    """
    import pandas as pd  # takes a second to import

    if isinstance(source, pd.DataFrame):
        table = source.reset_index(drop=True)
        twice = table.columns[table.columns.duplicated()]
        if len(twice):
            raise DataError(f"the table has the column {str(twice[0])!r} twice: rename or remove one.")
        if not len(table):
            raise DataError("the table has no rows: give at least one.")
        yield from (table.iloc[start : start + rows] for start in range(0, len(table), rows))
        return
    if not isinstance(source, str | Path):
        texts = list(source)
        if text_column is None or not texts or not all(isinstance(text, str) for text in texts):
            expected = "a file or a table" if text_column is None else "a file, a table or a non-empty list of texts"
            raise DataError(f"new samples of type {type(source).__name__}: give {expected}.")
        for start in range(0, len(texts), rows):
            part = texts[start : start + rows]
            yield pd.DataFrame({text_column: part}, index=range(start, start + len(part)), dtype=object)
        return
    if str(source) != STANDARD_INPUT and not is_text(path := existing_file(str(source), argument="")):
        table = read_table_file(path, smiles=text_column).fillna("").reset_index(drop=True)
        yield from (table.iloc[start : start + rows] for start in range(0, len(table), rows))
        return
    yield from _read_text_rows(str(source), rows)


def _read_text_rows(source: str, rows: int) -> "Iterator[pd.DataFrame]":
    import pandas as pd

    place = "standard input" if source == STANDARD_INPUT else source
    with _opened(source) as binary:
        text = io.TextIOWrapper(binary, encoding=_encoding(binary, place), newline="")
        reader: Any = None
        try:
            header, reader = _header(text, place)
            names = _names(header, place)
            start, cells = 0, []
            while True:
                before = reader.line_num
                row = next(reader, None)
                if row is not None and row:
                    if any(cell.strip() for cell in row[len(names) :]):
                        raise DataError(
                            f"{place} cannot be read as a table: line {before + 1} has {len(row)} cells, the header"
                            f" {len(names)}. Correct it, or quote texts with the separator."
                        )
                    cells.append([*row[: len(names)], *[""] * (len(names) - len(row))])
                if (row is None and cells) or len(cells) == rows:
                    yield pd.DataFrame(cells, columns=names, index=range(start, start + len(cells)), dtype=object)
                    start, cells = start + len(cells), []
                if row is None:
                    break
        except UnicodeDecodeError as error:
            raise DataError(
                f"{place} cannot be read as a table: it is not in UTF-8. Save it in UTF-8 (Excel's type CSV UTF-8)."
            ) from error
        except csv.Error as error:
            raise DataError(
                f"{place} cannot be read as a table: line {reader.line_num if reader else 1}: {error}. Correct it."
            ) from error
        except (OSError, EOFError) as error:
            raise DataError(f"{place} cannot be read to its end ({error}): fetch it again.") from error
        finally:
            text.detach()  # leave standard input open for the caller
    if not start:
        raise DataError(f"{place} has no rows of data, only a header: check the file.")


def _opened(source: str) -> Any:
    if source == STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer)
    path = existing_file(source, argument="")
    with path.open("rb") as stream:
        head = stream.read(512)
    if (kind := foreign_content(head)) is not None:
        raise DataError(f"{path} cannot be read as a table: {kind}.")
    opener: Any = next((opener for start, opener in PACKED.items() if head.startswith(start)), open)
    return opener(path, "rb")


def _encoding(binary: IO[bytes], place: str) -> str:
    """The encoding by the byte order mark, UTF-8 without one."""
    head = binary.peek(4)[:4] if hasattr(binary, "peek") else b""
    if not head:
        raise DataError(f"{place} is empty: check the file.")
    return "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"


def _header(text: IO[str], place: str) -> tuple[list[str], Any]:
    """The header's cells, and a reader of the rows below."""
    first = next((line for line in text if line.strip()), None)
    if first is None:
        raise DataError(f"{place} is empty: check the file.")
    if "\0" in first:
        raise DataError(f"{place} cannot be read as a table: it has zero bytes, so it is not a text. Check the file.")
    reader = csv.reader(chain([first], text), delimiter=separator_of(first), skipinitialspace=True, strict=True)
    return next(reader), reader


def _names(header: list[str], place: str) -> list[str]:
    names = [printable(name.strip(), keep="\n\t") or f"Unnamed: {number}" for number, name in enumerate(header)]
    refuse_twice(names, place)
    return names


def read_smiles_column(frame: "pd.DataFrame", column: str, place: str) -> list[str]:
    """Read a column of SMILES, its name in any case, as texts without surrounding blanks; "" for empty cells.

    Raises:
        DataError: there is no such column.
    """
    alike = [name for name in frame.columns if str(name).lower() == column.lower()]
    if column not in frame.columns and len(alike) == 1:
        column = alike[0]
    try:
        require_columns(frame, [column], place)
    except DataError as error:
        raise DataError(f"{error} Give the column of SMILES with --smiles_column.") from error
    return ["" if value is None or value != value else str(value).strip() for value in frame[column].tolist()]


def name_of_source(source: Any) -> str:
    """Name of a source of new samples, for messages."""
    if isinstance(source, str | Path):
        return "standard input" if str(source) == STANDARD_INPUT else str(source)
    return "the table"
