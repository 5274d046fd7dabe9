"""Clients that keep models of their own beside the shared ones that they build together."""

from typing import Any

from lightning_fl.callbacks.personal.soft_averaging import SoftAveraging
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["OwnModels"]


class OwnModels(SoftAveraging):
    """The base of soft averaging in which clients use what they learned in their last turn, and may go on from that.

    Attributes:
        trained: clients with a model of their own, on whatever rank.
    """

    def _reset(self) -> None:
        super()._reset()
        self.trained: set[int] = set()

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        """Where clients go on from their own models, these."""
        return "each client's own model" if trainer.federation.client_stores.get("own_models") else model

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        """What a client has learned is its model."""
        trainer.client_store("own_models")[client] = trainer.client_weights().clone().state_dict()

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Estimate the importance weights anew, where that is due."""
        self.trained |= trainer.round.survivors
        super().on_aggregate_end(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The history, and who has a model of its own."""
        return {**super().state_dict(), "trained": sorted(self.trained)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        super().load_state_dict(state)
        self.trained = set(state["trained"])
