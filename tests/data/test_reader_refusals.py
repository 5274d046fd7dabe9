"""What readers of tables, files and targets refuse: the exception and the place at fault."""

import gzip
import importlib.util
import io
import re
import zipfile

import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torch_geometric.data import Data

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data import IID, FromFlower, HFDataset
from lightning_fl.data.targets import batch_targets, dataset_targets, with_batch_targets
from lightning_fl.data.unlabelled import read_rows
from lightning_fl.files import text_table
from lightning_fl.files.table_file import read_table_file
from lightning_fl.files.text_table import read_text_table
from lightning_fl.files.user_file import existing_file


def archive(**files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        made.writestr(zipfile.ZipInfo("__MACOSX/x"), "")
        for name, content in files.items():
            made.writestr(zipfile.ZipInfo(name.replace("_", "/") + (".csv" if "_" not in name else ".xml")), content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("", "a.csv is empty"),
        ("\n\n", "a.csv is empty"),
        ("a,b\n\n,\n", "no rows of data"),
        ("y,a,y\n1,2,3\n", "column 'y' 2 times, as columns 1, 3"),
        ("y , y\n1,2\n", "column 'y' 2 times"),
        ("a,b\n1,2\n\n1,2,3\n", "line 4 has 3 cells, the header 2"),
        ('a,b\n1,2\n"3,4\n5,6\n', "line 3"),
        ('a,b\n"3"x,4\n', "line 2"),
        ("a\n" + "x" * 200_000 + "\n", "line 2"),
        ("a,b\nü,2\n".encode("latin-1"), "0xfc in line 2 is not UTF-8"),
        (b"a,b\n1,\x002\n", "line 2"),
        ("a,b\n1,2\n".encode("utf-16-le"), "line 1"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-9], "Compressed file ended"),
        (b"\x1f\x8b\x08" + bytes(30), "a.csv cannot be read"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1..", "line 1 is not UTF-8"),
        (b"%PDF-1.7\n", "no rows of data"),
        (b"\x80\x04\x95abc", "line 1 is not UTF-8"),
        (archive(a="x\n1\n", b="x\n1\n"), "a.csv, b.csv"),
        (archive(), "nothing"),
        (b"PK\x03\x04" + bytes(60), "line 1"),
    ],
    ids=lambda value: ascii(value[:18]),
)
def test_text_tables(tmp_path, content, name):
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=re.escape(name)):
        read_text_table(path)


def test_a_small_file_that_unpacks_to_a_large_one(tmp_path, monkeypatch):
    monkeypatch.setattr(text_table, "_MOST_CHARACTERS", 1 << 16)
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"a\n" * (1 << 16)))
    with pytest.raises(DataError, match="more than 0 GiB"):
        read_text_table(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "content", "smiles", "fault"),
    [
        ("mine.sdf", b"", "smiles", "no rows"),
        ("mine.sdf", b"", None, "mine.sdf is an SDF"),
        ("b", archive(xl_workbook="nonsense"), None, "Excel"),
        ("gone", None, None, "gone"),
    ],
)
def test_other_tables(tmp_path, name, content, smiles, fault):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=fault):
        read_table_file(tmp_path / name, smiles=smiles)


def test_damaged_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a").write_bytes(b"PAR1" + bytes(50))
    with pytest.raises(DataError, match="Parquet"):
        read_table_file(tmp_path / "a")


def test_columns_of_one_name_in_excel(tmp_path):
    pd.DataFrame([["C", 1, 2]], columns=["smiles", "y", "y"]).to_excel(tmp_path / "a.xlsx", index=False)
    with pytest.raises(DataError, match="column 'y' 2 times, as columns 2, 3"):
        read_table_file(tmp_path / "a.xlsx")


def test_new_samples(tmp_path):
    (tmp_path / "new.csv.gz").write_bytes(gzip.compress(b"smiles\n" + b"C\n" * 10_000)[:-20])
    with pytest.raises(DataError, match=r"new\.csv\.gz cannot be read"):
        list(read_rows(tmp_path / "new.csv.gz", 100))
    (tmp_path / "a.sdf").write_text("")
    with pytest.raises(DataError, match=r"a\.sdf is an SDF"):
        next(read_rows(str(tmp_path / "a.sdf"), 2))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (".", "path='.'"),
        ("absent.csv", "path='absent.csv'"),
        ("x" * 300, "File name too long"),
        ("~nobody-of-this-name/x.csv", "cannot be opened"),
        ("a\0b", "path="),
    ],
)
def test_files_that_cannot_be_opened(name, fault):
    with pytest.raises(DataError, match=re.escape(fault)):
        existing_file(name)


