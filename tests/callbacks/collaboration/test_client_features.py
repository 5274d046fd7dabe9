"""What discriminators see of a run's clients: vectors, classes, molecules, a layer's output."""

import pytest
import torch
from lightning.pytorch import LightningModule
from tiny import TinyClients, TinyModule, quiet_trainer
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fl.callbacks import Callback
from lightning_fl.callbacks.collaboration.discriminators.inputs import (
    LayerOutput,
    client_features,
    morgan_fingerprints,
    random_projection,
)
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator
from lightning_fl.data import MoleculeNet, Scaffold
from lightning_fl.models import MoleculeModel


class Look(Callback):
    """Asks for features at the start of the fit."""

    def __init__(self, clients, encoder=None):
        self.clients, self.encoder = clients, encoder

    def on_fit_start(self, trainer):
        found = client_features(trainer.loop, self.clients, self.encoder)
        self.features, self.classes = ({client: x.cpu() for client, x in part.items()} for part in found)


def look(module, data, clients, encoder=None):
    callback = Look(clients, encoder)
    quiet_trainer(callback, max_rounds=1, seed=1).fit(module, data)
    return callback


def test_real_targets_are_standardised_over_all_clients_and_features_share_one_scale():
    data = TinyClients()
    seen = look(TinyModule(), data, [0, 2])
    assert set(seen.features) == {0, 2}
    x = torch.cat([data.sets[client, "train"].tensors[0] for client in (0, 2)])
    y = torch.cat([data.sets[client, "train"].tensors[1] for client in (0, 1, 2)])  # moments are those of the run
    scale = x.square().sum(1).mean().sqrt()
    for client in (0, 2):
        own_x, own_y = data.sets[client, "train"].tensors
        label = torch.cat([(own_y - y.mean()) / y.std(correction=0), torch.zeros_like(own_y)], dim=1)
        expected = torch.cat([own_x / scale, 2 * label], dim=1)
        torch.testing.assert_close(seen.features[client], expected, rtol=1e-5, atol=1e-5)
        assert seen.classes[client].tolist() == [0] * len(own_x)


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.body(x).relu())

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Labelled(TinyClients):
    """Classes 0 to 2 at client 0, 3 at the others."""

    def __init__(self):
        super().__init__()
        for (client, split), held in list(self.sets.items()):
            x = held.tensors[0]
            labels = torch.arange(len(x)) % 3 if client == 0 else torch.full((len(x),), 3)
            self.sets[client, split] = TensorDataset(x, labels)


def test_classes_are_one_hot_over_all_clients():
    seen = look(Classifier(), Labelled(), [0, 1, 2])
    labels = seen.features[0][:, 3:]
    assert labels.shape == (24, 4)
    assert torch.equal(labels.argmax(1), torch.arange(24) % 3)
    assert torch.equal(seen.classes[0], torch.arange(24) % 3)
    assert torch.equal(seen.features[1][:, 3:].argmax(1), torch.full((10,), 3))


def test_a_layers_output_is_the_modules_own():
    module, data = Classifier(), Labelled()
    seen = look(module, data, [0, 1, 2], encoder=LayerOutput(module, "body"))
    inputs = torch.cat([data.sets[client, "train"].tensors[0] for client in range(3)])
    with torch.no_grad():
        start = Classifier()
        start.load_state_dict(module.state_dict())
    assert seen.features[0].shape == (24, 5 + 4)
    assert float(torch.cat([seen.features[c][:, :5] for c in range(3)]).square().sum(1).mean()) == pytest.approx(1.0)
    assert len(inputs) == 52


def test_wide_features_are_projected_alike_at_all_clients():
    data, encoder = Labelled(), nn.Linear(3, 150).requires_grad_(False)
    seen = look(Classifier(), data, [0, 1, 2], encoder=encoder)
    encoder.cpu()
    wide = [encoder(data.sets[client, "train"].tensors[0]) for client in range(3)]
    scale = torch.cat(wide).square().sum(1).mean().sqrt()
    for client in range(3):
        expected = random_projection(wide[client], generator(1, "feature projection")) / scale
        assert expected.shape[1] == 128
        torch.testing.assert_close(seen.features[client][:, :-4], expected)


def test_layers_that_do_not_do_are_named():
    module = Classifier()
    module.dropout = nn.Dropout()
    with pytest.raises(ConfigurationError, match="layer='tail'.*Classifier.*body, head"):
        LayerOutput(module, "tail")
    with pytest.raises(ConfigurationError, match="layer='dropout'"):
        LayerOutput(module, "dropout")(torch.zeros(2, 3))
    module.train()
    assert LayerOutput(module, "head")(torch.zeros(2, 3)).shape == (2, 4)
    assert module.training
    assert module.dropout.training


@pytest.mark.slow
def test_molecules_enter_as_fingerprints():
    data = MoleculeNet(name="esol", source="standin", partitioner=Scaffold(num_clients=3))
    with pytest.warns(UserWarning, match="STAND-IN"):
        seen = look(MoleculeModel(hidden_dim=4, num_layers=1), data, [0, 1, 2])
    subset = data.client_data(1, "train")
    bits = morgan_fingerprints([data.dataset.smiles[i] for i in subset.indices])
    projected = random_projection(bits, generator(1, "feature projection"))
    own = seen.features[1]
    assert own.shape == (len(subset), 128 + 2)
    torch.testing.assert_close(own[:, :128] * (projected.norm() / own[:, :128].norm()), projected)


class Mixed(Labelled):
    def __init__(self):
        super().__init__()
        self.sets[2, "train"] = TensorDataset(torch.zeros(8, 3), torch.zeros(8))


class Wide(Labelled):
    def __init__(self):
        super().__init__()
        self.sets[1, "train"] = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))


def test_clients_that_cannot_be_compared_are_named():
    with pytest.raises(ConfigurationError, match="clients 2 and 0"):
        look(Classifier(), Mixed(), [0, 1, 2])
    with pytest.raises(ConfigurationError, match="client 1's .*client 0's"):
        look(Classifier(), Wide(), [0, 1, 2])
