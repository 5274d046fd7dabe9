"""Personal mixtures of several shared models for evaluation and the end of a run."""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_fl.core.collaboration import Collaboration
from lightning_fl.data.module import Split
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["PersonalMixtures"]


class PersonalMixtures:
    """Sets P of the collaboration before evaluations and at the end of a run, for callbacks with K shared models.

    Validation samples may have another distribution than training samples, which a client's model should fit.

    Args:
        split: samples for the choice of models to train.
        personal_split: samples for the choice of models to use; clients without any use ``split``.
        weigh: computes the clients' rows of P on a split, float64 [N, K]; NaN for absent clients and those without
            samples. Called on every rank.

    Attributes:
        round: rounds done when P was last set.
    """

    def __init__(self, split: Split, personal_split: Split, weigh: Callable[[TrainerSurface, Split], Tensor]) -> None:
        self.split = split
        self.personal_split = personal_split
        self._weigh = weigh
        self.round = 0

    def set_where_evaluated(self, trainer: TrainerSurface, by_split: Tensor) -> None:
        """Set P in ``on_aggregate_end`` before an evaluation or the end, given ``weigh(trainer, split)``."""
        done = trainer.federation.current_round + 1
        if done == trainer.max_rounds or trainer.evaluates_after(done):
            self._set(trainer, by_split, done)

    def set_at_the_end(self, trainer: TrainerSurface, by_split: Callable[[], Tensor]) -> None:
        """Set P in ``on_fit_end`` of a run that ended in a round without evaluation."""
        if trainer.federation.current_round != self.round:
            self._set(trainer, by_split(), trainer.federation.current_round)

    def _set(self, trainer: TrainerSurface, by_split: Tensor, done: int) -> None:
        mixtures = by_split
        if self.personal_split != self.split:
            own = self._weigh(trainer, self.personal_split)
            mixtures = torch.where(own.isnan(), by_split, own)
        old = trainer.federation.collaboration
        trainer.federation.collaboration = Collaboration(
            old.aggregation, torch.where(mixtures.isnan(), old.personalisation, mixtures)
        )
        self.round = done
