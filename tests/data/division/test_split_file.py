import json

import pytest
import torch
from division_tiny import Rows, held, letters, ready
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data import FromFile, GroupDivision, RandomDivision, Silos
from lightning_fl.data.module import SPLITS
from lightning_fl.data.partition import IID, Dirichlet
from lightning_fl.data.partition.from_file import read_split_file, split_file_text


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
    assert split_file_text(again, range(3)) == path.read_text()


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


def test_a_file_of_samples_is_read_where_they_now_have_rows(saved, rows):
    data, path = saved
    content = json.loads(path.read_text()) | {"numbering": "samples from 0"}
    content["clients"] = [{"name": of["name"], **held(data, client)} for client, of in enumerate(content["clients"])]
    path.write_text(json.dumps(content))
    again = ready(rows, partitioner=FromFile(path=str(path)))
    assert [held(again, c) for c in range(3)] == [held(data, c) for c in range(3)]


def test_what_is_drawn_is_that_of_the_run_whose_seed_the_file_has(saved, rows):
    data, path = saved
    assert ready(rows, partitioner=FromFile(path=str(path)), split_seed=77).partition_seed == data.partition_seed
    change(saved, lambda c: c.pop("split_seed"))  # of an older version
    assert ready(rows, partitioner=FromFile(path=str(path)), split_seed=77).partition_seed == 77


def test_data_without_numbers_leave_no_file():
    silos = Silos([TensorDataset(torch.zeros(4), torch.zeros(4))])
    silos.setup("fit")
    assert split_file_text(silos, [0]) is None


@pytest.mark.parametrize("together", [True, False])
def test_copies_that_a_run_kept_together_stay_so(tmp_path, together):
    rows = Rows({"thing": [f"m{number % 20}" for number in range(60)]})
    path = tmp_path / "splits.json"
    data = ready(rows, together=together)
    path.write_text(split_file_text(data, [0]))
    again = FromFile(path=str(path))
    if together:
        assert held(ready(rows, together=True, partitioner=again)) == held(data)
    else:
        with pytest.raises(DataError, match="partitioner .* copies of .* of 20 molecules"):
            ready(rows, together=True, partitioner=again)


# ---- refusals: the exception and the thing at fault


def change(saved, edit):
    path = saved[1]
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (lambda c: c.update(format=2), "format 2"),
        (lambda c: c.pop("clients"), "'clients'"),
        (lambda c: c["clients"][0].update(val=["x"]), "numbers"),
        (lambda c: c["clients"][0].update(val=[5, 5]), "twice"),
        (lambda c: c.update(numbering="x"), "splits.json"),
        (lambda c: c.update(split_seed="1"), "splits.json"),
    ],
)
def test_damaged_files(saved, edit, name):
    path = change(saved, edit)
    with pytest.raises(DataError, match=name):
        read_split_file(path)


def test_a_file_that_is_not_json(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x\.json cannot be read as JSON"):
        read_split_file(tmp_path / "x.json")


def test_a_sample_of_two_clients(saved, rows):
    path = change(saved, lambda c: c["clients"][1].update(test=c["clients"][0]["train"][:1]))
    with pytest.raises(DataError, match=r"sample \d+ twice, .* test samples of client_1"):
        ready(rows, partitioner=FromFile(path=str(path)))


def test_other_data(saved, rows):
    again = FromFile(path=str(saved[1]))
    with pytest.raises(DataError, match="sum 00ff, these have 00aa"):
        ready(rows, partitioner=again, sha256="00aa")
    with pytest.raises(DataError, match="1 rows that the data do not have: 61"):
        ready(Rows({"group": ["g"] * 59}), partitioner=again)
    with pytest.raises(DataError, match="the parts train, not test, train"):
        ready({"train": rows, "test": rows}, partitioner=again)
    with pytest.raises(DataError, match="numbers rows, and these data do not"):
        ready(letters("a" * 60).without_rows(), partitioner=again)


def test_samples_without_rows_must_be_as_many(tmp_path):
    path = tmp_path / "splits.json"
    path.write_text(split_file_text(ready(letters("a" * 60).without_rows()), [0]))
    with pytest.raises(DataError, match="'train': 60} samples, not {'train': 61}"):
        ready(letters("a" * 61).without_rows(), partitioner=FromFile(path=str(path)))


@pytest.mark.parametrize("options", [{"folds": 3}, {"division": RandomDivision()}, {"train_shares": [1.0] * 3}])
def test_nothing_else_divides(saved, rows, options):
    with pytest.raises(ConfigurationError, match="FromFile"):
        ready(rows, partitioner=FromFile(path=str(saved[1])), **options)
