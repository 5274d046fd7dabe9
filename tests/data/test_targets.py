from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from torch_geometric.data import Batch, Data, InMemoryDataset

from lightning_fl.data.targets import batch_targets, dataset_targets, with_batch_targets

Pair = namedtuple("Pair", ["inputs", "targets"])


class _WithTargets(Dataset):
    def __init__(self, targets, length=3):
        self.targets = targets
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        raise AssertionError("samples must not be visited")


class _Graphs(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__()
        self.data, self.slices = self.collate(graphs)


def _graphs(targets):
    return [
        Data(x=torch.ones(n + 1, 2), edge_index=torch.zeros(2, 0, dtype=torch.long), y=y) for n, y in enumerate(targets)
    ]


@pytest.mark.parametrize("targets", [torch.tensor([3, 1, 2]), [3, 1, 2], (3, 1, 2), np.array([3, 1, 2])])
def test_attribute(targets):
    assert dataset_targets(_WithTargets(targets)).tolist() == [3, 1, 2]


def test_tensor_dataset_subset_and_concatenation():
    data = TensorDataset(torch.rand(4, 2), torch.tensor([5.0, 6.0, 7.0, 8.0]))
    assert dataset_targets(data).tolist() == [5.0, 6.0, 7.0, 8.0]
    nested = Subset(Subset(data, [3, 1, 0]), [2, 0])
    assert dataset_targets(nested).tolist() == [5.0, 8.0]
    assert dataset_targets(ConcatDataset([nested, data])).tolist() == [5.0, 8.0, 5.0, 6.0, 7.0, 8.0]
    rows = TensorDataset(torch.rand(2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert dataset_targets(rows).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])], [[1.0, 2.0], [3.0, 4.0]]),
        ([torch.tensor([[1.0]]), torch.tensor([[2.0]])], [[1.0], [2.0]]),
        ([torch.tensor([1]), torch.tensor([2])], [1, 2]),
        ([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])], [[1.0, 2.0], [3.0, 4.0]]),
        ([1.5, 2.5], [1.5, 2.5]),
    ],
)
def test_list_of_graphs(targets, expected):
    assert dataset_targets(_graphs(targets)).tolist() == expected


def test_in_memory_graphs_and_their_views():
    graphs = _Graphs(_graphs([torch.tensor([[float(n)]]) for n in range(4)]))
    assert dataset_targets(graphs).tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert dataset_targets(graphs[[2, 0]]).tolist() == [[2.0], [0.0]]
    assert dataset_targets(Subset(graphs, [3, 1])).tolist() == [[3.0], [1.0]]


def test_list_of_pairs():
    assert dataset_targets([(torch.rand(2), 1), (torch.rand(2), 0)]).tolist() == [1, 0]


X, Y, NEW = torch.rand(3, 2), torch.tensor([0, 1, 2]), torch.tensor([5.0, 6.0, 7.0])


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        ((X, Y), None),
        ([X, Y], None),
        ((Y, X), 0),
        (Pair(X, Y), None),
        ({"x": X, "label": Y}, None),
        ({"x": X, "y": X, "score": Y}, "score"),
        (UserDict(inputs=X, labels=Y), None),
        (Data(x=X, y=Y), None),
        (Data(x=X, energy=Y), "energy"),
    ],
)
def test_batch_targets_are_read_and_replaced(batch, key):
    assert torch.equal(batch_targets(batch, key), Y)
    changed = with_batch_targets(batch, NEW, key)
    assert type(changed) is type(batch)
    assert torch.equal(batch_targets(changed, key), NEW)
    assert torch.equal(batch_targets(batch, key), Y)
    # Everything else is the very same object.
    others = zip(_values(batch), _values(changed), strict=True)
    assert all(one is other for one, other in others if one is not Y)


def _values(batch):
    if isinstance(batch, Data):
        return list(batch.to_dict().values())
    return list(batch.values()) if isinstance(batch, dict | UserDict) else list(batch)


def test_graph_batches_stay_batches():
    batch = Batch.from_data_list(_graphs([torch.tensor([[1.0]]), torch.tensor([[2.0]])]))
    changed = with_batch_targets(batch, torch.tensor([[8.0], [9.0]]))
    assert isinstance(changed, Batch)
    assert changed.num_graphs == 2
    assert [graph.y.item() for graph in changed.to_data_list()] == [8.0, 9.0]
    assert batch.y.tolist() == [[1.0], [2.0]]
    assert changed.x is batch.x
