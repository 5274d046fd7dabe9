"""The federations that all arms train, in plain PyTorch: environments of peers do not hold lightning_fl.

Samples are visited in a fixed order and every client has as many, so that arms with the same arithmetic end with the
same weights.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LEARNING_RATE, MOMENTUM, NUM_CLASSES = 0.01, 0.9, 10


class LeNet(nn.Module):
    """LeNet-5's shape on [n, 3, 32, 32] images: 62 thousand weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, NUM_CLASSES)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


@dataclass(kw_only=True)
class Federation(ABC):
    """Equal clients and what each does in a round."""

    num_clients: int
    samples: int
    batch_size: int
    steps: int | None = None
    """Local steps; ``None`` for one pass over the samples."""
    cohort: int | None = None
    """Clients in a round, drawn by each arm in its own way; ``None`` for all."""
    loaders: dict[tuple[int, bool], Any] = field(default_factory=dict, repr=False)

    @abstractmethod
    def network(self) -> nn.Module:
        """The model, always with the same first weights."""

    @abstractmethod
    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        """A batch's loss."""

    @abstractmethod
    def client_data(self, client: int) -> Any:
        """A client's data set."""

    @abstractmethod
    def loader(self, client: int, shuffle: bool) -> Iterable[Any]:
        """A new loader of a client's data."""

    def batches(self, client: int, shuffle: bool = False) -> Iterable[Any]:
        """A client's batches of one round, from a loader that is kept."""
        if (client, shuffle) not in self.loaders:
            self.loaders[client, shuffle] = self.loader(client, shuffle)
        return islice(self.loaders[client, shuffle], self.steps)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def train(self, network: nn.Module, batches: Iterable[Any]) -> None:
        """A client's local steps, as one writes them by hand."""
        optimizer = self.optimizer(network)
        for batch in batches:
            optimizer.zero_grad()
            self.loss(network, batch).backward()
            optimizer.step()


@dataclass(kw_only=True)
class Images(Federation):
    """Random images with random labels."""

    size: int = 32
    residual: bool = False

    def network(self) -> nn.Module:
        torch.manual_seed(7)
        if self.residual:
            from torchvision.models import resnet18

            return resnet18(num_classes=NUM_CLASSES)
        return LeNet()

    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        images, labels = batch
        return F.cross_entropy(network(images), labels)

    def client_data(self, client: int) -> TensorDataset:
        draws = torch.Generator().manual_seed(1000 + client)
        images = torch.randn(self.samples, 3, self.size, self.size, generator=draws)
        return TensorDataset(images, torch.randint(0, NUM_CLASSES, (self.samples,), generator=draws))

    def loader(self, client: int, shuffle: bool) -> Iterable[Any]:
        return DataLoader(self.client_data(client), batch_size=self.batch_size, shuffle=shuffle)


@dataclass(kw_only=True)
class Vectors(Federation):
    """Slices of one table of random vectors with two classes, for logistic regression."""

    @cached_property
    def table(self) -> TensorDataset:
        draws = torch.Generator().manual_seed(0)
        count = self.num_clients * self.samples
        return TensorDataset(torch.randn(count, 16, generator=draws), torch.arange(count) % 2)

    def network(self) -> nn.Module:
        torch.manual_seed(7)
        return nn.Linear(16, 2)

    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        vectors, labels = batch
        return F.cross_entropy(network(vectors), labels)

    def client_data(self, client: int) -> TensorDataset:
        mine = slice(client * self.samples, (client + 1) * self.samples)
        return TensorDataset(*(column[mine] for column in self.table.tensors))

    def loader(self, client: int, shuffle: bool) -> Iterable[Any]:
        return DataLoader(self.client_data(client), batch_size=self.batch_size, shuffle=shuffle)


@dataclass(kw_only=True)
class Molecules(Federation):
    """Molecules from the file that ``make_molecules.py`` wrote, through a GCN."""

    @cached_property
    def graphs(self) -> list[Any]:
        from torch_geometric.data import Data

        packed = torch.load(os.environ["BENCH_MOLECULES"], weights_only=True)
        nodes = packed["x"].split(packed["num_nodes"].tolist())
        edges = packed["edge_index"].split(packed["num_edges"].tolist(), dim=1)
        return [
            Data(x=x, edge_index=edge_index, y=y)
            for x, edge_index, y in zip(nodes, edges, packed["y"].split(1), strict=True)
        ]

    def network(self) -> nn.Module:
        from torch_geometric.nn import GCNConv, global_mean_pool

        class GCN(nn.Module):
            """Three layers of width 128, mean pooling, a linear head."""

            def __init__(self, node_dim: int) -> None:
                super().__init__()
                self.convs = nn.ModuleList(GCNConv(width, 128) for width in (node_dim, 128, 128))
                self.head = nn.Linear(128, 1)

            def forward(self, batch: Any) -> Tensor:
                x = batch.x
                for conv in self.convs:
                    x = F.relu(conv(x, batch.edge_index))
                return self.head(global_mean_pool(x, batch.batch, batch.num_graphs))

        torch.manual_seed(7)
        return GCN(self.graphs[0].x.shape[1])

    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(network(batch), batch.y)

    def client_data(self, client: int) -> list[Any]:
        return self.graphs[client * self.samples : (client + 1) * self.samples]

    def loader(self, client: int, shuffle: bool) -> Iterable[Any]:
        from torch_geometric.loader import DataLoader as GraphLoader

        return GraphLoader(self.client_data(client), batch_size=self.batch_size, shuffle=shuffle)


#: Numbers of clients of which 100 take part in a round.
SAMPLED = (1_000, 10_000, 100_000, 1_000_000)

#: "few" and "many" hold the same number of images and take the same number of steps in a round.
FEDERATIONS: dict[str, Federation] = {
    "cnn": Images(num_clients=20, samples=250, batch_size=16),
    "gnn": Molecules(num_clients=3, samples=376, batch_size=32, steps=5),
    "few": Images(num_clients=10, samples=2000, batch_size=10),
    "many": Images(num_clients=1000, samples=20, batch_size=10),
    "large": Images(num_clients=20, samples=32, batch_size=16, size=64, residual=True),
    **{f"{count:.0e}": Vectors(num_clients=count, samples=10, batch_size=10, cohort=100) for count in SAMPLED},
}
