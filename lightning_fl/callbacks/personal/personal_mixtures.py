"""Personal mixtures of several shared models for evaluation and the end of a run."""

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.data.module import Split
from lightning_fl.runtime.surface import TrainerSurface


class PersonalMixtures(Callback):
    """Base of callbacks with K shared models that set P of the collaboration before evaluations and at the end.

    Validation samples may have another distribution than training samples, which a client's model should fit.
    """

    #: Samples for the choice of models to train, and of models to use; clients without any of these use the former.
    split: Split
    personal_split: Split
    #: Rounds done when P was last set.
    personal_round = 0

    def weigh(self, trainer: TrainerSurface, split: Split) -> Tensor:
        """The clients' rows of P on a split, float64 [N, K]; NaN for absent clients and those without samples."""
        raise NotImplementedError

    def set_mixtures_where_evaluated(self, trainer: TrainerSurface, by_split: Tensor) -> None:
        """Set P in ``on_aggregate_end`` before an evaluation or the end, given ``weigh(trainer, split)``."""
        done = trainer.federation.current_round + 1
        if done == trainer.max_rounds or trainer.evaluates_after(done):
            self.set_mixtures(trainer, by_split, done)

    def set_mixtures(self, trainer: TrainerSurface, by_split: Tensor, done: int) -> None:
        mixtures = by_split
        if self.personal_split != self.split:
            own = self.weigh(trainer, self.personal_split)
            mixtures = torch.where(own.isnan(), by_split, own)
        old = trainer.federation.collaboration
        trainer.federation.collaboration = Collaboration(
            old.aggregation, torch.where(mixtures.isnan(), old.personalisation, mixtures)
        )
        self.personal_round = done
