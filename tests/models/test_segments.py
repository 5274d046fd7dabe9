"""Sparse products against dense matrices, and the GCN built on them against PyG's layers."""

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCN as PyGGCN
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from lightning_fl.data.molecules.featurizer import encode_smiles, molecule_graphs
from lightning_fl.models import MoleculeModel
from lightning_fl.models.gcn import GCN
from lightning_fl.models.readouts import LinearReadout
from lightning_fl.models.segments import (
    SparseMatrix,
    molecule_matrix,
    normalized_adjacency,
    normalized_edges,
)

SMILES = ["CCO", "C", "c1ccccc1C(=O)O", "[Na+].[Cl-]", "CC(C)(C)c1cc2ccccc2[nH]1", "C" * 80]
EMPTY = torch.empty(2, 0, dtype=torch.long)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def molecules() -> Batch:
    graphs = molecule_graphs(encode_smiles(SMILES))
    items = []
    for i in range(len(SMILES)):
        atoms, edges = slice(*graphs.atom_ptr[i : i + 2].tolist()), slice(*graphs.edge_ptr[i : i + 2].tolist())
        y = torch.randn(1, 1, generator=draws(i))
        items.append(Data(graphs.x[atoms], graphs.edge_index[:, edges], graphs.edge_attr[edges], y))
    return Batch.from_data_list(items)


def shuffled_edges(edge_index: Tensor) -> Tensor:
    return edge_index[:, torch.randperm(edge_index.size(1), generator=draws())]


def kinds_of_edges() -> dict[str, tuple[Tensor, int]]:
    """Edges and numbers of nodes: as molecules have them, and as a user may give them."""
    batch = molecules()
    paired, n = batch.edge_index, batch.num_nodes
    loops = torch.cat([paired, torch.tensor([[0, 5, 5], [0, 5, 5]])], dim=1)
    return {
        "paired": (paired, n),
        "unsorted": (shuffled_edges(paired), n),
        "directed": (paired[:, ::2], n),
        "with self loops": (shuffled_edges(loops), n),
        "paired self loops": (torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]]), 3),
        "twice": (torch.cat([paired, paired[:, :7]], dim=1), n),
        "isolated": (torch.tensor([[1, 3], [3, 1]]), 6),
        "none": (EMPTY, 4),
        "nothing": (EMPTY, 0),
    }


KINDS = list(kinds_of_edges())


def close(one: Tensor, other: Tensor, tolerance: float = 1e-6) -> bool:
    return one.shape == other.shape and bool((one - other).norm() <= tolerance * other.norm() + 1e-12)


