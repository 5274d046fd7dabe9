import pytest
import torch
from corners import MixedClients, fit
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import Subset, TensorDataset

from lightning_fl.callbacks import (
    Callback,
    FineTuning,
    ForestReference,
    KNNPer,
    LabelNoise,
    LocalReference,
    LocalTraining,
    PersonalLayers,
    PooledTraining,
    UniformSampling,
)
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data import FederatedDataModule, Partitioned
from lightning_fl.data.partition import Quantity
from lightning_fl.data.shared import pooled_indices
from lightning_fl.trainer.trainer import FederatedTrainer

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, X @ torch.tensor([1.0, -2.0, 0.5]) + 0.1)


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        with torch.no_grad():
            self.layer.weight.zero_()
            self.layer.bias.zero_()

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.layer(batch[0])[:, 0], batch[1])

    def test_step(self, batch, batch_idx):
        self.log("test/loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Line):
    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.training_step(batch, batch_idx))


class InOnePlace(FederatedDataModule):
    """One client with the training samples of all."""

    num_clients = 1

    def __init__(self, data):
        super().__init__(batch_size=8)
        self.data = data

    def client_data(self, client, split):
        return self.data if split == "train" else None


def run(root, data, *callbacks, module=None, **settings):
    settings = {"max_rounds": 3, "local_steps": 4, "logger": False, "enable_progress_bar": False} | settings
    trainer = FederatedTrainer(callbacks=list(callbacks), seed=3, default_root_dir=root, **settings)
    trainer.fit(module or Line(), data)
    return trainer


def three_clients():
    return Partitioned(DATA, Quantity(ratios=[1, 2, 3]), split=(0.5, 0.2, 0.3), batch_size=8)


def test_it_is_the_training_of_one_client_who_has_all_samples(tmp_path):
    data = three_clients()
    pooled = run(tmp_path / "pooled", data, PooledTraining())
    together = torch.cat([torch.tensor(data.client_data(client, "train").indices) for client in range(3)])
    assert len(together) == len(set(together.tolist())) < len(DATA)
    alone = run(tmp_path / "alone", InOnePlace(Subset(DATA, together.sort().values.tolist())))
    assert pooled.models[0].equal(alone.models[0])
    assert pooled.models[0].vectors[torch.float32].abs().sum() > 0


def test_clients_are_tested_on_their_own_data(tmp_path):
    data = three_clients()
    trainer = run(tmp_path, data, PooledTraining())
    found = trainer.test(trainer.module, data)
    weights = trainer.models[0].vectors[torch.float32]
    layer = trainer.module.layer
    assert torch.equal(weights[: layer.weight.numel()], layer.weight.flatten())
    for client, value in found["test/loss"].clients.items():
        x, y = DATA[data.client_data(client, "test").indices]
        expected = nn.functional.mse_loss(layer(x)[:, 0], y).item()
        assert value == pytest.approx(expected, rel=1e-6)


def test_clients_have_their_own_data_again_afterwards(tmp_path):
    data = three_clients()
    before = run(tmp_path / "a", three_clients())
    run(tmp_path / "b", data, PooledTraining())
    sizes = data.num_samples("train")
    assert sizes == three_sizes()
    assert run(tmp_path / "c", data).models[0].equal(before.models[0])


def three_sizes():
    data = three_clients()
    data.setup("fit")
    return data.num_samples("train")


def test_pooled_indices_are_ascending_and_each_once():
    parts = [torch.tensor([5, 9]), torch.tensor([0, 5]), torch.tensor([], dtype=torch.int64)]
    assert pooled_indices(parts).tolist() == [0, 5, 9]


def test_data_of_several_places_are_refused():
    with pytest.raises(ConfigurationError, match="MixedClients .*PooledTraining"):
        fit(PooledTraining())
    assert not MixedClients().pinned


@pytest.mark.parametrize("other", [LocalTraining(), UniformSampling(cohort_size=1)])
def test_another_choice_of_models_or_clients_is_refused(other: Callback, tmp_path):
    with pytest.raises(ConfigurationError, match="PooledTraining and"):
        run(tmp_path, three_clients(), PooledTraining(), other)


@pytest.mark.parametrize(
    "other",
    [FineTuning(), ForestReference(), KNNPer(), LabelNoise(), LocalReference(), PersonalLayers(layers=["layer.bias"])],
)
def test_what_trains_on_the_clients_own_samples_is_refused(other: Callback, tmp_path):
    with pytest.raises(ConfigurationError, match=f"PooledTraining .*{type(other).__name__}"):
        run(tmp_path, three_clients(), PooledTraining(), other, module=Validated())


def test_a_finished_run_of_local_training_is_no_hindrance(tmp_path):
    alone = run(tmp_path, three_clients(), LocalTraining(), logger=True)
    local = alone.test(alone.module, three_clients())["test/loss"].clients
    pooled = run(tmp_path, data := three_clients(), PooledTraining(), LocalReference(run=alone.log_dir))
    own = pooled.test(pooled.module, data)["test/loss"].clients
    assert pooled.gains["test"]["test/loss"].clients == {client: local[client] - own[client] for client in range(3)}
