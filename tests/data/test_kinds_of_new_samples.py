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


@pytest.mark.parametrize("kind", ["parquet", "xlsx", "zip"])
def test_a_table_is_the_same_in_every_kind(tmp_path, kind):
    frame = pd.DataFrame({"x": [1, 2, 3, 4, 5, 6], "c": ["u", "NA", "u", "v", "v", "u"], "y": ["no", "yes"] * 3})
    frame.to_csv(tmp_path / "a.csv", index=False)
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    elif kind == "xlsx":
        frame.to_excel(path, index=False)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "a.csv", "a.csv")

    def read(name):
        data = TableData(path=str(name), target="y", partitioner=IID(num_clients=2), split_seed=0)
        data.prepare_data()
        data.setup("fit")
        return data

    plain, other = read(tmp_path / "a.csv"), read(path)
    for one, two in zip(plain._held["train"].tensors, other._held["train"].tensors, strict=True):
        assert one.tolist() == two.tolist()
    record = plain.describe()
    new = [plain.newcomer_data(str(name), record).tensors[0].tolist() for name in (tmp_path / "a.csv", path)]
    assert new[0] == new[1]
