"""Reader of tables in text, Parquet, Excel and SDF files, as texts with row numbers.

The first bytes of a file define its kind, except for SDF, which is known by name (``.sdf``, ``.sd``, packed or not).
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_fl.core.errors import DataError, cut
from lightning_fl.core.optional_packages import expect_extra
from lightning_fl.data.text_table import is_excel, read_packed, read_text_table, refuse_twice

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["is_text", "read_table_file"]

_PARQUET = b"PAR1"
_ZIP = b"PK\x03\x04"
_HEAD_BYTES = 512
#: Limit per record: RDKit writes SMILES recursively and overflows its stack at twice as many.
_MAX_ATOMS = 10_000
_SDF_NAMES = (".sdf", ".sd")


def read_table_file(path: Path, *, smiles: str | None = None) -> "pd.DataFrame":
    """Read a table.

    Args:
        path: the file.
        smiles: column for the SMILES of an SDF's molecules, unless it has such a field.

    Returns:
        As :func:`~lightning_fl.data.text_table.read_text_table`: texts without surrounding blanks, ``None`` for an
        empty cell. The index holds row numbers as in a spreadsheet; for an SDF, record numbers from 1.

    Raises:
        ConfigurationError: a package for such files is not installed.
        DataError: the file cannot be read, is of another kind, has no rows, or two columns of one name.
    """
    if _is_sdf(path):
        if smiles is None:
            raise DataError(f"{path} is an SDF, which holds molecules: give a table without molecules.")
        return _checked(_read_sdf(path, smiles), path)
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read as a table: {error}. Check the file.") from error
    if head.startswith(_PARQUET):
        expect_extra("pyarrow", "parquet", str(path))
        return _checked(_texts(_read_parquet(path)), path)
    if head.startswith(_ZIP) and is_excel(path):
        expect_extra("openpyxl", "excel", str(path))
        return _checked(_texts(_read_excel(path)), path)
    return read_text_table(path)


def is_text(path: Path) -> bool:
    """Whether a table can be read line by line: a text, packed or not, but not in a zip."""
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    return not _is_sdf(path) and not head.startswith((_PARQUET, _ZIP))


def _is_sdf(path: Path) -> bool:
    return any(suffix.lower() in _SDF_NAMES for suffix in path.suffixes[-2:])


def _read_parquet(path: Path) -> "pd.DataFrame":
    import pandas as pd

    try:
        frame = pd.read_parquet(path).reset_index(drop=True)
    except Exception as error:  # pyarrow has its own errors for every kind of damage
        raise DataError(f"{path} cannot be read as Parquet: {cut(str(error))}. Check the file.") from error
    frame.index += 2
    return frame


def _read_excel(path: Path) -> "pd.DataFrame":
    import pandas as pd

    try:
        # Without a header: pandas would rename columns of one name.
        cells = pd.read_excel(path, header=None, dtype=object, keep_default_na=False, na_values=[""])
    except Exception as error:  # as above
        raise DataError(f"{path} cannot be read as an Excel file: {cut(str(error))}. Check the file.") from error
    if cells.empty:
        raise DataError(f"{path} is empty: check its first sheet.")
    header = [None if name != name or name is None else str(name).strip() for name in cells.iloc[0]]
    frame = cells.iloc[1:]
    kept = [place for place, name in enumerate(header) if name or frame[place].notna().any()]
    frame = frame[kept].set_axis([header[place] or f"Unnamed: {place}" for place in kept], axis=1)
    frame.index = frame.index + 1
    return frame.dropna(how="all")


def _read_sdf(path: Path, smiles: str) -> "pd.DataFrame":
    import pandas as pd

    rows = list(_sdf_records(path, smiles))
    if not rows:
        raise DataError(f"{path} has no records: check the file.")
    frame = pd.DataFrame(rows, dtype=object)
    frame.index += 1
    return frame.where(frame.notna(), None)


def _sdf_records(path: Path, smiles: str) -> Iterator[dict[str, Any]]:
    """Fields and SMILES of every record; the SMILES is empty if RDKit cannot read it."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():  # the caller reports unreadable rows
        for molecule in Chem.ForwardSDMolSupplier(io.BytesIO(read_packed(path))):
            if molecule is None or molecule.GetNumAtoms() > _MAX_ATOMS:
                yield {smiles: None}
                continue
            found = molecule.GetPropsAsDict(autoConvertStrings=False)
            fields = {name: text.strip() or None for name, text in found.items() if isinstance(text, str)}
            yield {smiles: Chem.MolToSmiles(molecule), **fields}


def _texts(frame: "pd.DataFrame") -> "pd.DataFrame":
    frame = frame.set_axis([str(name).strip() for name in frame.columns], axis=1)
    return frame.astype(object).map(_text).astype(object)


def _text(value: Any) -> str | None:
    """A cell as text without surrounding blanks, a whole number without a point; ``None`` for an empty cell."""
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value).strip() or None


def _checked(frame: "pd.DataFrame", path: Path) -> "pd.DataFrame":
    refuse_twice([str(name) for name in frame.columns], path)
    if frame.empty:
        raise DataError(f"{path} has no rows of data, only a header: check the file.")
    return frame.astype(object).where(frame.notna(), None)
