"""Length of a client's turn in batches and steps, and its report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_fl.core.errors import TrainingError
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.engine.client import ClientReport

__all__ = ["TurnLength", "turn_report"]


@dataclass
class TurnLength:
    """Length of a turn; for data of unknown length it is determined during the turn.

    Args:
        accumulate: batches per step; fewer at the end of the turn and of an epoch.
        total: batches in the turn; infinite until known.
        epoch_length: batches in an epoch, if the work is given in epochs of known length.
        steps: optimiser steps in the turn; infinite if unknown.
        epochs: epochs in the turn.
    """

    accumulate: int
    total: float
    epoch_length: int | None
    steps: float
    epochs: int = 1
    _begin: int = 0  # first batch of an epoch of unknown length
    _last: int = -1  # its last batch, once known

    def end_epoch(self, index: int, last: bool) -> None:
        """Record that the next batch is the last of its epoch, or of the turn."""
        self._last = index
        if last:
            self.total = index + 1

    def begins_step(self, index: int) -> bool:
        """Whether a batch is the first of a step; steps restart in every epoch.

        Args:
            index: of the batch in the turn, in ascending order.
        """
        return self.accumulate == 1 or self._place(index) % self.accumulate == 0

    def ends_step(self, index: int) -> bool:
        """Whether the optimiser steps after a batch."""
        if self.accumulate == 1:
            return True
        place = self._place(index)
        ended = (place + 1) % self.accumulate == 0 or index == self.total - 1
        return ended or place + 1 == self.epoch_length or index == self._last

    def _place(self, index: int) -> int:
        """Index of a batch in its epoch."""
        if self.epoch_length:
            return index % self.epoch_length
        if 0 <= self._last < index:
            self._begin, self._last = index, -1
        return index - self._begin


def turn_report(
    num_samples: int, num_steps: int, metrics: dict[str, LoggedValue], losses: Sequence[float], sizes: Sequence[float]
) -> ClientReport:
    """Report a turn, with the mean loss as ``train/loss`` unless the module logs that.

    Args:
        num_samples: of the client.
        num_steps: optimiser steps.
        metrics: logged by the module.
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
