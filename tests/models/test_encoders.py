"""The encoders against PyG's own models and plain loops, and the node of the whole molecule."""

from functools import partial

import pytest
import torch
from small_models import ATOM, BOND, collate, molecule, molecule_model
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import AttentiveFP, GINEConv

from lightning_fl.models.attentive_fp import AttentiveFPEncoder, AttentiveFPReadout
from lightning_fl.models.bond_encoders import DMPNN, GINE, reverse_edges
from lightning_fl.models.encoders import build_encoder

DIM = 8
SIZES = {"node_dim": ATOM, "edge_dim": BOND, "hidden_dim": DIM, "dropout": 0.0}
GRAPH_ENCODERS = ("gcn", "gat", "gin", "gine", "mpnn", "dmpnn", "attentivefp")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# D-MPNN


def plain_dmpnn(encoder, graph):
    """Equations 3 to 7 of Yang et al. 2019, bond by bond."""
    bonds = [tuple(pair) for pair in graph.edge_index.t().tolist()]
    first = {
        bond: encoder.W_i.weight @ torch.cat([graph.x[bond[0]], graph.edge_attr[number]])
        for number, bond in enumerate(bonds)
    }
    h = {bond: value.relu() for bond, value in first.items()}
    nothing = torch.zeros(DIM)
    for _ in range(encoder.num_layers - 1):
        h = {
            (v, w): (
                first[v, w] + encoder.W_h.weight @ sum((h[k, u] for k, u in bonds if u == v and k != w), nothing)
            ).relu()
            for v, w in bonds
        }
    atoms = [sum((h[w, u] for w, u in bonds if u == v), nothing) for v in range(len(graph.x))]
    return encoder.W_o(torch.cat([graph.x, torch.stack(atoms)], dim=1)).relu()


@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.parametrize("num_atoms", [1, 2, 7])
def test_dmpnn_is_the_paper_bond_by_bond(num_layers, num_atoms):
    encoder, graph = DMPNN(**SIZES, num_layers=num_layers), molecule(num_atoms)
    torch.testing.assert_close(encoder(graph.x, graph.edge_index, graph.edge_attr), plain_dmpnn(encoder, graph))


def test_dmpnn_finds_the_other_direction_in_any_order_of_edges():
    encoder, graph = DMPNN(**SIZES, num_layers=3), molecule(7)
    order = torch.randperm(graph.edge_index.size(1))
    torch.testing.assert_close(
        encoder(graph.x, graph.edge_index[:, order], graph.edge_attr[order]),
        encoder(graph.x, graph.edge_index, graph.edge_attr),
    )


def test_dmpnn_is_chemprops():
    nets, data = pytest.importorskip("chemprop.nn"), pytest.importorskip("chemprop.data")
    graph = molecule(7)
    theirs = nets.BondMessagePassing(d_v=ATOM, d_e=BOND, d_h=DIM, depth=3)
    ours = DMPNN(**SIZES, num_layers=3)
    ours.load_state_dict({key: value for key, value in theirs.state_dict().items() if key.startswith("W_")})
    reverse, _ = reverse_edges(graph.edge_index, 7)
    molecules = data.BatchMolGraph.__new__(data.BatchMolGraph)
    for name, value in {
        "V": graph.x,
        "E": graph.edge_attr,
        "edge_index": graph.edge_index,
        "rev_edge_index": reverse,
        "batch": torch.zeros(7, dtype=torch.long),
    }.items():
        object.__setattr__(molecules, name, value)
    torch.testing.assert_close(ours(graph.x, graph.edge_index, graph.edge_attr), theirs.eval()(molecules))


def test_reverse_edges():
    pairs = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    reverse, all_there = reverse_edges(pairs, 3)
    assert (reverse.tolist(), all_there) == ([1, 0, 3, 2], None)
    mixed = torch.tensor([[0, 1, 2, 1, 2], [1, 2, 1, 0, 0]])  # 2 -> 0 has none that leads back
    reverse, there = reverse_edges(mixed, 3)
    assert there.tolist() == [True, True, True, True, False]
    assert reverse[:4].tolist() == [3, 2, 1, 0]
    reverse, _ = reverse_edges(torch.zeros(2, 0, dtype=torch.long), 3)
    assert reverse.shape == (0,)


