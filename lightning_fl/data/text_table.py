"""Strict reader of tables in text files: unpacks, decodes, splits into cells and checks; and the numbers in them.

Reads every text table of users and cards. The separator is the most frequent of comma, semicolon, tab and bar in the
header; the file may be packed by gzip, bzip2, xz or zip, whatever its name.
"""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.core.errors import DataError, cut, did_you_mean, listed
from lightning_fl.core.escaping import printable
from lightning_fl.files.user_file import foreign_content

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "PACKED",
    "is_excel",
    "list_rows",
    "read_numbers",
    "read_packed",
    "read_text",
    "read_text_table",
    "refuse_twice",
    "refuse_values",
    "require_columns",
    "separator_of",
]

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
#: First bytes of packed files -> function that opens them.
PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ZIP = b"PK\x03\x04"
_MOST_BYTES = 4 << 30
_HEAD_BYTES = 512
_LISTED_ROWS = 10
#: Byte order marks, the longer first: UTF-32's begins like UTF-16's.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: Texts for a missing number, in lower case. In a column of texts they are values: "NA" is a country.
_GAPS = frozenset({"na", "n/a", "#n/a", "<na>", "nan", "null", "none"})
#: Patterns of wrong numbers -> hint in the message.
_HINTS = (
    (re.compile(r"[-+]?[\d.]*\d,\d[\d.,]*"), " (use a decimal point and no thousands separators)"),
    (re.compile(r"[<>=~≤≥≈±].*"), " (a bound is not a value)"),
    (re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*[^\d\s.eE+-].*"), " (give the number without its unit)"),
)


def read_text_table(path: Path) -> "pd.DataFrame":
    """Read a table with a header.

    Returns:
        Texts without surrounding blanks, ``None`` for an empty cell. The index holds row numbers as in a spreadsheet:
        the header is row 1 if it is the first line. Empty rows and columns without a name and any text are left out; a
        short row lacks its last cells.

    Raises:
        DataError: the file cannot be read, is not a text, is empty, has no rows, two columns of one name, a row longer
            than the header, or an open quote.
    """
    import pandas as pd  # takes a second to import

    text = read_text(path)
    separator = separator_of(next((line for line in io.StringIO(text, newline=None) if line.strip()), ""))
    if separator != ",":
        rank_zero_info(f"{path}: cells are separated by {_SEPARATORS[separator]}")
    rows = _rows(text, separator, path)
    if not rows:
        raise DataError(f"{path} is empty: check the file.")
    (_, header), *body = rows.items()
    names, kept = _columns(header, [row for _, row in body], path)
    if not body:
        raise DataError(f"{path} has no rows of data, only a header: check the file.")
    cells = [[row[position] if position < len(row) else None for position in kept] for _, row in body]
    return pd.DataFrame(cells, index=[number for number, _ in body], columns=names, dtype=object)


def require_columns(frame: "pd.DataFrame", names: Collection[str], place: str) -> None:
    """Refuse names that are not columns of a table, with ``DataError``."""
    known = list(map(str, frame.columns))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise DataError(f"{place} has no column {name!r}{hint}. It has {listed(known, near=name)}.")


def read_numbers(column: "pd.Series") -> "tuple[pd.Series, pd.Series]":
    """Convert a column of texts to numbers.

    Returns:
        float64 numbers, NaN for missing ones such as "NA"; and the cells that are neither a finite number nor missing.
    """
    import pandas as pd

    given = column.where(column.notna() & ~column.astype(str).str.lower().isin(_GAPS), None)
    numbers = pd.to_numeric(given, errors="coerce").astype(float)
    finite = numbers.abs() < float("inf")
    return numbers.where(finite), column[given.notna() & ~finite]


def refuse_values(wrong: "pd.Series", place: str, fault: str, remedy: str) -> None:
    """Refuse wrong values of a column, if there are any.

    Args:
        wrong: the values; the index holds their row numbers.
        place: column and file, for the message.
        fault: what is wrong, such as "are not finite numbers".
        remedy: what to do.

    Raises:
        DataError: lists the first values.
    """
    if len(wrong) == 0:
        return
    hint = next((hint for pattern, hint in _HINTS if pattern.fullmatch(str(wrong.iloc[0]))), "")
    rows = list_rows(list(map(int, wrong.index)), wrong.tolist())
    raise DataError(f"{place}: {len(wrong)} values {fault}: {rows}. {remedy}{hint}.")


def list_rows(rows: Sequence[int], values: Sequence[object]) -> str:
    """``"row 3 'abc', row 9 'x' and 4 more"``: the first ten rows with their values, for messages."""
    pairs = zip(rows[:_LISTED_ROWS], values[:_LISTED_ROWS], strict=True)
    text = ", ".join(f"row {row} {cut(repr(value))}" for row, value in pairs)
    return text + (f" and {len(rows) - _LISTED_ROWS} more" if len(rows) > _LISTED_ROWS else "")


def read_text(path: Path) -> str:
    """Read and unpack a text.

    Raises:
        DataError: the file cannot be read, or is not a text in UTF-8 (or, with a byte order mark, UTF-16 or UTF-32).
    """
    content = read_packed(path)
    kind = foreign_content(content[:_HEAD_BYTES])
    if content.startswith(_ZIP) and _seems_excel(content[:_HEAD_BYTES], path):
        kind = "it is an Excel file: save it as CSV (UTF-8)"
    if kind is not None:
        raise DataError(f"{path} cannot be read as a table: {kind}.")
    return _decode(content, path)


def read_packed(path: Path) -> bytes:
    """Read and unpack a file: gzip, bzip2, xz, or zip with a single file.

    Raises:
        DataError: the file cannot be read, is damaged, unpacks to more than 4 GiB, or is an archive of several files.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
        if head.startswith(_ZIP) and not _seems_excel(head, path):
            return _only_member(path)
        opener: Any = next((opener for start, opener in PACKED.items() if head.startswith(start)), open)
        with opener(path, "rb") as unpacked:
            return _read_bounded(unpacked, path)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a table: {error}. Check the file, or fetch it again.") from error


def _seems_excel(head: bytes, path: Path) -> bool:
    return b"[Content_Types].xml" in head or is_excel(path)


def is_excel(path: Path) -> bool:
    """Whether a zip archive is an Excel file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _only_member(path: Path) -> bytes:
    """The only file in an archive, without folders and macOS metadata."""
    with zipfile.ZipFile(path) as archive:
        members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
        if len(members) != 1:
            names = listed([one.filename for one in members], 5) or "nothing"
            raise DataError(f"{path} is a zip archive with {names} in it: pack a single table, or unpack it.")
        if members[0].flag_bits & 1:
            raise DataError(f"{path} is a zip archive with a password: unpack it.")
        with archive.open(members[0]) as unpacked:
            return _read_bounded(unpacked, path)


def _read_bounded(stream: IO[bytes], path: Path) -> bytes:
    """Read a stream up to a limit: a small file may unpack to any size and fill the memory."""
    content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise DataError(f"{path} holds more than {_MOST_BYTES >> 30} GiB of text: split it.")
    return content


def _decode(content: bytes, path: Path) -> str:
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} cannot be read as a table: the byte 0x{content[error.start]:02x} in line {line} is not"
            f" {encoding.removesuffix('-sig').upper()}. Save the file in UTF-8 (Excel's type CSV UTF-8)."
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(
            f"{path} cannot be read as a table: line {line} has zero bytes, so the file is damaged or not in UTF-8."
            " Save it again in UTF-8."
        )
    return text


