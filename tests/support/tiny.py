"""A tiny federation whose right answers can be worked out: linear regression on quadratic clients."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.data.module import Split

NUM_FEATURES = 3


def regression_set(num_samples: int, seed: int, shift: float = 0.0) -> TensorDataset:
    """x ~ N(shift, 1) [n, 3], y = x w + noise [n, 1] with a w of the client's own."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, NUM_FEATURES, generator=draws) + shift
    w = torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3 * torch.randn(NUM_FEATURES, 1, generator=draws)
    return TensorDataset(x, x @ w + 0.1 * torch.randn(num_samples, 1, generator=draws))


class TinyClients(FederatedDataModule):
    """Clients of different sizes with training, validation and test samples."""

    def __init__(
        self, sizes: tuple[int, ...] = (24, 10, 18), *, batch_size: int = 8, shuffle: bool = True, seed: int = 0
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle)
        self.sizes = sizes
        self.sets: dict[tuple[int, str], Dataset] = {
            (client, split): regression_set(
                size if split == "train" else 6, 1000 * seed + 10 * client + s, 0.3 * client
            )
            for client, size in enumerate(sizes)
            for s, split in enumerate(("train", "val", "test"))
        }

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    def client_sizes(self) -> tuple[int, ...]:
        return self.sizes

    def client_data(self, client: int, split: Split) -> Dataset:
        return self.sets[client, split]


class TinyModule(LightningModule):
    """Linear regression; with ``dropout`` it draws random numbers, with ``norm`` it has buffers."""

    def __init__(self, learning_rate: float = 0.05, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        draws = torch.Generator().manual_seed(1)
        self.linear = nn.Linear(NUM_FEATURES, 1)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(1, NUM_FEATURES, generator=draws))
            self.linear.bias.zero_()
        self.before = nn.Sequential(
            nn.BatchNorm1d(NUM_FEATURES) if norm else nn.Identity(), nn.Dropout(dropout) if dropout else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.before(x))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["learning_rate"])


class ManualModule(TinyModule):
    """Takes its steps by itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def with_optimizer(base: type, make: Callable[..., Any]) -> Any:
    """A module class whose optimiser is ``make(parameters)``."""
    return type(base.__name__, (base,), {"configure_optimizers": lambda module: make(module.parameters())})


#: Of a trainer on the CPU that shows and writes nothing.
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
}


def quiet_trainer(*more: Any, callbacks: Any = (), **settings: Any) -> FederatedTrainer:
    """A trainer on the CPU that shows and writes nothing, unless the settings are others."""
    return FederatedTrainer(callbacks=[*more, *callbacks], **(QUIET | settings))


class FolderSilo(LightningDataModule):
    """A data module of a user's own: reads one file, and only when it is opened."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def setup(self, stage: str) -> None:
        content = torch.load(self.path, weights_only=True)
        self.dataset = TensorDataset(content["x"], content["y"])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=8, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=8)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=8)


def weights_of(module: nn.Module) -> list[Tensor]:
    """Copies of all weights and buffers."""
    return [value.detach().clone() for value in module.state_dict().values()]


def same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal to the bit."""
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def digest(model: Any) -> str:
    """A hash of a model's bits."""
    vectors = sorted(model.state_dict().items())
    return hashlib.sha256(b"".join(vector.numpy().tobytes() for _, vector in vectors)).hexdigest()
