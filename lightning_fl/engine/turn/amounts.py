"""When a turn steps, and what its steps amount to."""

import math
from collections.abc import Sequence

from lightning_fl.engine.client import ClientReport
from lightning_fl.errors import TrainingError
from lightning_fl.metrics import LoggedValue

__all__ = ["ends_step", "turn_report"]


def ends_step(index: int, total: int, epoch_length: int | None, accumulate: int) -> bool:
    """Whether the optimiser steps after a batch.

    Args:
        index: the batch's, in the turn.
        total: batches in the turn.
        epoch_length: batches in an epoch, where the work is given in epochs.
        accumulate: batches per step; fewer at the end of the turn and of an epoch.
    """
    place = index % epoch_length if epoch_length else index
    return (place + 1) % accumulate == 0 or index == total - 1 or place + 1 == epoch_length


def turn_report(
    num_samples: int, num_steps: int, metrics: dict[str, LoggedValue], losses: Sequence[float], sizes: Sequence[int]
) -> ClientReport:
    """The report of a turn, with the mean loss as ``train/loss`` unless the module logged that.

    Args:
        num_samples: the client's.
        num_steps: of its optimiser.
        metrics: what the module logged.
        losses: of each batch.
        sizes: samples of each batch.

    Raises:
        TrainingError: a loss is NaN or infinite.
    """
    if losses:
        step = next((step for step, value in enumerate(losses) if not math.isfinite(value)), None)
        if step is not None:
            raise TrainingError(
                f"the training loss is {losses[step]} at local batch {step + 1} of {len(losses)}. Lower the"
                " learning rate, set trainer.gradient_clip_val, or look at this client's data."
            )
        mean = math.fsum(value * size for value, size in zip(losses, sizes, strict=True)) / sum(sizes)
        metrics.setdefault("train/loss", LoggedValue(mean, float(sum(sizes)), higher_is_better=False))
    return ClientReport(num_samples, num_steps, metrics)
