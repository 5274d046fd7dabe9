"""Clients on lines through the origin: what a model with one weight makes of them is known in closed form."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import Callback

#: The inputs of every client in every split; their mean square is 7.5.
INPUTS = torch.tensor([[1.0], [-2.0], [3.0], [-4.0]])


class LineClients(FederatedDataModule):
    """Client i measures ``slopes[i] * x``."""

    target_names = ("height",)
    target_units = ("m",)

    def __init__(self, slopes: list[float], source: str = "measured") -> None:
        super().__init__(batch_size=len(INPUTS))
        self.slopes = slopes
        self.source = source

    @property
    def num_clients(self) -> int:
        return len(self.slopes)

    def client_data(self, client: int, split: str) -> TensorDataset:
        return TensorDataset(INPUTS, self.slopes[client] * INPUTS)


class LineModule(LightningModule):
    """Predicts ``weight * x``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x

    def _mse(self, batch: list[Tensor]) -> Tensor:
        return (self(batch[0]) - batch[1]).square().mean()

    def _rmse(self, batch: list[Tensor]) -> Tensor:
        return self._mse(batch).sqrt()

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss = self._mse(batch)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        self.log("val/rmse", self._rmse(batch))
        self.log("val/extra", 2 * self._rmse(batch), prog_bar=True)

    def test_step(self, batch: list[Tensor]) -> None:
        self.log("test/rmse", self._rmse(batch))

    def predict_step(self, batch: list[Tensor]) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.fixture
def line_clients() -> type[LineClients]:
    return LineClients


@pytest.fixture
def line_module() -> type[LineModule]:
    return LineModule


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., FederatedTrainer]:
    def make(*callbacks: Callback, **settings: object) -> FederatedTrainer:
        quick = {"accelerator": "cpu", "logger": False, "local_steps": 1, "enable_progress_bar": False}
        return FederatedTrainer(default_root_dir=tmp_path, callbacks=list(callbacks), **{**quick, **settings})

    return make
