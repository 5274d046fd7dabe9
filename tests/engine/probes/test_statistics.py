import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from tiny import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torch_geometric.data import Data

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.module import FederatedDataModule


class Constant(LightningModule):
    """A module that any batch suits."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return self.weight.square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Given(FederatedDataModule):
    def __init__(self, *clients):
        super().__init__(batch_size=3)
        self.clients = clients

    @property
    def num_clients(self) -> int:
        return len(self.clients)

    def client_data(self, client, split):
        return self.clients[client] if split == "train" else None


class Fetched(Dataset):
    def __init__(self, targets):
        self.targets = targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.zeros(2), self.targets[index]


class AtStart(Callback):
    """What a function finds of the trainer when a round begins."""

    def __init__(self, find):
        self.find = find

    def on_round_start(self, trainer):
        self.found = self.find(trainer)


def found_by(find, tmp_path, *clients):
    callback = AtStart(find)
    quiet_trainer(callback, max_rounds=1, default_root_dir=tmp_path).fit(Constant(), Given(*clients))
    return callback.found


def statistics(tmp_path, *clients):
    return found_by(lambda trainer: trainer.target_statistics(), tmp_path, *clients)


def summaries(tmp_path, *clients):
    def summary(targets):
        return torch.stack([targets.nansum(0), (targets > 0).sum(0)])

    return found_by(lambda trainer: trainer.target_summaries(summary), tmp_path, *clients)


def test_mean_and_deviation_of_the_pooled_targets(tmp_path):
    """Three clients of unequal size, some targets missing; a large offset that one-pass formulas do not survive."""
    draws = torch.Generator().manual_seed(0)
    targets = torch.randn(23, 3, generator=draws) * torch.tensor([1.0, 0.01, 50.0]) + torch.tensor([0.0, 300.0, -2.0])
    targets[torch.rand(23, 3, generator=draws) < 0.3] = torch.nan
    targets[0:4, 1] = torch.nan  # nothing measured at the first client
    dataset = TensorDataset(torch.zeros(23, 1), targets)
    mean, std = statistics(
        tmp_path,
        Subset(dataset, range(4)),
        DataLoader(Fetched(targets[4:9]), batch_size=2),
        Subset(dataset, range(9, 23)),
    )
    pooled = targets.double().numpy()
    assert mean.dtype == std.dtype == torch.float64
    np.testing.assert_allclose(mean, np.nanmean(pooled, 0), rtol=1e-12)
    np.testing.assert_allclose(std, np.nanstd(pooled, 0), rtol=1e-10)


def test_single_targets_and_graphs(tmp_path):
    mean, std = statistics(
        tmp_path, TensorDataset(torch.zeros(3, 1), torch.tensor([1, 2, 6])), Fetched(torch.tensor([7]))
    )
    assert mean.tolist() == [4]
    assert std.tolist() == pytest.approx([np.std([1, 2, 6, 7])], rel=1e-15)
    graphs = [Data(x=torch.ones(n, 1), y=torch.tensor([[float(n), -1.0]])) for n in (1, 2, 3, 4)]
    mean, std = statistics(tmp_path, graphs[:1], graphs[1:])
    assert mean.tolist() == [2.5, -1]
    assert std.tolist() == pytest.approx([1.25**0.5, 0], rel=1e-15)


def test_a_target_without_any_value_is_named(tmp_path):
    targets = torch.tensor([[1.0, torch.nan], [2.0, torch.nan]])
    dataset = TensorDataset(torch.zeros(2, 1), targets)
    with pytest.raises(ConfigurationError, match=r"target column\(s\) \[1\]"):
        statistics(tmp_path, dataset, dataset)


def test_what_every_client_says_of_its_targets(tmp_path):
    one = TensorDataset(torch.zeros(3, 1), torch.tensor([[1.0, torch.nan], [2.0, -5.0], [torch.nan, 1.0]]))
    two = DataLoader(Fetched(torch.tensor([[7.0, 0.0]])))
    found = summaries(tmp_path, one, two)
    assert found.dtype == torch.float64
    assert found.tolist() == [[[3, -4], [2, 1]], [[7, 0], [1, 0]]]


def test_clients_whose_targets_are_not_alike(tmp_path):
    one, two = (TensorDataset(torch.zeros(2, 1), torch.zeros(2, count)) for count in (3, 2))
    with pytest.raises(ConfigurationError, match=r"clients 1 and 0 .*\[2, 2\] and \[2, 3\]"):
        summaries(tmp_path, one, two)
