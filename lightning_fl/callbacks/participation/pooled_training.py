"""Pooled training: one model on all clients' data in one place, the reference that federation is measured against."""

from typing import Any

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.cohort import Cohort
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["PooledTraining"]


class PooledTraining(Callback):
    """Trains one model on the training samples of all clients together, as if nothing had to stay where it is.

    What is left to gain between federated and pooled training is what federation costs; between local and federated,
    what it brings. In every round one client takes its turn, with everybody's training samples; validation and test
    are each client's own, as in any run, so that figures stand beside those of other algorithms. A round is
    ``local_steps`` of this one turn: where N clients take that many each, give the pooled model N times as many for
    the same number of samples.

    Works for one table or data set that is shared out among clients, not for silos whose data are their own.

    Raises:
        ConfigurationError: at the start of a run: the data cannot be put together.
    """

    method_name = "pooled training"
    role = "collaboration"

    def setup(self, trainer: Any, stage: str) -> None:
        """Put the training samples together."""
        trainer.datamodule.pool_training(True)

    def teardown(self, trainer: Any, stage: str) -> None:
        """Each client has its own again."""
        if trainer.is_set_up:
            trainer.datamodule.pool_training(False)

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        """The one that has them."""
        return Cohort.of([0])
