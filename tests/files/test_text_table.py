"""Tables in text files."""

import bz2
import gzip
import lzma
import zipfile

import pandas as pd
import pytest

from lightning_fl.core.errors import DataError
from lightning_fl.files.text_table import (
    list_rows,
    read_numbers,
    read_text_table,
    refuse_values,
    require_columns,
    smiles_name,
)

PLAIN = "smiles,y,lab\nCCO,1.5,NA\n\nC,,None\n"


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "a.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def cells(frame):
    return {number: list(row) for number, *row in frame.itertuples()}


READ = {2: ["CCO", "1.5", "NA"], 4: ["C", None, "None"]}


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", "|"),
        PLAIN.replace(",", " , "),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        PLAIN.replace("CCO", '"CCO"').replace("lab", ' "lab"'),
        PLAIN.replace("\n", ",,\n"),  # columns without a name and a value
        PLAIN.encode("utf-8-sig"),
        PLAIN.encode("utf-16"),
        PLAIN.encode("utf-32"),
        gzip.compress(PLAIN.encode(), mtime=0),
        bz2.compress(PLAIN.encode()),
        lzma.compress(PLAIN.encode()),
    ],
    ids=lambda content: repr(content[:18]),
)
def test_the_same_table_in_many_forms(file, content):
    frame = read_text_table(file(content))
    assert list(frame.columns) == ["smiles", "y", "lab"]
    assert cells(frame) == READ


def test_quotes_hold_separators_and_line_ends(file):
    frame = read_text_table(file('name;"a;b"\n"x;\ny",""\n"he said ""no""";2\n'.replace('",""', '";')))
    assert cells(frame) == {2: ["x;\ny", None], 3: ['he said "no"', "2"]}


@pytest.mark.parametrize("separator", list(",;\t|"))
def test_a_header_with_line_ends_has_its_separator(file, separator):
    names = ['yield, in %;\nas "measured", |\t|', 'size 5"', "a\nb"]
    header = separator.join([f'"{names[0].replace(chr(34), 2 * chr(34))}"', names[1], f'"{names[2]}"'])
    frame = read_text_table(file(f"\n{header}\nx{separator}{separator}y\n"))
    assert list(frame.columns) == names
    assert cells(frame) == {3: ["x", None, "y"]}


def test_a_column_without_a_name_keeps_its_values(file):
    assert list(read_text_table(file(",y\n0,1\n")).columns) == ["Unnamed: 0", "y"]


def test_an_archive_of_one_file_is_that_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.csv", "w") as archive:
        archive.mkdir("inside")
        archive.writestr("inside/inner.csv", PLAIN)
        archive.writestr("__MACOSX/inside/._inner.csv", "x")
    (tmp_path / "plain.csv").write_text(PLAIN)
    assert read_text_table(tmp_path / "a.csv").equals(read_text_table(tmp_path / "plain.csv"))


def test_numbers_their_gaps_and_what_is_neither():
    given = ["1", " 2.5e3", "NA", "n/a", "NaN", "null", None, "inf", "1,5", "1_000", "-.5", "5 nM", "1e400"]
    numbers, wrong = read_numbers(pd.Series(given, index=range(2, 15), dtype=object))
    assert numbers.dropna().to_dict() == {2: 1.0, 3: 2500.0, 12: -0.5}
    assert wrong.to_dict() == {9: "inf", 10: "1,5", 11: "1_000", 13: "5 nM", 14: "1e400"}


@pytest.mark.parametrize(
    ("columns", "name", "found"),
    [
        ("id smiles SMILES", "smiles", "smiles"),
        ("id Smiles Canonical_SMILES", "smiles", "Smiles"),
        ("id Canonical_SMILES", "smiles", "Canonical_SMILES"),
        ("id SMI", "smiles", "SMI"),
        ("id Smiles SMILES", "smiles", "smiles"),  # which of them?
        ("id Drug", "drug", "Drug"),
        ("id SMILES", "drug", "drug"),
    ],
)
def test_a_column_of_smiles_is_found_in_any_case_and_by_its_usual_names(columns, name, found):
    assert smiles_name(columns.split(), name) == found


def test_lists_in_messages_are_short():
    frame = pd.DataFrame(columns=[f"c{number}" for number in range(500)])
    with pytest.raises(DataError, match=r"has no column 'y'\. It has c0, .*c19 and 480 more\.$"):
        require_columns(frame, ["y"], "a.csv")
    assert len(list_rows([2], ["x" * 10_000])) < 100


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        ({2: None}, r"row 2 \(empty\)\. Correct it\.$"),
        ({2: float("nan"), 5: ""}, r"row 2 \(empty\), row 5 \(empty\)\."),
        ({3: "-1,57", 4: "x"}, r"row 3 '-1,57', row 4 'x'\. Correct it; use a decimal point\.$"),
        ({3: "a,57"}, r"row 3 'a,57'\. Correct it\.$"),
    ],
)
def test_wrong_values_are_shown(cells, named):
    with pytest.raises(DataError, match=r"^a\.csv has values that are odd: " + named):
        refuse_values(pd.Series(cells, dtype=object), "a.csv", "are odd", "Correct it")
