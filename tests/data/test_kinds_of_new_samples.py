"""New samples and tables without molecules from files that are no text."""

import zipfile

import pandas as pd
import pytest
from rdkit import Chem

from lightning_fl.data import IID, TableData
from lightning_fl.data.unlabelled import read_rows

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
