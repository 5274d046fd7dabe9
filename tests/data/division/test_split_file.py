import json

import pytest
import torch
from division_tiny import Rows, held, ready
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data import FromFile, GroupDivision, RandomDivision, Silos
from lightning_fl.data.module import SPLITS
from lightning_fl.data.partition import IID, Dirichlet
from lightning_fl.data.partitioned import Partitioned
from lightning_fl.data.split_file import read_split_file, split_file_text


@pytest.fixture
def rows():
    return Rows({"group": [f"g{number % 11}" for number in range(60)]}, labels=[n % 3 for n in range(60)])


@pytest.fixture
def saved(tmp_path, rows):
    data = ready(rows, partitioner=Dirichlet(num_clients=3, alpha=0.5), division=GroupDivision(column="group"))
    path = tmp_path / "splits.json"
    path.write_text(split_file_text(data, range(3)))
    return data, path


def test_the_file_names_rows_and_the_file_of_data(saved):
    data, path = saved
    content = json.loads(path.read_text())
    assert content["files"] == [{"file": "rows.csv", "sha256": "00ff"}]
    assert (content["numbering"], content["split_seed"]) == ("rows", 1)
    for client, entry in enumerate(content["clients"]):
        assert entry["name"] == data.client_names()[client]
        assert {split: [row - 2 for row in entry[split]] for split in SPLITS} == held(data, client)


def test_the_partition_and_division_are_repeated_whatever_the_seed(saved, rows):
    data, path = saved
    again = ready(rows, partitioner=FromFile(path=str(path)), split_seed=77)
    assert [held(again, c) for c in range(3)] == [held(data, c) for c in range(3)]
    assert again.client_names() == data.client_names()
    text = json.loads(split_file_text(again, range(3)))
    assert text["split_seed"] is None
    assert text["clients"] == json.loads(path.read_text())["clients"]


def test_rows_are_found_wherever_they_stand(saved, rows):
    """Rows that are not used, such as SMILES that cannot be read, may be left out of the data set."""
    data, path = saved
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    moved = Rows({"group": [rows.columns["group"][n] for n in order]})
    moved.rows = [n + 2 for n in order]
    again = ready(moved, partitioner=FromFile(path=str(path)))
    for client in range(3):
        assert {split: sorted(part) for split, part in held(again, client).items()} == held(data, client)


def test_data_with_parts_of_their_own_and_without_rows(tmp_path):
    parts = {
        "train": TensorDataset(torch.zeros(40), torch.arange(40) % 2),
        "test": TensorDataset(torch.zeros(20), torch.arange(20) % 2),
    }
    data = ready(parts, partitioner=IID(num_clients=2))
    path = tmp_path / "splits.json"
    path.write_text(split_file_text(data, range(2)))
    content = json.loads(path.read_text())
    assert content["numbering"] == "samples from 0"
    assert content["parts"] == {"train": "train", "val": "train", "test": "test"}
    again = ready(parts, partitioner=FromFile(path=str(path)), split_seed=5)
    assert [again.held_rows(c) for c in (0, 1)] == [data.held_rows(c) for c in (0, 1)]
    with pytest.raises(DataError, match="is of data with the parts test, train, these have train: give the data as in"):
        ready(parts["train"], partitioner=FromFile(path=str(path)))
    with pytest.raises(DataError, match="counts samples, and these data do not"):
        ready({"train": Rows({"a": ["x"] * 40}), "test": parts["test"]}, partitioner=FromFile(path=str(path)))


def test_any_data_set(tmp_path, rows):
    data = Partitioned(rows, IID(num_clients=2), split_seed=3)
    data.setup("fit")
    path = tmp_path / "splits.json"
    path.write_text(split_file_text(data, range(2)))
    again = Partitioned(rows, FromFile(path=str(path)), split_seed=4)
    again.setup("fit")
    assert [again.held_rows(c) for c in (0, 1)] == [data.held_rows(c) for c in (0, 1)]
    with pytest.raises(ConfigurationError, match="FromFile gives every client's parts as they are: leave out division"):
        Partitioned(rows, FromFile(path=str(path)), folds=3)


def test_other_data_are_refused(saved, rows):
    _, path = saved
    with pytest.raises(DataError, match="is of data with the SHA-256 sum 00ff, these have 00aa: give the same file"):
        ready(rows, partitioner=FromFile(path=str(path)), sha256="00aa")
    few = Rows({"group": ["g"] * 59})
    with pytest.raises(DataError, match=r"names 1 rows that the data do not have: 61\. Give the data as in that run"):
        ready(few, partitioner=FromFile(path=str(path)))


@pytest.mark.parametrize("options", [{"folds": 3}, {"division": RandomDivision()}, {"train_shares": [1.0] * 3}])
def test_nothing_else_divides(saved, rows, options):
    with pytest.raises(ConfigurationError, match="FromFile gives every client's parts as they are: leave out division"):
        ready(rows, partitioner=FromFile(path=str(saved[1])), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format=2), r"is of format 2, this version reads 1"),
        (lambda c: c.pop("clients"), r"is no splits.json of a run, or is damaged \('clients'\)"),
        (lambda c: c["clients"][0].update(val=["x"]), r"damaged \(numbers of samples are expected\)"),
        (lambda c: c["clients"][0].update(val=[5, 5]), r"damaged \(a sample stands twice in one part\)"),
        (lambda c: c.update(numbering="x"), r"is no splits.json of a run, or is damaged"),
    ],
)
def test_damaged_files(saved, change, message):
    content = json.loads(saved[1].read_text())
    change(content)
    saved[1].write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        read_split_file(saved[1])


def test_a_sample_of_two_clients(saved, rows):
    content = json.loads(saved[1].read_text())
    content["clients"][1]["test"] = content["clients"][0]["train"][:1]
    saved[1].write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"has sample \d+ twice, in the test samples of client_1 the second time"):
        ready(rows, partitioner=FromFile(path=str(saved[1])))


def test_what_is_no_json(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x.json cannot be read as JSON: .*Give the splits.json of a run"):
        read_split_file(tmp_path / "x.json")


def test_data_without_numbers_leave_no_file():
    silos = Silos([TensorDataset(torch.zeros(4), torch.zeros(4))])
    silos.setup("fit")
    assert split_file_text(silos, [0]) is None
