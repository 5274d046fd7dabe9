import gzip

import pandas as pd
import pytest
from rdkit import Chem

from lightning_fl.core.errors import DataError
from lightning_fl.files import text_table
from lightning_fl.files.table_file import as_texts, kind_of_table, read_table_file
from lightning_fl.files.text_table import read_text_table

TEXT = "smiles,y,count,lab\nCCO,1.5,3,a\nC,,4,NA\nc1ccccc1,-2e-3,5,b\n"


@pytest.fixture
def frame(tmp_path):
    (tmp_path / "mine.csv").write_text(TEXT)
    return read_text_table(tmp_path / "mine.csv")


def typed():
    return pd.DataFrame(
        {"smiles": ["CCO", "C", "c1ccccc1"], "y": [1.5, None, -2e-3], "count": [3, 4, 5], "lab": ["a", "NA", "b"]}
    )


def same(found, expected):
    assert found.columns.tolist() == expected.columns.tolist()
    assert found.index.tolist() == expected.index.tolist()
    for name in ("smiles", "lab", "count"):
        assert found[name].tolist() == expected[name].tolist()
    assert [None if cell is None else float(cell) for cell in found["y"]] == [1.5, None, -2e-3]


def test_a_text_is_read_as_before(tmp_path, frame):
    assert read_table_file(tmp_path / "mine.csv").equals(frame)


def test_parquet_is_the_same_table(tmp_path, frame):
    pytest.importorskip("pyarrow")
    typed().to_parquet(tmp_path / "any.name")
    same(read_table_file(tmp_path / "any.name"), frame)


def test_the_named_index_of_parquet_is_a_column(tmp_path, frame):
    pytest.importorskip("pyarrow")
    typed().set_index("smiles").to_parquet(tmp_path / "any.name")
    same(read_table_file(tmp_path / "any.name"), frame)
    typed().set_index("smiles", drop=False).to_parquet(tmp_path / "any.name")
    same(read_table_file(tmp_path / "any.name"), frame)


def test_excel_is_the_same_table(tmp_path, frame):
    typed().to_excel(tmp_path / "mine.xlsx", index=False)
    same(read_table_file(tmp_path / "mine.xlsx"), frame)


def test_columns_of_pandas_own_kinds_are_the_same_texts():
    assert as_texts(typed().convert_dtypes()).equals(as_texts(typed()))


def write_sdf(path, count=2, broken=False):
    with Chem.SDWriter(str(path)) as writer:
        for number in range(count):
            molecule = Chem.MolFromSmiles("C" * (number + 1) + "O")
            molecule.SetProp("y", f" {number}.50 ")
            molecule.SetProp("lab", "NA")
            writer.write(molecule)
    if broken:
        path.write_text(path.read_text() + "no molecule\n\n\n  1  0  0 nonsense\nM  END\n$$$$\n")


@pytest.mark.parametrize("packed", [False, True])
def test_the_fields_of_an_sdf_are_columns(tmp_path, packed):
    path = tmp_path / "mine.sdf"
    write_sdf(path)
    if packed:
        (tmp_path / "mine.sdf.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "mine.sdf.gz"
    found = read_table_file(path, smiles="structure")
    assert found.to_dict("list") == {"structure": ["CO", "CCO"], "y": ["0.50", "1.50"], "lab": ["NA", "NA"]}
    assert found.index.tolist() == [1, 2]


def test_a_record_that_is_no_molecule_is_an_empty_row(tmp_path):
    write_sdf(tmp_path / "mine.sdf", broken=True)
    found = read_table_file(tmp_path / "mine.sdf", smiles="smiles")
    assert found["smiles"].tolist() == ["CO", "CCO", None]
    assert found["y"].tolist() == ["0.50", "1.50", None]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_record_that_is_no_molecule_keeps_its_fields(tmp_path, end):
    path = tmp_path / "mine.sdf"
    write_sdf(path, 4)
    records = path.read_text().split("$$$$\n")
    for place in (1, 2):
        records[place] = records[place].replace(" O  ", " Qq ")
    records[2] = records[2].replace("2.50", "2.50\nrepeated")
    path.write_text("$$$$\n".join(records), newline=end)
    assert read_table_file(path, smiles="smiles").to_dict("list") == {
        "smiles": ["CO", None, None, "CCCCO"],
        "y": ["0.50", "1.50", "2.50\nrepeated", "3.50"],
        "lab": ["NA"] * 4,
    }


def test_blank_lines_at_the_end_of_an_sdf_are_no_record(tmp_path):
    path = tmp_path / "mine.sdf"
    write_sdf(path)
    path.write_text(path.read_text() + "\n \n\n")
    assert read_table_file(path, smiles="smiles")["smiles"].tolist() == ["CO", "CCO"]


def test_an_empty_field_leaves_the_smiles_of_the_structure(tmp_path):
    with Chem.SDWriter(str(tmp_path / "a.sdf")) as writer:
        for given, field in (("OCC", "OCC"), ("CC", "")):
            molecule = Chem.MolFromSmiles(given)
            molecule.SetProp("smiles", field)
            writer.write(molecule)
    assert list(read_table_file(tmp_path / "a.sdf", smiles="smiles")["smiles"]) == ["OCC", "CC"]


def test_an_sdf_in_another_encoding_is_refused_by_its_byte(tmp_path):
    path = tmp_path / "a.sdf"
    write_sdf(path)
    path.write_bytes(path.read_bytes().replace(b"NA", b"M\xfcller"))
    with pytest.raises(DataError, match="0xfc"):
        read_table_file(path, smiles="smiles")


@pytest.mark.parametrize(
    ("name", "kind"), [("x.sdf.csv", "text"), ("x.sd.csv", "text"), ("x.SDF.gz", "SDF"), ("x.sd", "SDF")]
)
def test_an_sdf_is_known_by_its_last_suffix(name, kind, tmp_path):
    (tmp_path / name).write_text("smiles,y\nC,1\n")
    assert kind_of_table(tmp_path / name) == kind


def test_a_record_of_an_sdf_may_have_any_number_of_atoms(tmp_path):
    count = 20_000
    atoms = [f"M  V30 {atom} C 0 0 0 0" for atom in range(1, count + 1)]
    bonds = [f"M  V30 {bond} 1 {bond} {bond + 1}" for bond in range(1, count)]
    lines = ["", "", "", "  0  0  0  0  0  0  0  0  0  0999 V3000", "M  V30 BEGIN CTAB"]
    lines += [f"M  V30 COUNTS {count} {count - 1} 0 0 0", "M  V30 BEGIN ATOM", *atoms, "M  V30 END ATOM"]
    lines += ["M  V30 BEGIN BOND", *bonds, "M  V30 END BOND", "M  V30 END CTAB", "M  END", "$$$$", ""]
    (tmp_path / "long.sdf").write_text("\n".join(lines))
    assert read_table_file(tmp_path / "long.sdf", smiles="smiles")["smiles"].tolist() == [None]


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_another_separator_is_said(tmp_path, frame, separator, name, monkeypatch):
    said = []
    monkeypatch.setattr(text_table, "rank_zero_info", said.append)
    (tmp_path / "other.csv").write_text(TEXT.replace(",", separator))
    assert read_table_file(tmp_path / "other.csv").equals(frame)
    assert said == [f"{tmp_path / 'other.csv'}: cells are separated by {name}"]
