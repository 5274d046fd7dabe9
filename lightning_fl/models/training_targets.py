"""Summaries of the training data at the start of a run, from a federated run's clients or from a loader.

Only counts, moments and ranges leave a client. Targets are [n, T] with NaN for a missing value; summaries are float64.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import isolated_draws


def target_moments(targets: Tensor) -> Tensor:
    """Compute count, mean and sum of squared deviations of each target, [3, T]; 0 where the count is 0."""
    targets = targets.double()
    count = (~targets.isnan()).sum(dim=0)
    mean = targets.nansum(dim=0) / count.clamp(min=1)
    return torch.stack([count, mean, (targets - mean).square().nansum(dim=0)])


def pool_moments(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Pool the :func:`target_moments` [parts, 3, T] of parts to mean [T] and population standard deviation [T].

    By Chan, Golub and LeVeque 1983: the squared deviations are those within the parts plus those of their means.
    NaN for a target with no value.
    """
    count, mean, deviations = moments.unbind(dim=1)
    total = count.sum(dim=0)
    pooled_mean = (count * mean).sum(dim=0) / total
    pooled_deviations = (deviations + count * (mean - pooled_mean).square()).sum(dim=0)
    return pooled_mean, (pooled_deviations / total).sqrt()


def target_ranges(targets: Tensor) -> Tensor:
    """Compute count, minimum, maximum and number of fractional values of each target, [4, T].

    Minimum and maximum are inf and -inf where the count is 0.
    """
    targets = targets.double()
    missing = targets.isnan()
    none = targets.new_full((1, targets.shape[1]), torch.inf)  # there may be no sample
    return torch.stack(
        [
            (~missing).sum(dim=0),
            torch.cat([none, targets.masked_fill(missing, torch.inf)]).amin(dim=0),
            torch.cat([-none, targets.masked_fill(missing, -torch.inf)]).amax(dim=0),
            (targets != targets.round()).logical_and(~missing).sum(dim=0),
        ]
    )


def pool_ranges(ranges: Tensor) -> Tensor:
    """Pool the :func:`target_ranges` [parts, 4, T] of parts to those of all, [4, T]."""
    count, least, largest, fractions = ranges.unbind(dim=1)
    return torch.stack([count.sum(0), least.amin(0), largest.amax(0), fractions.sum(0)])


def class_counts(targets: Tensor, num_classes: int) -> Tensor:
    """Count the samples of each class of each target, [T, C]."""
    return torch.stack([(targets == kind).sum(dim=0) for kind in range(num_classes)], dim=1).double()


def gather_summaries(module: LightningModule, summarize: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Gather a summary of each client's, or process's, training targets, [parts, ...]; ``None`` if there are none."""
    if (summaries := getattr(module.trainer, "target_summaries", None)) is not None:
        return summaries(summarize)
    values = _read(module, "y") if module.trainer.training else None
    if values is None:
        return None
    return _gather(module, summarize(values).to(module.trainer.strategy.root_device)).cpu()


def gather_statistics(module: LightningModule, name: str) -> tuple[Tensor, Tensor]:
    """Compute mean and population standard deviation of the training data's "y" or "descriptors", each [T]."""
    kind = {"y": "target", "descriptors": "descriptor"}[name]
    if (statistics := getattr(module.trainer, f"{kind}_statistics", None)) is not None:
        return statistics()
    values = _read(module, name)
    if values is None:
        raise DataError(f"no training batch to learn the {kind}s' scale from: set standardize_{kind}s=False.")
    return pool_moments(_gather(module, target_moments(values).to(module.device)))


def _gather(module: LightningModule, summary: Tensor) -> Tensor:
    """The summaries of all processes, [parts, ...]."""
    gathered: Any = module.all_gather(summary)  # has a leading dimension only with several processes
    return gathered.reshape(-1, *summary.shape)


def _read(module: LightningModule, name: str) -> Tensor | None:
    """Concatenate an attribute of all training batches."""
    module.trainer.fit_loop.setup_data()
    loader: Iterable[Any] | None = module.trainer.train_dataloader
    with isolated_draws():  # this pass must not change the random numbers that order the batches
        values = [getattr(batch, name) for batch in loader or ()]
    return torch.cat(values) if values else None
