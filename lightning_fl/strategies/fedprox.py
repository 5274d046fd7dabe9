"""FedProx: clients stay near the model that they received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020
(https://arxiv.org/abs/1812.06127), Algorithm 2.

w^t is ``turn.start``, the shared model or the mixture that a client uses; gamma stands for the local steps or epochs.

Differs from the paper: clients are weighted by their samples and all take part unless a callback draws some (there
they are drawn by samples and averaged alike); the pull is added to the gradient, once in a step of the optimiser and
before it is clipped, and is no part of the loss that is logged, nor of losses by which callbacks choose clients.
"""

from typing import Any

from lightning_fl.core.validation import NonNegative, checked
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg


class FedProx(FedAvg):
    """Every client minimises ``f_i(w) + mu/2 ||w - x||^2``, with x the weights that its turn starts from.

    Buffers and personal layers are not pulled. With ``mu=0`` it is federated averaging, to the bit.

    Args:
        mu: strength of the pull; 0.1 in the studies of FedCollab and DPFL, 0.001 to 1 in the paper. Where ``mu`` times
            the learning rate exceeds 2, plain SGD diverges by the pull alone.
        **settings: those of every strategy.
    """

    name = "fedprox"
    elementwise = True

    @checked
    def __init__(self, *, mu: NonNegative = 0.1, **settings: Any) -> None:
        super().__init__(**settings)
        self.mu = mu

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Add ``mu (w - x)``."""
        if not self.mu:
            return
        for dtype, vector in gradient.floating():
            vector.add_(weights.vectors[dtype] - turn.start.vectors[dtype], alpha=self.mu)
