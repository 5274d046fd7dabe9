"""How client and server learn: the steps of a round that a strategy may change."""

from torch import Tensor, nn

from lightning_fl.engine.hooks import overrides
from lightning_fl.engine.weights.flat import Weights

__all__ = ["Learner", "changes"]


class Learner:
    """Federated averaging; a strategy overrides the steps that it changes."""

    def client_loss(self, loss: Tensor, module: nn.Module) -> Tensor:
        """The loss that a client descends, from the module's own: the place of a proximal term."""
        return loss

    def aggregate(self, start: Weights, average: Weights) -> Weights:
        """The next shared model from the one the round began with and the clients' weighted average."""
        return average


def changes(learner: Learner, step: str) -> bool:
    """Whether a learner does a step in its own way, so that what only serves that step may be left out."""
    return overrides(learner, step, Learner)
