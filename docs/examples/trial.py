"""Shared by the examples' tests: clients with losses that are parabolas of one weight."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer


class Parabolas(FederatedDataModule):
    """Client i has ``a_i (w - c_i)^2 / 2`` as its loss, by m_i equal samples of (a_i, c_i)."""

    def __init__(self, *curves: tuple[int, float, float]) -> None:
        super().__init__(batch_size=100, shuffle=False)
        self.curves = curves

    @property
    def num_clients(self) -> int:
        return len(self.curves)

    def client_data(self, client: int, split: str) -> TensorDataset:
        count, curvature, centre = self.curves[client]
        return TensorDataset(torch.tensor([[curvature, centre]], dtype=torch.float64).expand(count, 2))


class OneWeight(LightningModule):
    """The weight, which begins with 1; steps of 0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        curvature, centre = batch[0].unbind(1)
        return (curvature / 2 * (self.w - centre).square()).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(
    data: FederatedDataModule, *callbacks: Any, rounds: int, root: Path, ckpt_path: str | None = None, **settings: Any
) -> FederatedTrainer:
    """A run with two local steps a round."""
    trainer = FederatedTrainer(
        callbacks=list(callbacks), max_rounds=rounds, local_steps=2, default_root_dir=root, logger=False, **settings
    )
    trainer.fit(OneWeight(), data, ckpt_path=ckpt_path)
    return trainer


def weights_of(trainer: FederatedTrainer) -> list[float]:
    """The weight of every shared model."""
    return [float(model.vectors[torch.float64][0]) for model in trainer.models]
