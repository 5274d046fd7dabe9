"""Two federations that need no data set: images at random through a small CNN, stand-in molecules through a GCN.

Every arm of a benchmark does the same local steps on the same samples, so all must end with the same weights; each
returns a checksum of them beside its times.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset
from torch_geometric.nn import GCNConv, global_mean_pool

from lightning_fl.data import FederatedDataModule
from lightning_fl.data.module import Split

if TYPE_CHECKING:
    from lightning_fl.data.molecules.dataset import MoleculeDataset


class Clients(FederatedDataModule):
    """One data set, cut into consecutive equal shares of training samples."""

    def __init__(self, dataset: Dataset, num_clients: int, batch_size: int, shuffle: bool) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle)
        self.dataset = dataset
        self.shares = torch.arange(len(dataset)).chunk(num_clients)  # type: ignore[arg-type]

    @property
    def num_clients(self) -> int:
        return len(self.shares)

    def client_sizes(self) -> list[int]:
        return [len(share) for share in self.shares]

    def client_data(self, client: int, split: Split) -> Dataset | None:
        return Subset(self.dataset, self.shares[client].tolist()) if split == "train" else None


class ImageModule(LightningModule):
    """LeNet-5's shape: 62 thousand weights."""

    def __init__(self, learning_rate: float = 0.01, momentum: float = 0.9) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))

    def loss(self, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate, momentum=self.hparams.momentum)


class JudgedImageModule(ImageModule):
    """With a validation step."""

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))


class JudgedClients(FederatedDataModule):
    """Random images in consecutive equal shares, each divided into training and validation samples."""

    def __init__(self, num_clients: int, num_train: int, num_val: int, batch_size: int) -> None:
        super().__init__(batch_size=batch_size, shuffle=False)
        self.dataset = images(num_clients * (num_train + num_val))
        self.parts = [part.split([num_train, num_val]) for part in torch.arange(len(self.dataset)).chunk(num_clients)]

    @property
    def num_clients(self) -> int:
        return len(self.parts)

    def client_sizes(self) -> list[int]:
        return [len(train) for train, _ in self.parts]

    def client_data(self, client: int, split: Split) -> Dataset | None:
        if split == "test":
            return None
        rows = self.parts[client][split == "val"]
        return TensorDataset(*(tensor[rows] for tensor in self.dataset.tensors))


class GraphModule(LightningModule):
    """Three GCN layers of width 128, mean pooling, a linear head."""

    def __init__(self, node_dim: int, hidden_dim: int = 128) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.convs = nn.ModuleList(GCNConv(n, hidden_dim) for n in (node_dim, hidden_dim, hidden_dim))
        self.head = nn.Linear(hidden_dim, 1)

    def loss(self, batch: object) -> Tensor:
        x = batch.x  # type: ignore[attr-defined]
        for conv in self.convs:
            x = F.relu(conv(x, batch.edge_index))  # type: ignore[attr-defined]
        pooled = global_mean_pool(x, batch.batch, batch.num_graphs)  # type: ignore[attr-defined]
        return F.mse_loss(self.head(pooled), batch.y)  # type: ignore[attr-defined]

    def training_step(self, batch: object, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def images(num_samples: int, size: int = 32) -> TensorDataset:
    """Random images [n, 3, size, size] with random labels of ten classes."""
    draws = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(num_samples, 3, size, size, generator=draws),
        torch.randint(0, 10, (num_samples,), generator=draws),
    )


def molecules(num_molecules: int) -> "MoleculeDataset":
    """Stand-in molecules in a random order, so that batches are alike; targets standardised."""
    from lightning_fl.data.molecules.dataset import MoleculeDataset  # needs RDKit, which all else here does not
    from lightning_fl.data.molecules.standin import make_standin

    dataset = MoleculeDataset(make_standin("esol", target_names=["logS"], target_units=["log10(mol/L)"]))
    y = dataset._data.y
    dataset._data.y = (y - y.mean()) / y.std()
    return dataset[torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:num_molecules]]


def checksum(module: nn.Module) -> float:
    """Sum of the absolute weights."""
    return sum(float(value.double().abs().sum()) for value in module.state_dict().values())
