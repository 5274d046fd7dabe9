"""What data are, in a few characters: the same for the same samples, another for any other."""

import hashlib

import numpy as np
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torch_geometric.data import Data

from lightning_fl.data import Partitioned, Silos
from lightning_fl.data.digest import data_digest
from lightning_fl.data.molecules.dataset import MoleculeDataset
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.data.partition import IID


def tensors(**changes: float) -> TensorDataset:
    x, y = torch.arange(12.0).reshape(4, 3), torch.arange(4)
    x[1, 2] += changes.get("x", 0)
    y[3] += changes.get("y", 0)
    return TensorDataset(x, y)


class Own(Dataset):
    """A data set of a user's own, with its samples in memory."""

    def __init__(self, data: TensorDataset) -> None:
        self.x, self.labels = data.tensors[0], data.tensors[1].numpy()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], self.labels[index]


class Files(Dataset):
    """One that reads a file for each sample."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        raise AssertionError("nothing is read")


class Endless(IterableDataset):
    def __iter__(self):
        raise AssertionError("nothing is read")


def graphs(data: TensorDataset) -> list[Data]:
    return [Data(x=x[None], edge_index=torch.zeros(2, 0, dtype=torch.long), y=y) for x, y in data]


def molecules(data: TensorDataset) -> MoleculeDataset:
    table = MoleculeTable(
        smiles=["CC", "CCO", "C", "CCN"],
        targets=data.tensors[0][:, :1] + data.tensors[0][:, 2:] + data.tensors[1][:, None],
        rows=[2, 3, 4, 5],
        columns={},
        target_names=["y"],
        target_units=[""],
        place="here",
    )
    return MoleculeDataset(table)


KINDS = {
    "tensors": lambda data: data,
    "subset": lambda data: Subset(ConcatDataset([data, data]), [0, 1, 2, 7]),
    "subset of a subset": lambda data: Subset(Subset(data, [3, 2, 1, 0]), [0, 1, 2, 3]),
    "a set of one's own": Own,
    "a part of it": lambda data: Subset(Own(data), [1, 3, 0, 2]),
    "a list": lambda data: [(x, int(y)) for x, y in data],
    "dicts": lambda data: [{"x": x.numpy(), "y": str(int(y))} for x, y in data],
    "graphs": graphs,
    "molecules": lambda data: Subset(molecules(data), [3, 1, 2, 0]),
    "a loader": lambda data: DataLoader(data, batch_size=2, shuffle=True),
    "two loaders": lambda data: CombinedLoader([DataLoader(data), DataLoader(data, batch_size=2)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_counts(kind: str) -> None:
    make = KINDS[kind]
    first = data_digest(make(tensors()))
    assert first.startswith("4 samples, ")
    assert first == data_digest(make(tensors()))
    assert len({first, data_digest(make(tensors(x=0.5))), data_digest(make(tensors(y=1)))}) == 3


def test_order_and_number_count_and_batches_do_not() -> None:
    data = tensors()
    assert data_digest(data) == data_digest(Subset(data, [0, 1, 2, 3])) == data_digest(DataLoader(data, batch_size=3))
    assert data_digest(data) != data_digest(Subset(data, [1, 0, 2, 3]))
    assert data_digest(Subset(data, [0, 1, 2])).startswith("3 samples, ")


def test_nothing_is_read_for_it() -> None:
    assert data_digest(Files()) == data_digest(DataLoader(Files())) == "4 samples"
    assert data_digest([object(), object()]) == "2 samples"
    assert data_digest(Endless()) == data_digest(DataLoader(Endless())) == "samples of unknown number"


def test_it_depends_on_type_shape_and_bytes_alone() -> None:
    """So that every process, today and later, finds the same."""
    x, y = tensors().tensors
    total = hashlib.sha256(b"torch.float32[4, 3]" + x.numpy().tobytes() + b"torch.int64[4]" + y.numpy().tobytes())
    assert data_digest(tensors()) == f"4 samples, {total.hexdigest()[:16]}"


def test_of_data_in_memory_all_splits_are_known_in_every_stage() -> None:
    samples = TensorDataset(torch.arange(40.0)[:, None], torch.zeros(40))
    divided = Partitioned(samples, IID(num_clients=2), split_seed=0)
    divided.setup()
    silos = Silos({"a": samples, "b": TensorDataset(torch.ones(20, 1))}, split_seed=0)
    for data in (divided, silos):
        fitted = data.data_digests(1, "fit")
        assert list(fitted) == ["train", "val", "test"]
        assert fitted == data.data_digests(1, "test")
        assert fitted["train"] == data_digest(data.client_data(1, "train")) != data.data_digests(0, "fit")["train"]


def test_arrays_of_numpy_count_by_value_and_type() -> None:
    one = [np.arange(3)]
    assert data_digest(one) == data_digest([np.arange(3)]) != data_digest([np.arange(3, dtype="int32")])
