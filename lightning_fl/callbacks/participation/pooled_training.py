"""Pooled training: one model on all clients' data in one place, the reference for federated training."""

from typing import Any

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.runtime.surface import TrainerSurface


class PooledTraining(Callback):
    """Trains one model on the training samples of all clients together.

    The difference between pooled and federated training is the cost of federation; that between federated and local
    training its benefit. One client per round takes a turn with all training samples; validation and test data are each
    client's own, so that metrics compare with those of other algorithms. A round has ``local_steps`` of this turn: N
    times as many see as many samples as a round of N clients.

    Works for one table or data set that is partitioned among clients, not for silos.

    Raises:
        ConfigurationError: at the start of a run, the data cannot be pooled, or another callback or strategy would take
            all training samples for those of the first client.
    """

    method_name = "pooled training"
    role = "collaboration"
    traits = ("pooled",)

    def setup(self, trainer: Any, stage: str) -> None:
        for one in trainer.callbacks:
            if {"own_samples", "personal_layers"}.intersection(one.traits):
                what = f"PooledTraining with {type(one).__name__}"
                raise ConfigurationError(f"{what}: all training samples are one client's; remove one.")
        trainer.datamodule.pool_training(True)

    def teardown(self, trainer: Any, stage: str) -> None:
        if trainer.is_set_up:
            trainer.datamodule.pool_training(False)

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        return Cohort.of([0])
