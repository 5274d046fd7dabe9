"""Strict reader of tables in text files, and checks of the cells of any table.

Pandas shifts rows with too many cells silently; here every such row is refused. The separator is the most frequent of
comma, semicolon, tab and bar in the header; the file may be packed by gzip, bzip2, xz or zip, whatever its name.
"""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.core.errors import DataError, cut, did_you_mean, listed
from lightning_fl.core.escaping import printable

if TYPE_CHECKING:
    import pandas as pd

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
#: First bytes of packed files -> function that opens them.
_PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
#: Largest unpacked table, in characters: a small file may unpack to any size and fill the memory.
_MOST_CHARACTERS = 4 << 30
_LISTED_ROWS = 10
#: Byte order marks, the longer first: UTF-32's begins like UTF-16's.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
}
#: Texts for a missing number, in lower case. In a column of texts they are values: "NA" is a country.
_GAPS = frozenset({"na", "n/a", "#n/a", "<na>", "nan", "null", "none"})
#: Usual names of a column of SMILES, in lower case.
_SMILES = ("smiles", "canonical_smiles", "isomeric_smiles", "smi")


def read_text_table(path: Path) -> "pd.DataFrame":
    """Read a table with a header as texts without surrounding blanks, ``None`` for an empty cell.

    The index holds row numbers as in a spreadsheet: the header is row 1 if it is the first line. Empty rows and columns
    without a name and any text are left out; a short row lacks its last cells. Refused are files that cannot be read,
    other kinds, tables without rows, two columns of one name, a row longer than the header, and an open quote.
    """
    import pandas as pd  # takes a second to import

    with unpacked(path) as stream:
        rows = text_rows(stream, str(path), most=_MOST_CHARACTERS)
        _, header = next(rows)
        body = {number: [cell.strip() or None for cell in row] for number, row in rows}
    body = {number: row for number, row in body.items() if any(row)}
    if not body:
        raise DataError(f"{path} has no rows of data, only a header: check the file.")
    filled = {position for row in body.values() for position, cell in enumerate(row) if cell}
    kept = [position for position, name in enumerate(header) if name.strip() or position in filled]
    names = column_names(header)
    refuse_twice([names[position] for position in kept], path, kept)
    cells = [[row[position] if position < len(row) else None for position in kept] for row in body.values()]
    return pd.DataFrame(cells, index=list(body), columns=[names[position] for position in kept], dtype=object)


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked if it is a gzip, bzip2, xz, or zip archive of a single file."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive, archive.open(_only_member(archive, path)) as stream:
                yield stream
        else:
            with path.open("rb") as file:
                head = file.read(6)
            opener: Any = next((opener for start, opener in _PACKED.items() if head.startswith(start)), open)
            with opener(path, "rb") as stream:
                yield stream
    except (OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a table: {error}. Check the file, or fetch it again.") from error


def _only_member(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    """The only file in an archive, without folders and macOS metadata."""
    members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
    if len(members) != 1:
        names = listed([one.filename for one in members], 5) or "nothing"
        raise DataError(f"{path} is a zip archive with {names} in it: pack a single table, or unpack it.")
    return members[0]


def text_lines(stream: IO[bytes], place: str, most: float = math.inf) -> Iterator[str]:
    """Decode a text in UTF-8 or, with a byte order mark, UTF-16 or UTF-32, line by line; the stream is left open."""
    head = stream.peek(4)[:4]  # type: ignore[attr-defined]
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8")
    text = io.TextIOWrapper(stream, encoding, errors="surrogateescape", newline="")
    total = 0
    try:
        for number, line in enumerate(iter(partial(text.readline, _MOST_CHARACTERS), ""), 1):
            total += len(line)
            if total > most:
                raise DataError(f"{place} holds more than {_MOST_CHARACTERS >> 30} GiB of text: split it.")
            if "\0" in line:
                raise DataError(f"{place} cannot be read as a table: zero bytes in line {number}. Save it as CSV.")
            if not line.isascii() and (wrong := re.search("[\udc80-\udcff]", line)):
                byte = f"the byte 0x{ord(wrong[0]) - 0xDC00:02x} in line {number}"
                fault = f"{byte} is not {encoding.removesuffix('-sig').upper()}"
                raise DataError(f"{place} cannot be read as a table: {fault}. Save the file as CSV (UTF-8).")
            yield line
    finally:
        if not stream.closed:
            text.detach()  # leaves standard input open


def text_rows(stream: IO[bytes], place: str, most: float = math.inf) -> Iterator[tuple[int, list[str]]]:
    """Split a text into rows: number as in a spreadsheet, and cells without leading blanks.

    The header is the first row with any text; empty lines are skipped.
    """
    lines, above = text_lines(stream, place, most), 0
    for first in lines:
        if first.strip():
            break
        above += 1
    else:
        raise DataError(f"{place} is empty: check the file.")
    head, quotes = [first], first.count('"')
    while quotes % 2 and (further := next(lines, "")):  # a line break within quotes
        head.append(further)
        quotes += further.count('"')
    separator = max(_SEPARATORS, key=re.sub('"[^"]*"', "", "".join(head)).count)
    if separator != ",":
        rank_zero_info(f"{place}: cells are separated by {_SEPARATORS[separator]}")
    reader = csv.reader(chain(head, lines), delimiter=separator, skipinitialspace=True, strict=True)
    number, width = above, 0
    while True:
        line, number = above + reader.line_num + 1, number + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            opened = "unexpected end" in str(error) or "field limit" in str(error)
            fault = f"a quote opened in line {line} is not closed" if opened else f"line {line}: {error}"
            raise DataError(f"{place} cannot be read as a table: {fault}. Correct it.") from error
        if cells is None:
            break
        if width and any(cell.strip() for cell in cells[width:]):
            fault = f"cannot be read as a table: line {line} has {len(cells)} cells, the header {width}"
            raise DataError(f"{place} {fault}. Correct it, or quote texts with {separator!r}.")
        if width or any(cell.strip() for cell in cells):
            width = width or len(cells)
            if cells:
                yield number, cells[:width]
    if not width:
        raise DataError(f"{place} is empty: check the file.")


def column_names(header: Sequence[str]) -> list[str]:
    """Names of columns, safe to print; ``Unnamed: 3`` for an empty cell."""
    return [printable(name.strip(), keep="\n\t") or f"Unnamed: {number}" for number, name in enumerate(header)]


def refuse_twice(names: Sequence[str], place: Path | str, kept: Sequence[int] | None = None) -> None:
    """Refuse columns of one name; ``kept`` are their positions in the file, from 0, if some were left out."""
    for name in names:
        if names.count(name) > 1:
            numbers = range(len(names)) if kept is None else kept
            places = [str(position + 1) for position, other in zip(numbers, names, strict=True) if other == name]
            which = f"{len(places)} times, as columns {', '.join(places)}"
            raise DataError(f"{place} has the column {name!r} {which}: rename them.")


def require_columns(columns: Iterable[Any], names: Collection[str], place: str, what: str = "column") -> None:
    """Refuse names that are not among the columns of a table (or a table itself), with ``DataError``."""
    known = list(map(str, columns))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise DataError(f"{place} has no {what} {name!r}{hint}. It has {listed(known, near=name) or 'none'}.")


def smiles_name(columns: Iterable[Any], name: str) -> str:
    """The column ``name``, or, if there is none, the one of this name in another case; for "smiles" also a synonym."""
    known = list(map(str, columns))
    for wanted in _SMILES if name == "smiles" else (name.lower(),):
        if name not in known and (alike := [column for column in known if column.lower() == wanted]):
            return alike[0] if len(alike) == 1 else name
    return name


def read_numbers(column: "pd.Series") -> "tuple[pd.Series, pd.Series]":
    """Convert texts to float64, NaN for missing ones such as "NA"; return also the cells that are neither."""
    import pandas as pd

    given = column.where(column.notna() & ~column.astype(str).str.lower().isin(_GAPS), None)
    numbers = pd.to_numeric(given, errors="coerce").astype(float)
    finite = numbers.abs() < float("inf")
    return numbers.where(finite), column[given.notna() & ~finite]


def refuse_values(wrong: "pd.Series", place: str, fault: str, remedy: str) -> None:
    """Refuse wrong values of a column, by row number, if there are any; ``fault`` is such as "are not numbers"."""
    if len(wrong):
        rows = list_rows(list(map(int, wrong.index)), wrong.tolist())
        if wrong.astype(str).str.fullmatch(r"[-+]?\d*,\d+").any():
            remedy += "; use a decimal point"
        raise DataError(f"{place} has values that {fault}: {rows}. {remedy}.")


def list_rows(rows: Sequence[int], values: Sequence[object]) -> str:
    """``"row 3 'abc', row 9 'x' and 4 more"``: the first ten rows with their values, for messages."""
    shown = ("(empty)" if value in (None, "") or value != value else cut(repr(value)) for value in values)
    text = ", ".join(f"row {row} {value}" for row, value in zip(rows[:_LISTED_ROWS], shown, strict=False))
    return text + (f" and {len(rows) - _LISTED_ROWS} more" if len(rows) > _LISTED_ROWS else "")
