"""What clients use of several shared models: when that is set, and by which of their samples."""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_fl.core.collaboration import Collaboration
from lightning_fl.data.module import Split
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["PersonalMixtures"]


class PersonalMixtures:
    """Sets P of the collaboration for evaluations and for the end of a run: a part of a callback with K shared models.

    Validation samples may have another mixture than training samples: they say what a client wants to be good at.

    Args:
        split: samples that clients choose models for the training by.
        personal_split: samples that they choose what they use by; a client that has none goes by the others.
        weigh: the clients' rows of P by their samples in a split, float64 [N, K]; NaN for those that are not there or
            have none. Called on every rank.

    Attributes:
        round: rounds done when P was last set.
    """

    def __init__(self, split: Split, personal_split: Split, weigh: Callable[[TrainerSurface, Split], Tensor]) -> None:
        self.split = split
        self.personal_split = personal_split
        self._weigh = weigh
        self.round = 0

    def set_where_evaluated(self, trainer: TrainerSurface, by_split: Tensor) -> None:
        """In ``on_aggregate_end``: where clients are evaluated after the round, or it is the last.

        Args:
            trainer: its collaboration is changed.
            by_split: what ``weigh`` gives for ``split``.
        """
        done = trainer.federation.current_round + 1
        if done == trainer.max_rounds or trainer.evaluates_after(done):
            self._set(trainer, by_split, done)

    def set_at_the_end(self, trainer: TrainerSurface, by_split: Callable[[], Tensor]) -> None:
        """In ``on_fit_end``: of a run that ended early, in a round after which nobody was evaluated."""
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
