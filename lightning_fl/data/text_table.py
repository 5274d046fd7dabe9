"""Tables in text files, read as texts: unpacked, decoded, divided into cells and checked; and the numbers in them.

Every table that a user or a card names is read here. Cells are separated by commas, semicolons, tabs or bars, whichever
the header has most of; the file may be packed by gzip, bzip2, xz or zip, whatever its name.
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
#: What packed files begin with -> what opens them.
PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ZIP = b"PK\x03\x04"
_MOST_BYTES = 4 << 30
_HEAD_BYTES = 512
_LISTED_ROWS = 10
#: Byte order marks, the longer first, for one of UTF-32 begins as one of UTF-16 does.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: What stands for a missing number, in small letters. Where a text is asked for, it is one: "NA" is a country.
_GAPS = frozenset({"na", "n/a", "#n/a", "<na>", "nan", "null", "none"})
#: What wrong numbers look like, and what a message adds for them.
_HINTS = (
    (re.compile(r"[-+]?[\d.]*\d,\d[\d.,]*"), " (a number has a decimal point and no separators of thousands)"),
    (re.compile(r"[<>=~≤≥≈±].*"), " (a bound is no value)"),
    (re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*[^\d\s.eE+-].*"), " (a number stands without its unit)"),
)


def read_text_table(path: Path) -> "pd.DataFrame":
    """A table with a header, as it stands in its file.

    Returns:
        Texts without blanks at their ends, ``None`` for an empty cell. The index holds the numbers of rows as a
        spreadsheet shows them: the header is row 1 where nothing stands before it. Rows without any text are left out,
        and columns without a name and any text; a row that is too short lacks its last cells.

    Raises:
        DataError: the file cannot be read, is of another kind, is empty, is no text, has no rows, has two columns of
            one name, or a row that is longer than the header or in which a quote is not closed.
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
    names, kept = _columns(header, list(rows.values())[1:], path)
    if not body:
        raise DataError(f"{path} has no rows of data, only a header: check the file.")
    cells = [[row[place] if place < len(row) else None for place in kept] for _, row in body]
    return pd.DataFrame(cells, index=[number for number, _ in body], columns=names, dtype=object)


def require_columns(frame: "pd.DataFrame", names: Collection[str], place: str) -> None:
    """Refuse names that are no columns of a table.

    Raises:
        DataError: one of them is none.
    """
    known = list(map(str, frame.columns))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise DataError(f"{place} has no column {name!r}{hint}. It has {listed(known, near=name)}.")


def read_numbers(column: "pd.Series") -> "tuple[pd.Series, pd.Series]":
    """The numbers of a column of texts.

    Returns:
        float64 numbers, NaN where there is none, "NA" and the like included; and the cells that are neither a finite
        number nor missing.
    """
    import pandas as pd

    given = column.where(column.notna() & ~column.astype(str).str.lower().isin(_GAPS), None)
    numbers = pd.to_numeric(given, errors="coerce").astype(float)
    finite = numbers.abs() < float("inf")
    return numbers.where(finite), column[given.notna() & ~finite]


def refuse_values(wrong: "pd.Series", place: str, fault: str, mend: str) -> None:
    """Refuse values of a column, if there are any.

    Args:
        wrong: the values; the index holds the numbers of their rows.
        place: of the column, for the message.
        fault: what they are, such as "are not finite numbers".
        mend: what to do.

    Raises:
        DataError: there are some. The message lists the first.
    """
    if len(wrong) == 0:
        return
    hint = next((hint for pattern, hint in _HINTS if pattern.fullmatch(str(wrong.iloc[0]))), "")
    rows = list_rows(list(map(int, wrong.index)), wrong.tolist())
    raise DataError(f"{place}: {len(wrong)} values {fault}: {rows}. {mend}{hint}.")


def list_rows(rows: Sequence[int], values: Sequence[object]) -> str:
    """``"row 3 'abc', row 9 'x' and 4 more"``: the first ten rows with their values, for messages."""
    pairs = zip(rows[:_LISTED_ROWS], values[:_LISTED_ROWS], strict=True)
    text = ", ".join(f"row {row} {cut(repr(value))}" for row, value in pairs)
    return text + (f" and {len(rows) - _LISTED_ROWS} more" if len(rows) > _LISTED_ROWS else "")


