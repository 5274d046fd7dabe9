"""Modules whose states of every kind, or whose batches, would meet those of other clients, were they not kept apart."""

from typing import Any

import torch
import torch.distributed as dist
import torchmetrics
from lightning.fabric.utilities.distributed import _distributed_is_initialized
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from tiny import TinyClients, TinyModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


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
        self.linear.bias.data.fill_(0.1 * (1 + self.trainer.global_rank))

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


class AveragedModule(TinyModule):
    """Is evaluated with an average over its steps; counts batches, by which its loss is multiplied."""

    def __init__(self) -> None:
        super().__init__(norm=True)
        self.counts = Counts()

    def configure_callbacks(self) -> Any:
        return [EMAWeightAveraging(decay=0.5), self.counts]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (1 + 0.1 * self.counts.batches)


class Counts(Callback):
    """Counts batches."""

    batches = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.batches += 1

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["batches"] = self.batches

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.batches = checkpoint["batches"]


class GatheringModule(TinyModule):
    """Does what modules for several processes do: gathers, synchronises, leaves work to rank zero."""

    def __init__(self) -> None:
        super().__init__(norm=True)
        self.before = nn.SyncBatchNorm.convert_sync_batchnorm(self.before)
        self.mean = torchmetrics.MeanMetric()
        self.register_buffer("seen", torch.zeros(()))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        assert not dist.is_initialized()
        assert not _distributed_is_initialized()
        assert dist.group.WORLD is None
        error = (self(batch[0]) - batch[1]).square()
        if dist.is_initialized():
            parts = [torch.zeros_like(error) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, error)
            error = error + torch.stack(parts).mean()
        self.mean.update(error.detach())
        self.log("mean", self.mean.compute(), sync_dist=True)
        return self.all_gather(error).mean() + self.seen * self.linear.weight.sum()

    @rank_zero_only
    def on_train_batch_end(self, *_: Any) -> None:
        self.seen += 0.01


class SampledClients(TinyClients):
    """Loaders that share out the samples among the processes that are seen; clients take 3, 2 and 3 batches."""

    def client_data(self, client: int, split: Any) -> Any:
        data: Dataset = super().client_data(client, split)
        several = dist.is_available() and dist.is_initialized()
        return DataLoader(data, batch_size=8, sampler=DistributedSampler(data) if several else None)
