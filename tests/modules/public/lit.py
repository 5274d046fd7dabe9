"""A network in Lightning form, as the packages' own examples have it, and small data."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Lit(pl.LightningModule):
    """``loss(net, batch)`` is descended by Adam and logged in every split."""

    def __init__(self, net: nn.Module, loss: Callable[[nn.Module, Any], Tensor], lr: float = 1e-3) -> None:
        super().__init__()
        self.net, self.loss, self.lr = net, loss, lr

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(self.net, batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(self.net, batch), batch_size=1)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(self.net, batch), batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=self.lr)


def load_into(path: Any, module: Any) -> Any:
    """The exported weights in a new module that was built by hand, every name matched."""
    module.load_state_dict(torch.load(path, weights_only=False, map_location="cpu")["state_dict"])
    return module


def draws(silo: int) -> torch.Generator:
    """A silo's random numbers."""
    return torch.Generator().manual_seed(silo)


def split_loaders(dataset: Dataset | Any, batch_size: int = 4, **options: Any) -> dict[str, DataLoader]:
    """Half of the samples to train in their order, a quarter each to validate and test."""
    count = len(dataset)
    parts = {"train": range(count // 2), "val": range(count // 2, 3 * count // 4), "test": range(3 * count // 4, count)}
    kind = options.pop("kind", DataLoader)
    return {
        split: kind(torch.utils.data.Subset(dataset, list(part)), batch_size=batch_size, **options)
        for split, part in parts.items()
    }


def tensors(silo: int, *shapes: tuple[int, ...], classes: int | None = None, count: int = 24) -> TensorDataset:
    """Normal draws [count, *shape] for each shape; with ``classes`` also labels [count]."""
    generator = draws(silo)
    parts = [torch.randn(count, *shape, generator=generator) for shape in shapes]
    if classes is not None:
        parts.append(torch.randint(classes, (count,), generator=generator))
    return TensorDataset(*parts)
