"""Summaries of the training data at the start of a run, from a federated run's clients or from a loader."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import isolated_draws
from lightning_fl.models.target_summary import pool_moments, target_moments

__all__ = ["gather_statistics", "gather_summaries"]


def gather_summaries(module: LightningModule, summarize: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Gather a summary of each client's, or process's, training targets, [parts, ...]; ``None`` if there are none.

    Args:
        module: a module in a run.
        summarize: function of targets [n, T] that returns counts, sums or ranges.
    """
    summaries = getattr(module.trainer, "target_summaries", None)
    if summaries is not None:
        found: Tensor = summaries(summarize)
        return found
    if not module.trainer.training:
        return None
    values = _read(module, "y")
    if values is None:
        return None
    summary = summarize(values).to(module.trainer.strategy.root_device)
    gathered = module.all_gather(summary)
    assert isinstance(gathered, Tensor)
    return gathered.reshape(-1, *summary.shape).cpu()


def gather_statistics(module: LightningModule, name: str) -> tuple[Tensor, Tensor]:
    """Compute mean and population standard deviation of the training data's targets or descriptors, each [T].

    Args:
        module: a module in a fit.
        name: "y" or "descriptors", attribute of a batch.

    Raises:
        DataError: there is no batch.
    """
    of_clients = {"y": "target_statistics", "descriptors": "descriptor_statistics"}[name]
    statistics = getattr(module.trainer, of_clients, None)
    if statistics is not None:
        found: tuple[Tensor, Tensor] = statistics()
        return found
    values = _read(module, name)
    if values is None:
        raise DataError(
            "the training loader has no batch from which to learn the targets' scale: give training data, or call"
            " set_target_statistics or set standardize_targets=False for a model that is not trained."
        )
    moments = target_moments(values).to(module.device)
    gathered = module.all_gather(moments)  # has a leading dimension only with several processes
    assert isinstance(gathered, Tensor)
    return pool_moments(gathered.reshape(-1, *moments.shape))


def _read(module: LightningModule, name: str) -> Tensor | None:
    """Concatenate an attribute of all training batches."""
    module.trainer.fit_loop.setup_data()
    loader: Iterable[Any] | None = module.trainer.train_dataloader
    with isolated_draws():  # this pass must not change the random numbers that order the batches
        values = [getattr(batch, name) for batch in loader or ()]
    return torch.cat(values) if values else None
