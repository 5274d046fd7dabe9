"""Tables in text files: what is read rightly, and what is refused in words that name the place and the mend."""

import bz2
import gzip
import lzma
import zipfile

import pandas as pd
import pytest

from lightning_fl.core.errors import DataError
from lightning_fl.data import text_table
from lightning_fl.data.text_table import list_rows, read_numbers, read_text_table, require_columns
from lightning_fl.files.user_file import existing_file

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


def test_a_column_without_a_name_keeps_its_values(file):
    assert list(read_text_table(file(",y\n0,1\n")).columns) == ["Unnamed: 0", "y"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"a\.csv is empty: check"),
        ("\n\n", r"a\.csv is empty: check"),
        ("a,b\n\n,\n", r"has no rows of data, only a header"),
        ("y,a,y\n1,2,3\n", r"has the column 'y' 2 times, as columns 1, 3: rename all but one"),
        ("y , y\n1,2\n", r"has the column 'y' 2 times"),
        ("a,b\n1,2\n\n1,2,3\n", r"line 4 has 3 cells, the header 2\. Correct it, or put texts that hold ',' in quotes"),
        ('a,b\n1,2\n"3,4\n5,6\n', r"a quote that is opened in line 3 is not closed"),
        ('a,b\n"3"x,4\n', r"line 2: ',' expected after '\"'\. Correct it"),
        ("a\n" + "x" * 200_000 + "\n", r"line 2"),
        ("a,b\nü,2\n".encode("latin-1"), r"the byte 0xfc in line 2 is not UTF-8\. Save the file in UTF-8"),
        (b"a,b\n1,\x002\n", r"line 2 holds bytes of zero"),
        ("a,b\n1,2\n".encode("utf-16-le"), r"line 1 holds bytes of zero"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-9], r"cannot be read as a table: Compressed file ended"),
        (b"\x1f\x8b\x08" + bytes(30), r"cannot be read as a table"),
        (b"PAR1....", r"it is a Parquet file: write it as CSV"),
        (b"PK\x03\x04......[Content_Types].xml", r"it is an Excel file: save it as CSV"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1..", r"it is an Excel file of the old kind"),
        (b"%PDF-1.7\n", r"it is a PDF: name another file"),
        (b"\n<!DOCTYPE html><html>", r"it is a web page: fetch the file"),
        (b"\x80\x04\x95abc", r"it is a pickle, which is never read"),
        (gzip.compress(b"PAR1....", mtime=0), r"it is a Parquet file"),
    ],
)
def test_what_is_no_table(file, content, message):
    with pytest.raises(DataError, match=message):
        read_text_table(file(content))


def test_an_archive_of_one_file_is_that_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.csv", "w") as archive:
        archive.mkdir("inside")
        archive.writestr("inside/inner.csv", PLAIN)
        archive.writestr("__MACOSX/inside/._inner.csv", "x")
    (tmp_path / "plain.csv").write_text(PLAIN)
    assert read_text_table(tmp_path / "a.csv").equals(read_text_table(tmp_path / "plain.csv"))


@pytest.mark.parametrize(("names", "found"), [(["a.csv", "b.csv"], "a.csv, b.csv"), ([], "nothing")])
def test_an_archive_of_several_files(tmp_path, names, found):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("__MACOSX/x", "")
        for name in names:
            archive.writestr(name, PLAIN)
    with pytest.raises(DataError, match=f"is a zip archive with {found} in it: pack one table alone, or unpack it"):
        read_text_table(tmp_path / "a.zip")


def test_a_damaged_archive(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04" + bytes(60))
    with pytest.raises(DataError, match=r"a\.zip cannot be read as a table: File is not a zip file"):
        read_text_table(tmp_path / "a.zip")


def test_a_small_file_that_unpacks_to_a_large_one(file, monkeypatch):
    monkeypatch.setattr(text_table, "_MOST_BYTES", 1 << 20)
    with pytest.raises(DataError, match="holds more than 0 GiB of text: divide it"):
        read_text_table(file(gzip.compress(b"a\n" * (1 << 20))))


def test_numbers_their_gaps_and_what_is_neither():
    given = ["1", " 2.5e3", "NA", "n/a", "NaN", "null", None, "inf", "1,5", "1_000", "-.5", "5 nM", "1e400"]
    numbers, wrong = read_numbers(pd.Series(given, index=range(2, 15), dtype=object))
    assert numbers.dropna().to_dict() == {2: 1.0, 3: 2500.0, 12: -0.5}
    assert wrong.to_dict() == {9: "inf", 10: "1,5", 11: "1_000", 13: "5 nM", 14: "1e400"}


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("1,5", "has a decimal point and no separators"),
        ("1.234,5", "has a decimal point and no separators"),
        ("<5", "a bound is no value"),
        ("5 nM", "without its unit"),
        ("x", r"row 2 'x'\. Correct it\.$"),
    ],
)
def test_the_commonest_mistakes_are_explained(value, hint):
    with pytest.raises(DataError, match=hint):
        text_table.refuse_values(pd.Series([value], index=[2]), "a.csv, column 'y'", "are no numbers", "Correct it")


def test_lists_in_messages_are_short():
    frame = pd.DataFrame(columns=[f"c{number}" for number in range(500)])
    with pytest.raises(DataError, match=r"has no column 'y'\. It has c0, .*c19 and 480 more\.$"):
        require_columns(frame, ["y"], "a.csv")
    assert len(list_rows([2], ["x" * 10_000])) < 100


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", r"path='\.' is a folder, no file"),
        ("absent.csv", "path='absent.csv' is no file .looked for"),
        ("x" * 300, "cannot be opened .File name too long"),
        ("~nobody-of-this-name/x.csv", "cannot be opened"),
        ("a\0b", "is no file"),
    ],
)
def test_files_that_cannot_be_opened(name, message):
    with pytest.raises(DataError, match=message):
        existing_file(name)
