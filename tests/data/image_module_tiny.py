"""A tiny classifier of images that writes down what it is given."""

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_fl import FederatedTrainer


class TinyClassifier(LightningModule):
    """A linear layer on all pixels."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        draws = torch.Generator().manual_seed(0)
        self.linear = nn.Linear(channels * height * width, num_classes)
        with torch.no_grad():
            self.linear.weight.copy_(0.01 * torch.randn(self.linear.weight.shape, generator=draws))
            self.linear.bias.zero_()
        self.seen: dict[str, list[Tensor]] = {"train": [], "val": [], "test": []}

    def _loss(self, batch: list[Tensor], split: str) -> Tensor:
        images, labels = batch
        self.seen[split].append(images)
        return nn.functional.cross_entropy(self.linear(images.flatten(1)), labels)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch, "train")

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch, "val"))

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test_loss", self._loss(batch, "test"))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def fit(data, tmp_path, rounds: int = 2) -> tuple[TinyClassifier, FederatedTrainer]:
    """Train and test on one process."""
    data.prepare_data()
    data.setup("fit")
    trainer = FederatedTrainer(
        max_rounds=rounds, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        default_root_dir=tmp_path,
    )  # fmt: skip
    module = TinyClassifier(data.image_shape, data.num_classes)
    trainer.fit(module, data)
    trainer.test(module, data)
    return module, trainer