def read_text(path: Path) -> str:
    """The text of a file, unpacked where it is packed.

    Raises:
        DataError: the file cannot be read, is of another kind, or is no text in UTF-8 (or, with a mark, UTF-16).
    """
    return _decoded(_content(path), path)


def _content(path: Path) -> bytes:
    """The bytes of a table in text, unpacked."""
    content = read_packed(path)
    kind = foreign_content(content[:_HEAD_BYTES])
    if content.startswith(_ZIP) and _seems_excel(content[:_HEAD_BYTES], path):
        kind = "it is an Excel file: save it as CSV (UTF-8)"
    if kind is not None:
        raise DataError(f"{path} cannot be read as a table: {kind}.")
    return content


def read_packed(path: Path) -> bytes:
    """The bytes of a file, unpacked where it is packed by gzip, bzip2, xz or, as the only file in it, by zip.

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
            content = _bounded(unpacked, path)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a table: {error}. Check the file, or fetch it again.") from error
    return content


def _seems_excel(head: bytes, path: Path) -> bool:
    return b"[Content_Types].xml" in head or is_excel(path)


def is_excel(path: Path) -> bool:
    """Whether an archive is one of Excel's."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _only_member(path: Path) -> bytes:
    """What an archive holds as its only file, folders and what macOS adds left aside."""
    with zipfile.ZipFile(path) as archive:
        members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
        if len(members) != 1:
            names = listed([one.filename for one in members], 5) or "nothing"
            raise DataError(f"{path} is a zip archive with {names} in it: pack one table alone, or unpack it.")
        if members[0].flag_bits & 1:
            raise DataError(f"{path} is a zip archive with a password: unpack it.")
        with archive.open(members[0]) as unpacked:
            return _bounded(unpacked, path)


def _bounded(stream: IO[bytes], path: Path) -> bytes:
    """All of it, but not what would fill the memory: a small file may unpack to any size."""
    content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise DataError(f"{path} holds more than {_MOST_BYTES >> 30} GiB of text: divide it.")
    return content


def _decoded(content: bytes, path: Path) -> str:
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
            f"{path} cannot be read as a table: line {line} holds bytes of zero, so the file is damaged or no text in"
            " UTF-8. Save it again, in UTF-8."
        )
    return text


def _rows(text: str, separator: str, path: Path) -> dict[int, list[str | None]]:
    """Number of a row -> its cells, of the rows that have any text."""
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
                f" {len(header)}. Correct it, or put texts that hold {separator!r} in quotes."
            )
        rows[number] = cells


def separator_of(header: str) -> str:
    """What a table's first line has most of, outside of quotes: a comma, semicolon, tab or bar."""
    return max(_SEPARATORS, key=re.sub('"[^"]*"', "", header).count)


def _csv_fault(error: csv.Error, first: int, last: int) -> str:
    if "unexpected end" in str(error) or "field limit" in str(error):
        return f"a quote that is opened in line {first} is not closed. Close it, or take it away."
    return f"line {last}: {error}. Correct it."


def _columns(
    header: Sequence[str | None], rows: Sequence[Sequence[str | None]], path: Path
) -> tuple[list[str], list[int]]:
    """The columns' names, and where in a row they stand."""
    kept = [
        place
        for place, name in enumerate(header)
        if name is not None or any(place < len(row) and row[place] for row in rows)
    ]
    names = [printable(header[place] or f"Unnamed: {place}", keep="\n\t") for place in kept]
    refuse_twice(names, path, kept)
    return names, kept


def refuse_twice(names: Sequence[str], path: Path | str, kept: Sequence[int] | None = None) -> None:
    """Refuse columns of one name; ``kept`` are their places in the file, counted from 0, where some were left out."""
    for name in names:
        if names.count(name) > 1:
            numbers = range(len(names)) if kept is None else kept
            places = [str(place + 1) for place, other in zip(numbers, names, strict=True) if other == name]
            raise DataError(
                f"{path} has the column {name!r} {len(places)} times, as columns {', '.join(places)}: rename all but"
                " one, or take them away."
            )
