"""Extra descriptors of a molecule in the model: their scale, their place, and the baseline without a graph."""

from functools import partial
from types import SimpleNamespace

import pytest
import small_models
import torch
from small_models import collate, plain_trainer
from tiny import quiet_trainer
from torch_geometric.loader import DataLoader

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data import Partitioned
from lightning_fl.data.partition import IID
from lightning_fl.models import MoleculeModel
from lightning_fl.models.descriptors import DescriptorScale

DESCRIPTORS = 3
make_model = partial(small_models.molecule_model, hidden_dim=8, task="regression", num_targets=1)


def molecules(count, first=0):
    graphs = small_models.molecules(count, first=first)
    for seed, graph in enumerate(graphs, first):
        graph.descriptors = torch.randn(1, DESCRIPTORS, generator=torch.Generator().manual_seed(seed)) * 5 + 2
    return graphs


def fit(model, data, **arguments):
    settings = {"max_rounds": 1, "local_steps": 1, "enable_checkpointing": True}
    trainer = quiet_trainer(**(settings | arguments))
    trainer.fit(model, data)
    return trainer


# Their scale


def test_the_scale_is_the_training_datas_and_deviations_are_cut():
    scale = DescriptorScale(2, learns=True)
    values = torch.tensor([[1.0, 7.0], [3.0, 7.0], [8.0, 7.0]])
    scale.learn(lambda: (values.double().mean(0), values.double().std(0, correction=0)))
    mean, std = 4.0, (((1 - 4) ** 2 + (3 - 4) ** 2 + (8 - 4) ** 2) / 3) ** 0.5
    expected = torch.tensor([[(1 - mean) / std, 0], [(3 - mean) / std, 0], [(8 - mean) / std, 0]])
    torch.testing.assert_close(scale(values), expected)
    assert scale(torch.tensor([[1e6, 7.0], [-1e6, 7.0]])).tolist() == [[6, 0], [-6, 0]]
    scale.learn(lambda: pytest.fail("learned twice"))


def test_without_a_scale_descriptors_are_as_they_are():
    scale = DescriptorScale(2, learns=False)
    scale.learn(lambda: pytest.fail("asked"))
    values = torch.tensor([[100.0, -100.0]])
    assert torch.equal(scale(values), values)


@pytest.mark.parametrize("encoder", ["gcn", "fingerprint"])
def test_all_clients_and_a_plain_trainer_learn_the_same_scale(encoder, tmp_path):
    graphs = molecules(24)
    data = Partitioned(graphs, IID(num_clients=3), split=(1.0, 0.0, 0.0))
    federated = make_model(encoder=encoder, descriptor_dim=DESCRIPTORS)
    fit(federated, data, default_root_dir=str(tmp_path))
    alone = make_model(encoder=encoder, descriptor_dim=DESCRIPTORS)
    plain_trainer(max_epochs=1).fit(alone, DataLoader(graphs, batch_size=5))
    values = torch.cat([graph.descriptors for graph in graphs]).double()
    for model in (federated, alone):
        torch.testing.assert_close(model.descriptor_scale.mean, values.mean(0).float())
        torch.testing.assert_close(model.descriptor_scale.scale, values.std(0, correction=0).float())


@pytest.mark.parametrize("encoder", ["gcn", "fingerprint"])
def test_a_model_that_is_told_so_takes_descriptors_as_they_are(encoder, tmp_path):
    graphs = molecules(24)
    model = make_model(encoder=encoder, descriptor_dim=DESCRIPTORS, standardize_descriptors=False)
    fit(model, Partitioned(graphs, IID(num_clients=3), split=(1.0, 0.0, 0.0)), default_root_dir=str(tmp_path))
    values = torch.cat([graph.descriptors for graph in graphs])
    assert values.abs().max() > 6  # else cut
    assert torch.equal(model.descriptor_scale(values), values)


# Their place


def test_the_readout_gives_the_molecule_and_its_standardised_descriptors():
    model, batch = make_model(descriptor_dim=DESCRIPTORS).eval(), collate(molecules(5))
    model.descriptor_scale.set_statistics(torch.full((3,), 2.0), torch.full((3,), 5.0))
    seen = []
    model.readout.register_forward_hook(lambda module, args, output: seen.append(output))
    prediction = model(batch)
    plain = make_model().eval()  # the same seed: the encoder is the same with and without descriptors
    atoms = plain.encoder(batch.x, batch.edge_index)
    expected = plain.readout(atoms, index=batch.batch, dim_size=5)
    torch.testing.assert_close(seen[0], torch.cat([expected, (batch.descriptors - 2) / 5], dim=1))
    torch.testing.assert_close(prediction, model.head(seen[0]))


def test_a_fingerprint_sees_no_graph():
    model = make_model(encoder="fingerprint", descriptor_dim=DESCRIPTORS).eval()
    graphs = molecules(4)
    before = model(collate(graphs))
    for graph in graphs:
        graph.x = graph.x + 1
    assert torch.equal(model(collate(graphs)), before)
    first = model.encoder.layers[0]
    assert (first.in_features, first.out_features) == (DESCRIPTORS, 8)
    values = torch.cat([graph.descriptors for graph in graphs])
    layers = model.encoder.layers
    hidden = layers[3](layers[0](values.clamp(-6, 6)).relu()).relu()  # mean 0 and scale 1 until it is trained
    torch.testing.assert_close(before, model.head(hidden))


# Their number


class WithDescriptors(Partitioned):
    descriptor_dim = DESCRIPTORS


@pytest.mark.parametrize("encoder", ["gcn", "fingerprint"])
def test_their_number_comes_from_the_data_and_gives_the_same_bits(encoder, tmp_path):
    trained = []
    for given in (None, DESCRIPTORS):
        data = WithDescriptors(molecules(12), IID(num_clients=2), split=(1.0, 0.0, 0.0), split_seed=0)
        model = make_model(encoder=encoder, descriptor_dim=given)
        trainer = fit(model, data, default_root_dir=str(tmp_path / str(given)), logger=True)
        assert model.hparams["descriptor_dim"] == DESCRIPTORS
        opened = MoleculeModel.load_from_checkpoint(f"{trainer.log_dir}/models/shared_0.ckpt").eval()
        assert opened.hparams["descriptor_dim"] == DESCRIPTORS
        batch = collate(molecules(4, first=5))
        assert torch.equal(opened(batch), model.eval()(batch))
        trained.append(torch.cat([value.flatten() for value in model.state_dict().values()]))
    assert torch.equal(*trained)


def test_a_model_without_descriptors_is_as_before():
    model = make_model()
    assert not [name for name, _ in model.named_buffers() if "scale" in name and "target" not in name]
    model._trainer = SimpleNamespace(training=False)
    model.setup("validate")
    assert model.hparams["descriptor_dim"] == 0


# Errors


def test_a_fingerprint_needs_descriptors(tmp_path):
    data = Partitioned(small_models.molecules(8), IID(num_clients=2), split=(1.0, 0.0, 0.0))
    with pytest.raises(ConfigurationError, match=r"encoder='fingerprint'.*data\.features.*\[morgan\]"):
        fit(make_model(encoder="fingerprint"), data, default_root_dir=str(tmp_path))


def test_a_single_molecule_is_evaluated(tmp_path):
    model = make_model(descriptor_dim=DESCRIPTORS)
    (metrics,) = plain_trainer().validate(model, DataLoader(molecules(1)), verbose=False)
    (graph,) = molecules(1)
    error = (model.eval()(collate([graph])) - graph.y).abs().item()
    assert metrics["val/mae"] == pytest.approx(error, rel=1e-5)