def _rows(text: str, separator: str, path: Path) -> dict[int, list[str | None]]:
    """Row number -> cells, for rows with any text."""
    stream = io.StringIO(text, newline="")
    reader = csv.reader(stream, delimiter=separator, skipinitialspace=True, strict=True)
    rows: dict[int, list[str | None]] = {}
    number, header = 0, None
    while True:
        line, number = reader.line_num + 1, number + 1
        try:
            cells = [cell.strip() or None for cell in next(reader)]
        except StopIteration:
            return rows
        except csv.Error as error:
            raise DataError(f"{path} cannot be read as a table: {_csv_fault(error, line, reader.line_num)}") from error
        if not any(cells):
            continue
        header = header or cells
        if any(cells[len(header) :]):
            raise DataError(
                f"{path} cannot be read as a table: line {line} has {len(cells)} cells, the header"
                f" {len(header)}. Correct it, or quote texts with {separator!r}."
            )
        rows[number] = cells


def separator_of(header: str) -> str:
    """The most frequent separator in a header, outside of quotes: a comma, semicolon, tab or bar."""
    return max(_SEPARATORS, key=re.sub('"[^"]*"', "", header).count)


def _csv_fault(error: csv.Error, first: int, last: int) -> str:
    if "unexpected end" in str(error) or "field limit" in str(error):
        return f"a quote opened in line {first} is not closed. Close or remove it."
    return f"line {last}: {error}. Correct it."


def _columns(
    header: Sequence[str | None], rows: Sequence[Sequence[str | None]], path: Path
) -> tuple[list[str], list[int]]:
    """Names of the columns, and their positions in a row."""
    kept = [
        position
        for position, name in enumerate(header)
        if name is not None or any(position < len(row) and row[position] for row in rows)
    ]
    names = [printable(header[position] or f"Unnamed: {position}", keep="\n\t") for position in kept]
    refuse_twice(names, path, kept)
    return names, kept


def refuse_twice(names: Sequence[str], path: Path | str, kept: Sequence[int] | None = None) -> None:
    """Refuse columns of one name; ``kept`` are their positions in the file, from 0, if some were left out."""
    for name in names:
        if names.count(name) > 1:
            numbers = range(len(names)) if kept is None else kept
            places = [str(place + 1) for place, other in zip(numbers, names, strict=True) if other == name]
            raise DataError(
                f"{path} has the column {name!r} {len(places)} times, as columns {', '.join(places)}: rename or"
                " remove all but one."
            )
