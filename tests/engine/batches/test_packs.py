import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.batches.factory import pack_dataset
from lightning_fl.engine.batches.graph_packs import GraphPack
from lightning_fl.engine.batches.packs import Pack, TensorPack


class Graphs(InMemoryDataset):
    """Graphs held in memory, as a downloaded data set is."""

    def __init__(self, graphs: list[Data], transform=None):
        super().__init__(None, transform)
        self.data, self.slices = self.collate(graphs)


def chain(num_nodes: int, **attributes) -> Data:
    """A path of nodes; a single atom has no edge."""
    ends = torch.arange(num_nodes)
    edges = torch.stack([ends[:-1], ends[1:]])
    draws = torch.Generator().manual_seed(num_nodes)
    return Data(
        x=torch.randn(num_nodes, 3, generator=draws),
        edge_index=edges,
        edge_attr=torch.randn(edges.shape[1], 2, generator=draws),
        y=torch.randn(1, 2, generator=draws),
        **attributes,
    )


def molecules() -> list[Data]:
    return [
        chain(
            n,
            smiles="C" * n,
            ring_index=torch.tensor([[0], [n - 1]]),  # one column, counted in nodes
            face=torch.full((3, n // 2), n - 1),
            root_index=n - 1,
            charge=float(n) / 3,
            weight=torch.tensor(float(n)),
            heavy=n > 2,
            symbols=["C"] * n,
            position=torch.arange(n, dtype=torch.int32),
        )
        for n in (4, 1, 3, 1, 7, 2, 5)
    ]


def assert_equal(ours, theirs) -> None:
    """Equal in every attribute, with equal types."""
    assert type(ours) is type(theirs)
    if isinstance(ours, Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert torch.equal(ours, theirs)
    elif isinstance(ours, Data):
        assert set(ours.keys()) == set(theirs.keys())
        for key in theirs.keys():  # noqa: SIM118
            assert_equal(ours[key], theirs[key])
    else:
        assert ours == theirs


def assert_batches_equal(pack: Pack, graphs: list[Data], indices: list[int], sizes: list[int]) -> None:
    batches = pack.gather(torch.tensor(indices), sizes)
    assert len(batches) == len(sizes)
    begin = 0
    for ours, size in zip(batches, sizes, strict=True):
        chosen = [graphs[i] for i in indices[begin : begin + size]]
        theirs = Batch.from_data_list(chosen)
        begin += size
        assert_equal(ours, theirs)
        assert ours.num_graphs == theirs.num_graphs == size
        assert ours.num_nodes == theirs.num_nodes
        assert ours.batch_size == size
        for one, other in zip(ours.to_data_list(), theirs.to_data_list(), strict=True):
            assert_equal(one, other)
        for position in range(size):
            assert_equal(ours.get_example(position), theirs.get_example(position))


@pytest.mark.parametrize("make", [list, Graphs])
@pytest.mark.parametrize(
    ("indices", "sizes"),
    [([0, 1, 2, 3, 4, 5, 6], [7]), ([6, 2, 4, 0, 1, 5], [2, 3, 1]), ([1, 3], [1, 1]), ([4, 4, 4], [3]), ([1, 3], [2])],
)
def test_batches_equal_pyg_s(make, indices, sizes):
    graphs = molecules()
    pack = pack_dataset(make(graphs))
    assert isinstance(pack, GraphPack)
    assert pack.num_samples == len(graphs)
    # A held data set gives numbers back as tensors; so do its batches.
    assert_batches_equal(pack, list(make(graphs)), indices, sizes)


def test_the_round_trip_gives_the_graphs_back():
    graphs = [chain(n, smiles="C" * n) for n in (4, 1, 3)]
    (batch,) = pack_dataset(graphs).gather(torch.tensor([2, 0, 1]), [3])
    for back, i in zip(batch.to_data_list(), [2, 0, 1], strict=True):
        assert_equal(back, graphs[i])


@pytest.mark.parametrize("make", [list, Graphs])
def test_graphs_with_explicit_num_nodes(make):
    """Isolated nodes that no edge names count."""
    graphs = [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=n, y=torch.tensor([float(n)])) for n in (5, 2, 3)]
    pack = pack_dataset(make(graphs))
    assert isinstance(pack, GraphPack)
    assert_batches_equal(pack, graphs, [2, 0, 1, 1], [3, 1])


def test_explicit_num_nodes_beside_node_features():
    graphs = [chain(n) for n in (2, 3)]
    for graph in graphs:
        graph.num_nodes = graph.x.shape[0]
    assert_batches_equal(pack_dataset(graphs), graphs, [1, 0], [2])


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
def test_the_number_of_nodes_is_what_pyg_takes_it_for():
    by_edges = [Data(edge_index=torch.tensor([[0], [n]]), y=torch.zeros(1)) for n in (4, 1)]
    assert_batches_equal(pack_dataset(by_edges), by_edges, [0, 1], [2])
    assert pack_dataset(Graphs(by_edges)) is None
    by_name = [Data(node_color=torch.arange(n), edge_index=torch.tensor([[0], [0]])) for n in (4, 2)]
    assert_batches_equal(pack_dataset(by_name), by_name, [1, 0], [2])
    assert_batches_equal(pack_dataset(Graphs(by_name)), by_name, [1, 0], [2])
    # PyG does not take z for a node attribute: the largest node that an edge names decides.
    by_charge = [Data(z=torch.arange(n), edge_index=torch.tensor([[0], [0]])) for n in (4, 2)]
    assert_batches_equal(pack_dataset(by_charge), by_charge, [0, 1], [2])
    assert pack_dataset(Graphs(by_charge)) is None


def test_two_attributes_of_equal_lengths_in_different_places():
    """Edges and nodes happen to be equally many in every graph."""
    graphs = [
        Data(x=torch.full((n, 1), float(n)), edge_index=torch.zeros(2, n, dtype=torch.long), y=torch.tensor([n]))
        for n in (2, 3, 1)
    ]
    assert_batches_equal(pack_dataset(graphs), graphs, [2, 1, 0], [3])


def test_one_graph_alone():
    graphs = [chain(3)]
    assert_batches_equal(pack_dataset(graphs), graphs, [0], [1])
    assert pack_dataset(Graphs(graphs)) is None  # PyG holds a single graph in another way


def test_gathering_changes_nothing_held():
    graphs = molecules()
    pack = pack_dataset(graphs)
    first = pack.gather(torch.arange(7), [7])[0]
    for value in first.to_dict().values():
        if isinstance(value, Tensor):
            value.zero_()
    assert_batches_equal(pack, graphs, list(range(7)), [7])


def test_a_step_may_add_what_it_learns_in_place():
    learned = torch.zeros(1, requires_grad=True)
    batch, _ = pack_dataset(molecules()).gather(torch.arange(4), [3, 1])
    batch.x.add_(learned)
    batch.x.sum().backward()
    assert learned.grad == batch.x.numel()


def test_other_targets():
    graphs = molecules()
    new = torch.arange(6.0).reshape(3, 2)
    batches = pack_dataset(graphs).gather(torch.tensor([5, 0, 2]), [2, 1], targets=new)
    assert torch.equal(batches[0].y, new[:2])
    assert torch.equal(batches[1].y, new[2:])
    assert torch.equal(batches[0].to_data_list()[1].y, new[1:2])
    assert torch.equal(batches[0].x, torch.cat([graphs[5].x, graphs[0].x]))


def test_targets_are_one_row_per_graph():
    graphs = molecules()
    assert torch.equal(pack_dataset(graphs).targets, torch.cat([graph.y for graph in graphs]))
    without = [Data(x=torch.ones(2, 1)), Data(x=torch.ones(1, 1))]
    pack = pack_dataset(without)
    assert pack.device == torch.device("cpu")
    with pytest.raises(ConfigurationError, match="`y`"):
        _ = pack.targets
    by_node = [Data(x=torch.ones(n, 1), y=torch.zeros(n)) for n in (2, 1)]
    pack = pack_dataset(by_node)
    assert_batches_equal(pack, by_node, [1, 0], [2])
    with pytest.raises(ConfigurationError, match=r"`y` of shape \[1, T\]"):
        _ = pack.targets


class Counted(Data):
    """Adds 100 to the positions of every graph before it in a batch, and not the number of its nodes."""

    def __inc__(self, key, value, *args, **kwargs):
        return 100 if key == "atom_index" else super().__inc__(key, value, *args, **kwargs)


class Doubling(Graphs):
    def get(self, idx):
        graph = super().get(idx)
        graph.x = graph.x * 2
        return graph


@pytest.mark.parametrize(
    "dataset",
    [
        [],
        [chain(2, node_batch=torch.zeros(2, dtype=torch.long))] * 2,
        [chain(2, kept_index=torch.tensor([True, False]))] * 2,
        [chain(2, parts=[torch.ones(1), torch.ones(2)])] * 2,
        [chain(2, parts=[torch.ones(1)] * n) for n in (2, 1)],
        [chain(2, nested={"a": torch.ones(1)})] * 2,
        [chain(2, adjacency=torch.eye(2).to_sparse())] * 2,
        [Data(x=torch.ones(n, 1), distances=torch.ones(n, n)) for n in (2, 3)],
        [chain(2, label=1), chain(2, label=torch.tensor([1]))],
        [chain(2, label=1), chain(2)],
        [chain(2), chain(2).to_heterogeneous()],
        [chain(2, atom_index=torch.ones(1)), Counted(**chain(2, atom_index=torch.ones(1)).to_dict())],
        [chain(2), (torch.ones(1), 0)],
        Graphs([chain(2, label="soluble"), chain(2, label=1)]),
        [HeteroData(), HeteroData()],
        [Data(y=torch.zeros(1)), Data(y=torch.zeros(1))],
        Graphs([chain(2), chain(3)], transform=lambda graph: graph),
        Graphs([chain(2, adjacency=torch.eye(2).to_sparse())] * 2),
        Doubling([chain(2), chain(3)]),
        [(torch.ones(1), 0)],
        torch.utils.data.ConcatDataset([TensorDataset(torch.ones(2))]),
    ],
)
@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
def test_what_is_not_simply_held_is_fetched_one_by_one(dataset):
    assert pack_dataset(dataset) is None


def test_an_attribute_of_the_whole_data_set_is_left_out_as_in_pyg():
    dataset = Graphs([chain(2), chain(3)])
    dataset._data.num_relations = 4
    assert_batches_equal(pack_dataset(dataset), list(dataset), [1, 0], [2])


def test_tensor_batches_equal_default_collation():
    dataset = TensorDataset(torch.randn(9, 2, 3), torch.arange(9), torch.randn(9) > 0)
    pack = pack_dataset(dataset)
    assert isinstance(pack, TensorPack)
    assert pack.targets is dataset.tensors[-1]
    assert pack.device == torch.device("cpu")
    order = [8, 0, 3, 3, 1]
    for ours, part in zip(pack.gather(torch.tensor(order), [3, 2]), ([8, 0, 3], [3, 1]), strict=True):
        theirs = default_collate([dataset[i] for i in part])
        assert type(ours) is type(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal(one, other)
    new = torch.tensor([True, True, False, False, True])
    batches = pack.gather(torch.tensor(order), [3, 2], targets=new)
    assert torch.equal(torch.cat([batch[-1] for batch in batches]), new)
    assert torch.equal(batches[1][1], torch.tensor([3, 1]))