def dense(matrix: SparseMatrix, num_columns: int) -> Tensor:
    return matrix @ torch.eye(num_columns, dtype=matrix.rows.weight.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_the_adjacency_is_that_of_pyg(kind):
    edge_index, n = kinds_of_edges()[kind]
    index, weight = gcn_norm(edge_index, None, n, dtype=torch.float64)
    expected = torch.zeros(n, n, dtype=torch.float64).index_put((index[1], index[0]), weight, accumulate=True)
    found = normalized_adjacency(edge_index, n, torch.float64)
    assert torch.allclose(dense(found, n), expected, rtol=1e-12, atol=0)
    assert torch.allclose(found.rows.sums, expected.sum(1), rtol=1e-12)
    assert torch.allclose(found.columns.sums, expected.sum(0), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpus_matrix_is_the_cpus(kind):
    """Values and gradients; it is made of edges in any order, with self loops and without opposite edges."""
    edge_index, n = kinds_of_edges()[kind]
    x = torch.randn(n, 3, dtype=torch.float64, generator=draws(), requires_grad=True)
    found, expected = normalized_edges(edge_index, n, x.dtype) @ x, normalized_adjacency(edge_index, n, x.dtype) @ x
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    weights = torch.randn(n, 3, dtype=torch.float64, generator=draws(1))
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_a_gcn_on_a_gpu_does_not_wait(cuda_standin):
    batch = molecules()
    encoder = GCN(batch.x.shape[1], 8, 3)
    expected = encoder(batch.x, batch.edge_index)
    encoder, x, edge_index = encoder.to("cuda"), batch.x.to("cuda"), batch.edge_index.to("cuda")
    cuda_standin.waits.clear()
    found = encoder(x, edge_index)
    assert not cuda_standin.waits
    torch.testing.assert_close(found.cpu(), expected)


def test_the_matrix_of_molecules():
    membership = torch.tensor([2, 0, 0, 2, 2])
    sums = torch.tensor([[0.0, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    assert torch.equal(dense(molecule_matrix(membership, 4), 5), sums)
    means = sums / sums.sum(1, keepdim=True).clamp(min=1)
    matrix = molecule_matrix(membership, 4, mean=True)
    assert torch.allclose(dense(matrix, 5), means)
    assert torch.allclose(matrix.rows.sums, torch.tensor([1.0, 0, 1, 0]))
    scale = torch.tensor([1.0, -2, 3, 0, 5])
    assert torch.allclose(dense(matrix.scale_columns(scale), 5), means * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_product_are_right(kind):
    edge_index, n = kinds_of_edges()[kind]
    edge_index = edge_index[:, (edge_index < 20).all(0)]
    n = min(n, 20)
    matrix = normalized_adjacency(edge_index, n, torch.float64)
    x = torch.randn(n, 3, dtype=torch.float64, generator=draws(), requires_grad=True)
    assert torch.autograd.gradcheck(matrix.__matmul__, x)
    assert torch.autograd.gradgradcheck(matrix.__matmul__, x)


def test_a_product_does_not_depend_on_the_number_of_threads():
    batch = molecules()
    matrix = normalized_adjacency(batch.edge_index, batch.num_nodes)
    x = torch.randn(batch.num_nodes, 512, generator=draws())
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = matrix @ x
        torch.set_num_threads(4)
        assert torch.equal(matrix @ x, alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("hidden_dim", [16, 64])  # narrower and wider than the atoms
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_those_of_pyg(kind, reduce, num_layers, hidden_dim):
    edge_index, n = kinds_of_edges()[kind]
    x = torch.rand(n, 40, generator=draws(), requires_grad=True)
    # membership in order; where molecules are cut anywhere, bonds join two of them
    membership = torch.randint(0, 5, (n,), generator=draws(1)).sort().values
    size = 7
    torch.manual_seed(3)
    plain = PyGGCN(40, hidden_dim, num_layers)
    torch.manual_seed(3)
    own = GCN(40, hidden_dim, num_layers)
    assert list(own.state_dict()) == list(plain.state_dict())
    assert all(map(torch.equal, own.state_dict().values(), plain.state_dict().values()))
    with torch.no_grad():
        for one, other in zip(own.parameters(), plain.parameters(), strict=True):
            one.add_(0.1)  # biases begin with 0
            other.copy_(one)
    pool = SumAggregation() if reduce == "sum" else MeanAggregation()
    expected = pool(plain(x, edge_index), index=membership, dim_size=size)
    slope = torch.randn(expected.shape, generator=draws(2))
    gradients = torch.autograd.grad((expected * slope).sum(), [x, *plain.parameters()])
    readout = LinearReadout(reduce)
    matrix = molecule_matrix(membership, size, mean=reduce == "mean")
    for found in (
        readout(own(x, edge_index), index=membership, dim_size=size),
        own.read_out(x, edge_index, membership, matrix),
    ):
        assert close(found, expected)
        of_own = torch.autograd.grad((found * slope).sum(), [x, *own.parameters()])
        assert all(map(close, of_own, gradients))


def model(**arguments: object) -> MoleculeModel:
    torch.manual_seed(0)
    return MoleculeModel(hidden_dim=32, readout="sum", standardize_targets=False, **arguments)


def pyg_model(**arguments: object) -> MoleculeModel:
    """With PyG's own encoder and readout and the same weights."""
    module = model(**arguments)
    plain = PyGGCN(40, 32, 3, dropout=module.hparams["dropout"])
    plain.load_state_dict(module.encoder.state_dict())
    module.encoder, module.readout = plain, SumAggregation()
    return module


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_model_learns_as_one_with_pygs_layers(dropout):
    ends = []
    for module in (model(dropout=dropout), pyg_model(dropout=dropout)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
        for _ in range(5):
            optimizer.zero_grad()
            module._loss(module.raw_outputs(molecules()), molecules()).backward()
            optimizer.step()
        ends.append(nn.utils.parameters_to_vector(module.parameters()).detach())
    assert not torch.equal(ends[0], nn.utils.parameters_to_vector(model().parameters()))
    assert close(*ends, tolerance=1e-5)


@pytest.mark.parametrize("layer", ["encoder", "encoder.convs.2", "encoder.convs.0.lin", "encoder.act", "readout"])
def test_hooks_see_what_they_would_see_with_pygs_layers(layer):
    """A hook on any layer is called as often, with the same output, and what it returns counts."""
    seen: list[list[Tensor]] = []
    results = []
    for module in (model(), pyg_model()):
        seen.append([])

        def double(part: nn.Module, inputs: object, output: Tensor, kept: list[Tensor] = seen[-1]) -> Tensor:
            kept.append(output)
            return 2 * output

        module.get_submodule(layer).register_forward_hook(double)
        results.append(module(molecules()))
    assert len(seen[0]) == len(seen[1]) > 0
    assert all(map(close, *seen))
    assert close(*results)
    assert not close(results[0], model()(molecules()), tolerance=1e-2)


def test_a_replaced_layer_is_used():
    module = model()
    before = module(molecules())
    lin = module.encoder.convs[2].lin
    module.encoder.convs[2].lin = nn.Sequential(lin, nn.Tanh())
    assert not close(module(molecules()), before, tolerance=1e-2)


def test_double_precision_and_half_precision():
    batch = molecules()
    exact = model().double()(batch.clone().apply(lambda t: t.double() if t.is_floating_point() else t))
    assert exact.dtype == torch.float64
    assert close(model()(batch).double(), exact)
    with torch.autocast("cpu", torch.bfloat16):
        assert close(model()(batch).double(), exact, tolerance=0.02)


def test_a_gradient_of_the_atoms_is_that_of_pyg():
    """As integrated gradients need it."""
    gradients = []
    for module in (model(), pyg_model()):
        batch = molecules()
        batch.x.requires_grad_()
        gradients.append(torch.autograd.grad(module(batch).sum(), batch.x)[0])
    assert close(*gradients)


def test_transforms_of_torch_func_go_through_pygs_layers():
    batch, module = molecules(), model()
    weights = dict(module.named_parameters())

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, values, (batch,)).square().sum()

    module(batch).square().sum().backward()
    found = torch.func.grad(loss)(weights)
    assert all(close(found[name], value.grad, 1e-5) for name, value in weights.items())