# ---- missing packages, and options of the data that need them


@pytest.fixture
def without(monkeypatch):
    """Make packages look missing."""
    found, gone = importlib.util.find_spec, set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in gone else found(name, *rest))
    return gone.update


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("pyarrow", "parquet", lambda folder: read_table_file(folder / "parquet")),
        ("openpyxl", "excel", lambda folder: read_table_file(folder / "excel")),
        ("datasets", "hf", lambda folder: HFDataset(path="x", target="y", partitioner=IID(num_clients=2))),
        ("flwr_datasets", "flower", lambda folder: FromFlower(partitioner="IidPartitioner")),
    ],
)
def test_missing_packages(tmp_path, without, package, extra, use):
    (tmp_path / "parquet").write_bytes(b"PAR1")
    (tmp_path / "excel").write_bytes(archive(xl_workbook=""))
    without({package})
    with pytest.raises(ConfigurationError, match=rf"{package} .*pip install \"lightning-fl\[{extra}\]\""):
        use(tmp_path)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"channels": 2}, "HFDataset.channels=2"),
        ({"size": (0, 8)}, "HFDataset.size[0]=0"),
        ({"parts": {"train": "a", "trian": "b"}}, "HFDataset.parts={'train': 'a', 'trian': 'b'}"),
        ({"parts": {"test": "test"}}, "HFDataset.parts={'test': 'test'}"),
        ({"columns": ["y"]}, "HFDataset.columns=['y']"),
        ({"columns": ["a"], "drop": ["b"]}, "HFDataset.columns=['a']"),
    ],
)
def test_options_of_hugging_face(options, name):
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        HFDataset(path="x", target="y", partitioner=IID(num_clients=2), **options)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_images_without_bytes_of_hugging_face(monkeypatch, mode):
    monkeypatch.setattr("lightning_fl.data.hugging_face.expect_extra", lambda *args: None)
    data = HFDataset(path="x", target="y", partitioner=IID(num_clients=2), channels=1)
    with pytest.raises(DataError, match=f"x: 'image' of row 1 .*mode {mode}"):
        data._images({"image": [Image.new(kind, (2, 2)) for kind in ("L", mode)]}, "image")


# ---- targets


class Plain(Dataset):
    def __init__(self, targets=None):
        if targets is not None:
            self.targets = targets

    def __len__(self):
        return 3


X, Y = torch.rand(3, 2), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (Plain(), "targets of Plain"),
        (Plain([1, 2, 3, 4]), "shape [4] for 3 samples"),
        ([Data(x=X, y=torch.ones(1)), Data(x=X, y=torch.ones(2))], "shapes [1] and [2]"),
        ([], "targets of list"),
        ([(X, "cat")], "targets of a tuple are a str"),
    ],
)
def test_data_sets_without_targets(dataset, name):
    with pytest.raises(DataError, match=re.escape(name)):
        dataset_targets(dataset)


@pytest.mark.parametrize(
    ("batch", "key", "name"),
    [
        ((X,), None, "tuple of 1 entries"),
        ((X, Y), 2, "key=2 for a tuple of 2 entries"),
        ((X, Y), "y", "key='y' for a tuple"),
        ({"x": X}, None, "['x'] has none of ['y', 'label'"),
        ({"y": Y, "label": Y}, None, "has several of"),
        ({"y": Y}, "z", "has none of ['z']"),
        (Data(x=X), None, "Data with the entries ['x'] has none of ['y']"),
        (X, None, "targets of a Tensor"),
    ],
)
def test_batches_without_targets(batch, key, name):
    for use in (batch_targets, lambda batch, key: with_batch_targets(batch, Y, key)):
        with pytest.raises(DataError, match=re.escape(name)):
            use(batch, key)
