"""Reader of tables in text, Parquet, Excel and SDF files, as texts with row numbers.

The content defines the kind of a file, except for SDF, which is known by name (``.sdf``, ``.sd``, packed or not).
"""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_fl.core.errors import DataError, cut, expect_extra
from lightning_fl.files.text_table import read_text_table, refuse_twice, text_lines, unpacked

if TYPE_CHECKING:
    import pandas as pd

#: Limit per record: RDKit writes SMILES recursively and overflows its stack at twice as many.
_MAX_ATOMS = 10_000


def kind_of_table(path: Path) -> Literal["text", "Parquet", "Excel", "SDF"]:
    """Kind of a table file; anything unknown is a text."""
    if re.search(r"\.sdf?(\.(gz|bz2|xz|zip))?$", path.name.lower()):
        return "SDF"
    try:
        with path.open("rb") as stream:
            head = stream.read(4)
        if head == b"PAR1":
            return "Parquet"
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return "Excel" if "xl/workbook.xml" in archive.namelist() else "text"
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a table: {error}. Check the file.") from error
    return "text"


def read_table_file(path: Path, *, smiles: str | None = None) -> "pd.DataFrame":
    """Read a table as texts without surrounding blanks, ``None`` for an empty cell.

    The index holds row numbers as in a spreadsheet; for an SDF, record numbers from 1. ``smiles`` names the column for
    the SMILES of an SDF's molecules, unless it has such a field.
    """
    kind = kind_of_table(path)
    if kind == "text":
        return read_text_table(path)
    if kind == "SDF":
        frame = _read_sdf(path, smiles)
    else:
        expect_extra(*(("pyarrow", "parquet") if kind == "Parquet" else ("openpyxl", "excel")), str(path))
        try:
            frame = as_texts(_read_parquet(path) if kind == "Parquet" else _read_excel(path))
        except Exception as error:  # the libraries have their own errors for every kind of damage
            raise DataError(f"{path} cannot be read as {kind}: {cut(error)}. Check the file.") from error
    refuse_twice([str(name) for name in frame.columns], path)
    if frame.empty:
        raise DataError(f"{path} has no rows of data: check the file.")
    return frame


def _read_parquet(path: Path) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.read_parquet(path)
    frame = frame.reset_index(drop=any(name is None or name in frame for name in frame.index.names))
    frame.index += 2
    return frame


def _read_excel(path: Path) -> "pd.DataFrame":
    import pandas as pd

    # Without a header: pandas would rename columns of one name.
    cells = pd.read_excel(path, header=None, dtype=object, keep_default_na=False, na_values=[""])
    if cells.empty:
        return cells
    header = [None if name != name or name is None else str(name).strip() for name in cells.iloc[0]]
    frame = cells.iloc[1:]
    kept = [place for place, name in enumerate(header) if name or frame[place].notna().any()]
    frame = frame[kept].set_axis([header[place] or f"Unnamed: {place}" for place in kept], axis=1)
    frame.index = frame.index + 1
    return frame.dropna(how="all")


def _read_sdf(path: Path, smiles: str | None) -> "pd.DataFrame":
    import pandas as pd

    if smiles is None:
        raise DataError(f"{path} is an SDF, which holds molecules: give a table without molecules.")
    with unpacked(path) as stream:
        content = "".join(text_lines(stream, str(path))).replace("\r\n", "\n").rstrip()
    frame = pd.DataFrame(list(_sdf_records(content, smiles)), dtype=object)
    frame.index += 1
    return frame.where(frame.notna(), None)


def _sdf_records(content: str, smiles: str) -> Iterator[dict[str, Any]]:
    """Fields and SMILES of every record; the SMILES is empty if RDKit cannot read it."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():  # the caller reports unreadable rows
        supplier = Chem.SDMolSupplier()
        supplier.SetData(content)
        for number, molecule in enumerate(supplier if content else ()):
            if molecule is None or molecule.GetNumAtoms() > _MAX_ATOMS:
                texts = re.findall(r"^>.*<(.+)>.*\n((?:.*\S.*\n?)+)", supplier.GetItemText(number), re.MULTILINE)
                yield {smiles: None, **{name: text.strip() for name, text in texts}} | {smiles: None}
                continue
            found = molecule.GetPropsAsDict(autoConvertStrings=False)
            fields = {name: text.strip() or None for name, text in found.items() if isinstance(text, str)}
            yield {smiles: None, **fields} | {smiles: fields.get(smiles) or Chem.MolToSmiles(molecule)}


def as_texts(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Convert cells to texts without surrounding blanks, whole numbers without a point; ``None`` for an empty cell."""
    frame = frame.set_axis([str(name).strip() for name in frame.columns], axis=1).astype(object)
    frame = frame.map(_text, na_action="ignore")
    return frame.astype(object).where(frame.notna(), None)


def _text(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value).strip() or None