def test_dmpnn_of_an_edge_without_a_way_back_subtracts_nothing():
    # 0 -> 1 -> 2: what reaches 2 is relu(first + W_h relu(first of 0 -> 1)).
    encoder = DMPNN(**SIZES, num_layers=2)
    x, edges, features = torch.randn(3, ATOM), torch.tensor([[0, 1], [1, 2]]), torch.rand(2, BOND)
    first = encoder.W_i(torch.cat([x[:2], features], dim=1))
    h = (first[1] + encoder.W_h(first[0].relu())).relu()
    expected = encoder.W_o(torch.cat([x[2], h])).relu()
    torch.testing.assert_close(encoder(x, edges, features)[2], expected)


# GINE, GIN and AttentiveFP


def test_gine_is_pygs_layers():
    encoder, graph = GINE(**SIZES, num_layers=2), molecule(6)
    h = encoder.embedding(graph.x)
    for number, conv in enumerate(encoder.convs):
        assert isinstance(conv, GINEConv)
        neighbours = torch.zeros(6, DIM)
        for e, (source, target) in enumerate(graph.edge_index.t().tolist()):
            neighbours[target] += (h[source] + conv.lin(graph.edge_attr[e])).relu()
        total = (1 + conv.eps) * h + neighbours
        first, last = conv.nn.lins
        h = last(first(total).relu())
        h = h.relu() if number == 0 else h
    torch.testing.assert_close(encoder(graph.x, graph.edge_index, graph.edge_attr), h)


def test_no_encoder_normalises_over_the_batch():
    for name in GRAPH_ENCODERS:
        encoder = build_encoder(name, **SIZES, num_layers=2)
        assert not [m for m in encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert not list(encoder.buffers())


@pytest.mark.parametrize("num_layers", [1, 3])
def test_attentive_fp_is_pygs_model(num_layers):
    steps = 2
    theirs = AttentiveFP(ATOM, DIM, DIM, edge_dim=BOND, num_layers=num_layers, num_timesteps=steps).eval()
    encoder = AttentiveFPEncoder(**SIZES, num_layers=num_layers)
    readout = AttentiveFPReadout(DIM, dropout=0.0, num_steps=steps)
    encoder.embedding.load_state_dict(theirs.lin1.state_dict())
    for ours, other in zip(encoder.convs, [theirs.gate_conv, *theirs.atom_convs], strict=True):
        ours.load_state_dict(other.state_dict())
    for ours, other in zip(encoder.updates, [theirs.gru, *theirs.atom_grus], strict=True):
        ours.load_state_dict(other.state_dict())
    readout.conv.load_state_dict(theirs.mol_conv.state_dict())
    readout.update.load_state_dict(theirs.mol_gru.state_dict())
    batch = collate([molecule(6, 1), molecule(1, 2), molecule(3, 3)])
    atoms = encoder(batch.x, batch.edge_index, batch.edge_attr)
    torch.testing.assert_close(
        theirs.lin2(readout(atoms, index=batch.batch, dim_size=3)),
        theirs(batch.x, batch.edge_index, batch.edge_attr, batch.batch),
    )


# The node of the whole molecule


make_model = partial(molecule_model, hidden_dim=DIM, num_layers=3)


@pytest.mark.parametrize("encoder", ["gcn", "dmpnn"])
@pytest.mark.parametrize("virtual_node", [True, False])
def test_with_a_virtual_node_the_ends_of_a_long_chain_see_each_other(encoder, virtual_node):
    chain = torch.arange(11)
    edges = torch.stack([torch.stack([chain, chain + 1], 1), torch.stack([chain + 1, chain], 1)], 1).reshape(-1, 2).t()
    graph = Data(x=torch.randn(12, ATOM), edge_index=edges, edge_attr=torch.rand(11, BOND).repeat_interleave(2, 0))
    model = make_model(encoder=encoder, virtual_node=virtual_node).eval()
    first = []
    model.encoder.register_forward_hook(lambda module, args, output: first.append(output[0].detach().clone()))
    model(collate([graph]))
    graph.x[-1] += 1
    model(collate([graph]))
    assert torch.allclose(*first, atol=1e-7) is not virtual_node
