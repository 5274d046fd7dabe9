"""A module whose states of every kind would meet those of other clients, were they not kept apart."""

from typing import Any

import torch
import torchmetrics
from tiny import TinyModule
from torch import Tensor, nn


class StatefulModule(TinyModule):
    """An optimiser and a scheduler from ``__init__``, a bias unfrozen on the way, a teacher made when training starts,
    a best value until now that the loss depends on, as on the number of processes.
    """

    def __init__(self) -> None:
        super().__init__(norm=True)
        self.linear.bias.requires_grad_(False)
        self.best = torchmetrics.MinMetric()
        self.optimizer = torch.optim.Adam([self.linear.weight], lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)

    def configure_optimizers(self) -> Any:
        return [self.optimizer], [self.scheduler]

    def on_train_start(self) -> None:
        self.teacher = nn.Linear(3, 1).requires_grad_(False)  # drawn otherwise on every rank

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.linear.bias.requires_grad_(True)
            self.optimizers().add_param_group({"params": [self.linear.bias], "lr": 0.01})

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.best.update(loss.detach())
        trainer = self.trainer  # by whose numbers learning rates are scaled
        processes = trainer.world_size * trainer.num_devices * trainer.num_nodes + trainer.global_rank
        return processes * loss * (1 + self.best.compute()) + (self(batch[0]) - self.teacher(batch[0])).square().mean()

    @torch.no_grad()
    def on_train_batch_end(self, *_: Any) -> None:
        self.teacher.weight.lerp_(self.linear.weight, 0.1)
