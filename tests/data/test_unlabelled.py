import tracemalloc
import zipfile

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem

from lightning_fl.data import IID, TableData
from lightning_fl.data.molecules.dataset import explain_unreadable, unlabelled_molecules
from lightning_fl.data.molecules.featurizer import encode_smiles
from lightning_fl.data.unlabelled import Reading, read_rows, read_smiles_column

RECORD = {"target_names": ["y"], "target_units": [""]}


def chunks(source, **reading):
    return list(unlabelled_molecules(source, RECORD, Reading(**reading), "smiles", lambda table, codes: (table, codes)))


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_chunks_hold_all_rows_in_their_order(tmp_path, rows):
    path = tmp_path / "new.csv"
    path.write_text('\n a;b\r\n1; "x\n;y"\n\n;\n2\n', newline="")
    found = list(read_rows(path, rows))
    assert max(map(len, found)) <= rows
    table = pd.concat(found)
    assert list(table.columns) == ["a", "b"]
    assert list(table.index) == [0, 1, 2]
    assert list(table["a"]) == ["1", "", "2"]
    assert list(table["b"])[1:] == ["", ""]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('"smiles, canonical";y\nCCO;1\n', ["smiles, canonical", "y"]),
        ('"a ""b"", c, d"\ty\nCCO\t1\n', ['a "b", c, d', "y"]),
        ("\n  \nsmiles|y\nCCO|1\n\n", ["smiles", "y"]),
    ],
)
def test_separators_in_quotes_are_none(tmp_path, text, columns):
    path = tmp_path / "new.csv"
    path.write_text(text)
    (frame,) = read_rows(str(path), 10)
    assert list(frame) == columns
    assert frame.values.tolist() == [["CCO", "1"]]


def test_memory_does_not_grow_with_the_file(tmp_path):
    def most(count):
        path = tmp_path / f"{count}.csv"
        path.write_text("smiles,x\n" + "CCO,0.123456789\n" * count)
        tracemalloc.start()
        for _ in read_rows(path, 100):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    most(100)  # what is imported once
    assert most(5000) < 1.5 * most(500)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_molecules_of_chunks_are_those_of_the_whole(rows, workers):
    smiles = [("C" * (place % 9) + "O") if place % 5 else "bad" for place in range(600)][: 600 if rows > 1 else 30]
    found = chunks(smiles, rows=rows, workers=workers)
    assert [row for chunk in found for row in chunk.frame["smiles"]] == smiles
    kept = [int(chunk.frame.index[row]) for chunk in found for row in chunk.kept]
    assert kept == [place for place in range(len(smiles)) if place % 5]
    whole = encode_smiles([smiles[place] for place in kept])
    of_chunks = [chunk.data[1] for chunk in found if chunk.kept]
    for name in ("atoms", "bonds", "ends", "num_atoms", "num_bonds"):
        assert np.array_equal(np.concatenate([getattr(codes, name) for codes in of_chunks]), getattr(whole, name))
    assert [size for chunk in found for size in chunk.sizes or []] == whole.num_atoms.tolist()


def test_an_empty_cell_of_any_kind_is_no_smiles():
    frame = pd.DataFrame({"smiles": ["CCO", None, " C "]}, dtype=object)
    for given in (frame, frame.convert_dtypes(), frame.astype("category")):
        assert read_smiles_column(given, "smiles", "here") == ["CCO", "", "C"]
        assert chunks(given)[0].errors == {1: "no SMILES"}


def test_why_a_smiles_is_no_molecule():
    assert explain_unreadable("") == "no SMILES"
    assert explain_unreadable("C1CC") == "not a SMILES: C1CC"
    assert explain_unreadable("C" * 99 + "(") == f"not a SMILES: {'C' * 57}..."
    assert "Explicit valence for atom # 1 O, 3, is greater" in explain_unreadable("CO(C)C")
    assert "kekulize" in explain_unreadable("c1cccc1").lower()


# ---- files that are no text

FRAME = pd.DataFrame({"smiles": ["CCO", "C", "CC"], "y": [1.5, None, 2.0], "lab": ["NA", "None", None]})


def write(folder, name):
    path = folder / name
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        FRAME.to_parquet(path)
    elif name.endswith(".xlsx"):
        FRAME.to_excel(path, index=False)
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.csv", FRAME.to_csv(index=False))
    else:
        records = []
        for row in FRAME.to_dict("records"):
            fields = "".join(f">  <{key}>\n{row[key]}\n\n" for key in ("y", "lab") if row[key] == row[key] and row[key])
            records.append(f"{Chem.MolToMolBlock(Chem.MolFromSmiles(row['smiles']))}{fields}$$$$\n")
        path.write_text("".join(records))
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.xlsx", "a.sdf", "a.zip"])
def test_new_samples_in_chunks(tmp_path, name):
    chunks = list(read_rows(str(write(tmp_path, name)), 2, text_column="smiles"))
    assert [list(chunk.index) for chunk in chunks] == [[0, 1], [2]]
    rows = pd.concat(chunks)
    assert rows["smiles"].tolist() == ["CCO", "C", "CC"]
    assert rows["lab"].tolist() == ["NA", "None", ""]
    assert [float(value) if value else None for value in rows["y"]] == [1.5, None, 2.0]


def test_a_table_of_another_kind_is_the_same(tmp_path):
    frame = pd.DataFrame({"x": [1, 2, 3, 4, 5, 6], "c": ["u", "NA", "u", "v", "v", "u"], "y": ["no", "yes"] * 3})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    tensors, new = [], []
    for name in ("a.csv", "a.xlsx"):
        data = TableData(path=str(tmp_path / name), target="y", partitioner=IID(num_clients=2), split_seed=0)
        data.prepare_data()
        data.setup("fit")
        tensors.append([part.tolist() for part in data._held["train"].tensors])
        new.append(data.newcomer_data(str(tmp_path / name), data.describe()).tensors[0].tolist())
    assert tensors[0] == tensors[1]
    assert new[0] == new[1]
