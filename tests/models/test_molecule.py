import sys
from types import SimpleNamespace

import pytest
import torch
from small_models import ATOM, BOND, collate, molecule, molecule_model, molecules, plain_trainer, renumbered, silence
from torch import nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import NNConv

from lightning_fl.core.errors import DataError
from lightning_fl.models import MoleculeModel
from lightning_fl.models.bond_encoders import EdgeNetworkConv
from lightning_fl.models.encoders import EDGE_ENCODERS, build_encoder
from lightning_fl.models.training_targets import gather_statistics, target_moments

ENCODERS = ("gcn", "gat", "gin", "gine", "mpnn", "dmpnn", "attentivefp")
READOUTS = ("mean", "sum", "max", "set2set", "attentivefp")
NAN = float("nan")

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`")


# The functions


def test_target_moments():
    count, mean, deviations = target_moments(torch.tensor([[1.0, NAN], [3.0, NAN], [8.0, NAN]]))
    assert count.tolist() == [3, 0]
    assert mean.tolist() == [4, 0]
    assert deviations.tolist() == [9 + 1 + 16, 0]


# The encoders


def test_edge_network_conv_is_nnconv_with_one_hidden_layer():
    dim, hidden = 6, 4
    graph = molecule(7)
    conv = EdgeNetworkConv(dim=dim, edge_dim=BOND, num_hidden=hidden)
    last = nn.Linear(hidden, dim * dim)
    reference = NNConv(dim, dim, nn.Sequential(conv.edge_network, nn.ReLU(), last), root_weight=False)
    with torch.no_grad():
        blocks = conv.linear.weight.reshape(dim, hidden + 1, dim)  # (out, r, in); NNConv's are (in * out, r)
        last.weight.copy_(blocks[:, :hidden].permute(2, 0, 1).reshape(dim * dim, hidden))
        last.bias.copy_(blocks[:, hidden].t().reshape(-1))
        reference.bias.copy_(conv.linear.bias)
    x = torch.randn(7, dim)
    torch.testing.assert_close(
        conv(x, graph.edge_index, graph.edge_attr), reference(x, graph.edge_index, graph.edge_attr)
    )


@pytest.mark.parametrize("name", sorted(EDGE_ENCODERS))
def test_bond_features_matter(name):
    torch.manual_seed(0)
    graph = molecule(5)
    encoder = build_encoder(name, node_dim=ATOM, edge_dim=BOND, hidden_dim=8, num_layers=2, dropout=0.0)
    changed = graph.edge_attr.clone()
    changed[:2] += 1
    before = encoder(graph.x, graph.edge_index, edge_attr=graph.edge_attr)
    assert not torch.allclose(before, encoder(graph.x, graph.edge_index, edge_attr=changed), atol=1e-4)


# The model's symmetries


@pytest.mark.slow
@pytest.mark.parametrize("virtual_node", [False, True])
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_other_molecules_and_the_order_of_atoms_and_bonds_do_not_matter(encoder, readout, virtual_node):
    model = molecule_model(encoder=encoder, readout=readout, num_targets=2, virtual_node=virtual_node).eval()
    graphs = molecules(8, num_targets=2)  # among them some of one atom, without a bond
    together = model(collate(graphs))
    assert together.shape == (8, 2)
    alone = torch.cat([model(collate([graph])) for graph in graphs])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    shuffled = torch.cat([model(collate([renumbered(graph)])) for graph in graphs])
    torch.testing.assert_close(shuffled, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_molecules_without_bonds(encoder):
    model = molecule_model(encoder=encoder)
    batch = collate([molecule(1, seed) for seed in range(3)])
    assert batch.edge_index.shape == (2, 0)
    model(batch).sum().backward()
    assert model(batch).isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("readout", READOUTS)
def test_an_empty_molecule_at_the_end_has_a_row(readout):
    model = molecule_model(readout=readout).eval()
    seen = []
    model.readout.register_forward_hook(lambda module, args, output: seen.append(output))
    prediction = model(collate([molecule(4), molecule(0)]))
    assert prediction.shape == (2, 1)
    torch.testing.assert_close(prediction[:1], model(collate([molecule(4)])))
    if readout not in ("set2set", "attentivefp"):  # whose rows are states of an LSTM and a GRU, no sums over no atoms
        assert seen[0][1].abs().sum() == 0


# What a hook on the readout can do


@pytest.mark.slow
@pytest.mark.parametrize("readout", READOUTS)
def test_a_hook_on_the_readout_replaces_the_graph_embeddings(readout):
    model = molecule_model(readout=readout).eval()
    batch = collate(molecules(5))
    embeddings = []
    handle = model.readout.register_forward_hook(lambda module, args, output: embeddings.append(output))
    model(batch)
    handle.remove()
    assert embeddings[0].shape == (5, 32 if readout == "set2set" else 16)
    mixed = 0.3 * embeddings[0] + 0.7 * embeddings[0].flip(0)
    model.readout.register_forward_hook(lambda module, args, output: mixed)
    torch.testing.assert_close(model(batch), model.head(mixed))


# Missing targets


@pytest.mark.slow
def test_missing_targets_are_as_if_they_were_not_there():
    graphs = molecules(6)
    graphs[1].y[:] = NAN
    graphs[4].y[:] = NAN
    gradients, losses = [], []
    for part in (graphs, [graphs[i] for i in (0, 2, 3, 5)]):
        model = silence(molecule_model(encoder="mpnn"))
        loss = model.training_step(collate(part), 0)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


def test_a_batch_without_targets_moves_nothing():
    graphs = molecules(3)
    for graph in graphs:
        graph.y[:] = NAN
    model = silence(molecule_model())
    model.training_step(collate(graphs), 0).backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_evaluation_is_over_the_present_entries_of_all_batches():
    graphs = molecules(10, num_targets=2)
    graphs[0].y[0, 1] = NAN
    for graph in graphs[3:6]:  # one batch of three with nothing in it
        graph.y[:] = NAN
    model = molecule_model(num_targets=2)
    model.set_target_statistics(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.5]))
    trainer = plain_trainer()
    loader = DataLoader(graphs, batch_size=3)
    val, test = trainer.validate(model, loader, verbose=False)[0], trainer.test(model, loader, verbose=False)[0]
    everything = collate(graphs)
    with torch.no_grad():
        error = (model.eval()(everything) - everything.y)[~everything.y.isnan()]
        scaled = ((model(everything) - everything.y) / model.target_scale)[~everything.y.isnan()]
    for split, metrics in (("val", val), ("test", test)):
        assert metrics[f"{split}/rmse"] == pytest.approx(error.square().mean().sqrt().item(), rel=1e-5)
        assert metrics[f"{split}/mae"] == pytest.approx(error.abs().mean().item(), rel=1e-5)
        assert metrics[f"{split}/loss"] == pytest.approx(scaled.square().mean().item(), rel=1e-5)


# The scale of the targets


def test_the_scale_is_learned_from_the_training_loader():
    graphs = molecules(9, num_targets=3)
    graphs[2].y[0, 0] = NAN
    for graph in graphs:
        graph.y[0, 2] = 4.0  # the same for all: nothing to scale
    model = molecule_model(num_targets=3)
    plain_trainer(max_epochs=1).fit(model, DataLoader(graphs, batch_size=4))
    targets = torch.cat([graph.y for graph in graphs]).double()
    first = torch.cat([targets[:2, 0], targets[3:, 0]])
    expected_mean = torch.stack([first.mean(), targets[:, 1].mean(), torch.tensor(4.0).double()])
    expected_scale = torch.stack([first.std(correction=0), targets[:, 1].std(correction=0), torch.tensor(1.0).double()])
    torch.testing.assert_close(model.target_mean, expected_mean.float())
    torch.testing.assert_close(model.target_scale, expected_scale.float())


def test_learning_the_scale_does_not_move_the_random_numbers():
    orders = []
    for standardize in (True, False):
        model = molecule_model(standardize_targets=standardize)
        seen = []
        model.on_train_batch_start = lambda batch, index, seen=seen: seen.append(batch.y.flatten())
        loader = DataLoader(molecules(12), batch_size=4, shuffle=True)
        torch.manual_seed(5)
        plain_trainer(max_epochs=1).fit(model, loader)
        orders.append(torch.cat(seen))
    assert torch.equal(*orders)


def test_without_standardisation_targets_are_taken_as_they_are():
    model = molecule_model(standardize_targets=False)
    plain_trainer(max_epochs=1).fit(model, DataLoader(molecules(6)))
    assert (model.target_mean.item(), model.target_scale.item()) == (0, 1)


def test_further_training_keeps_the_scale():
    model = molecule_model()
    plain_trainer(max_epochs=1).fit(model, DataLoader(molecules(6)))
    mean, scale = model.target_mean.clone(), model.target_scale.clone()
    plain_trainer(max_epochs=1).fit(model, DataLoader(molecules(3)))
    assert torch.equal(model.target_mean, mean)
    assert torch.equal(model.target_scale, scale)


def test_a_trainer_that_knows_the_statistics_is_asked():
    model = molecule_model()
    model._trainer = SimpleNamespace(target_statistics=lambda: (torch.tensor([7.0]), torch.tensor([0.0])))
    model.on_fit_start()
    assert (model.target_mean.item(), model.target_scale.item()) == (7, 1)


def test_parts_of_the_data_give_the_statistics_of_the_whole():
    graphs = molecules(9)
    targets = torch.cat([graph.y for graph in graphs])
    parts = torch.stack([target_moments(targets[:2]), target_moments(targets[2:])])
    model = molecule_model()
    model.all_gather = lambda moments: parts  # what two processes would gather
    loop = SimpleNamespace(setup_data=lambda: None)
    model._trainer = SimpleNamespace(fit_loop=loop, train_dataloader=DataLoader(graphs[:2]))
    mean, std = gather_statistics(model, "y")
    torch.testing.assert_close(mean, targets.double().mean(0))
    torch.testing.assert_close(std, targets.double().std(0, correction=0))


def test_no_training_data_to_learn_the_scale_from():
    with pytest.raises(DataError, match="standardize_targets=False"):
        plain_trainer(max_epochs=1, limit_train_batches=0).fit(molecule_model(), DataLoader(molecules(3)))


@pytest.mark.slow
@pytest.mark.parametrize("column", [[NAN, NAN], [float("inf"), 1.0]])
def test_a_target_without_finite_values(column):
    graphs = molecules(2, num_targets=2)
    for graph, value in zip(graphs, column, strict=True):
        graph.y[0, 1] = value
    with pytest.raises(DataError, match=r"targets \[1\]"):
        plain_trainer(max_epochs=1).fit(molecule_model(num_targets=2), DataLoader(graphs))


# Training


def fitted(graphs, encoder="gcn", epochs=1, **arguments):
    model = molecule_model(encoder=encoder, **arguments)
    plain_trainer(max_epochs=epochs).fit(model, DataLoader(graphs, batch_size=len(graphs)))
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS)
def test_twenty_molecules_are_learned_by_heart(encoder):
    graphs = molecules(20)
    for graph in graphs:
        graph.y = 100 + 10 * graph.y
    model = fitted(graphs, encoder, epochs=150, hidden_dim=32, optimizer="adam")
    batch = collate(graphs)
    with torch.no_grad():
        error = (model(batch) - batch.y).square().mean().sqrt()
    assert error < 0.1 * batch.y.std()


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.9), ("adam", 0.0)])
def test_shift_and_unit_of_the_targets_do_not_matter(optimizer, momentum):
    graphs, other = molecules(12), molecules(12)
    for graph in other:
        graph.y = -20 + 3 * graph.y
    batch = collate(graphs)
    arguments = {"epochs": 10, "optimizer": optimizer, "momentum": momentum}
    with torch.no_grad():
        one, two = fitted(graphs, **arguments)(batch), fitted(other, **arguments)(batch)
    torch.testing.assert_close(two, -20 + 3 * one, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weight_decay_pulls_the_weights_in(optimizer):
    graphs = molecules(4)
    for graph in graphs:
        graph.y[:] = NAN  # no loss: the penalty is all that moves the weights
    model = silence(molecule_model(optimizer=optimizer, weight_decay=0.5, learning_rate=0.01))
    before = model.head[0].weight.detach().clone()
    optimizer_ = model.configure_optimizers()
    model.training_step(collate(graphs), 0).backward()
    optimizer_.step()
    # SGD: w - lr * decay * w. Adam's first step is lr times the sign of the gradient decay * w.
    expected = before * (1 - 0.01 * 0.5) if optimizer == "sgd" else before - 0.01 * before.sign()
    torch.testing.assert_close(model.head[0].weight.detach(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_dropout_is_active_in_training_only(encoder):
    model = molecule_model(encoder=encoder, dropout=0.5)
    batch = collate(molecules(5))
    assert not torch.equal(model.train()(batch), model(batch))
    torch.testing.assert_close(model.eval()(batch), model(batch))


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("readout", ["mean", "set2set"])
def test_bf16_mixed_is_close_to_full_precision(encoder, readout):
    graphs = molecules(8)
    for graph in graphs:
        graph.y = 1000 + graph.y  # bfloat16 itself cannot tell 1000 from 1001
    predictions = []
    for precision in ("32-true", "bf16-mixed"):
        model = molecule_model(encoder=encoder, readout=readout)
        trainer = plain_trainer(max_epochs=3, precision=precision)
        loader = DataLoader(graphs, batch_size=8)
        trainer.fit(model, loader, loader)
        predictions.append(trainer.predict(model, loader)[0])
    assert predictions[1].dtype == torch.float32
    torch.testing.assert_close(*predictions, atol=0.05, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS)
def test_checkpoint_round_trip(encoder, tmp_path):
    graphs = molecules(6, num_targets=2)
    model = molecule_model(encoder=encoder, readout="set2set", num_targets=2)
    trainer = plain_trainer(max_epochs=2, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(model, DataLoader(graphs, batch_size=3))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    torch.load(tmp_path / "model.ckpt", weights_only=True)
    loaded = MoleculeModel.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    batch = collate(graphs)
    assert torch.equal(loaded.eval()(batch), model.eval()(batch))
    assert dict(loaded.hparams) == dict(model.hparams)


def test_sizes_left_out_are_those_of_the_featuriser(monkeypatch):
    sizes = SimpleNamespace(ATOM_DIM=ATOM, BOND_DIM=BOND)
    monkeypatch.setitem(sys.modules, "lightning_fl.data.molecules.featurizer", sizes)
    model = MoleculeModel(encoder="gat", hidden_dim=16)
    assert (model.hparams.node_dim, model.hparams.edge_dim) == (ATOM, BOND)
    assert model(collate(molecules(3))).shape == (3, 1)
