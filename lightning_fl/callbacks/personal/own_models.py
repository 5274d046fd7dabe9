"""Base class of soft averaging with a personal model per client."""

from lightning_fl.callbacks.personal.soft_averaging import SoftAveraging
from lightning_fl.engine.federation import OWN_MODELS
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["OwnModels"]


class OwnModels(SoftAveraging):
    """Soft averaging in which clients use the model of their last turn and may continue from it.

    Attributes:
        trained: clients with a personal model, on any rank.
    """

    saved = (*SoftAveraging.saved, "trained")

    def _reset(self) -> None:
        super()._reset()
        self.trained: set[int] = set()

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        """Name the personal models, once there are any."""
        return "each client's own model" if trainer.federation.own_models else model

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        """Keep the client's model."""
        trainer.client_store(OWN_MODELS)[client] = trainer.client_weights().clone().state_dict()

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Estimate the importance weights if due."""
        self.trained |= trainer.round.survivors
        super().on_aggregate_end(trainer)
