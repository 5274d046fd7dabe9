"""What a module may learn of its training data at the start: a federated run's clients say it, or a loader is read."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import isolated_draws
from lightning_fl.models.target_summary import pool_moments, target_moments

__all__ = ["statistics_of", "summaries_of"]


def summaries_of(module: LightningModule, summarize: Callable[[Tensor], Tensor]) -> Tensor | None:
    """What each client, or process, says of its training targets, [parts, ...]; ``None`` where there are none.

    Args:
        module: in a run.
        summarize: targets [n, T] -> counts, sums or ranges.
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


def statistics_of(module: LightningModule, name: str) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of the training data's targets or descriptors, each [T].

    Args:
        module: in a fit.
        name: "y" or "descriptors", of a batch.

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
            "the training loader has no batch to learn the targets' scale from: give training data, or call "
            "set_target_statistics or set standardize_targets=False where the model is not trained."
        )
    moments = target_moments(values).to(module.device)
    gathered = module.all_gather(moments)  # a leading dimension only where there are several processes
    assert isinstance(gathered, Tensor)
    return pool_moments(gathered.reshape(-1, *moments.shape))


def _read(module: LightningModule, name: str) -> Tensor | None:
    """An attribute of all training batches."""
    module.trainer.fit_loop.setup_data()
    loader: Iterable[Any] | None = module.trainer.train_dataloader
    with isolated_draws():  # the pass must not move the random numbers on which the order of the batches depends
        values = [getattr(batch, name) for batch in loader or ()]
    return torch.cat(values) if values else None
