"""Per-FedAvg: a shared model that adapts to a client with one step on its data.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach, NeurIPS 2020 (https://arxiv.org/abs/2002.07948), Algorithm 1; equations 7 to 9.

alpha is ``adaptation_rate``, beta the learning rate of the client's optimiser, which takes the outer steps; w-tilde is
``w - alpha grad f(w; D)``, and delta ``delta``, for the product with the Hessian in HF-MAML.

Differs from the paper: D, D' and D'' are halves (thirds with the Hessian) of one batch, as in FedCollab's code; batches
too small for that are left out. Statistics of BatchNorm move with the first part alone. Personal layers, which no other
client starts from, step by the gradient of the first part.
"""

from typing import Any, Literal

from lightning_fl.core.validation import Count, NonNegative, Positive, checked
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg


class PerFedAvg(FedAvg):
    """Descends ``sum_i beta_i f_i(w - alpha grad f_i(w))``; clients are evaluated after steps of size alpha.

    Those steps are discarded. In training, the gradient is taken at w-tilde on D'; ``hessian="differences"`` adds
    ``- alpha H g``, with H at w on D''.

    Args:
        adaptation_rate: alpha, of plain SGD whatever the client's optimiser; 0 is FedAvg, ``None`` takes that
            optimiser's learning rate, as FedCollab does.
        adaptation_steps: steps before every evaluation, each on another training batch.
        hessian: "ignored" (first order, FO) or by "differences" of gradients (Hessian-free, HF).
        delta: factor of the gradient g by which w moves, in both directions, for the differences.
        **settings: those of every strategy.
    """

    name = "perfedavg"
    smallest_part = 2  # as in FedCollab's code, which leaves out batches of fewer than 4

    @checked
    def __init__(
        self,
        *,
        adaptation_rate: NonNegative | None = 0.01,
        adaptation_steps: Count = 1,
        hessian: Literal["ignored", "differences"] = "ignored",
        delta: Positive = 1e-3,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.adaptation_rate, self.adaptation_steps = adaptation_rate, adaptation_steps
        self.hessian, self.delta = hessian, delta
        self.needs_losses = adaptation_rate != 0
        if adaptation_rate != 0:
            self.batch_parts = 2 if hessian == "ignored" else 3

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Put the meta-gradient in place of the gradient on D."""
        if self.adaptation_rate == 0:
            return
        rate = self._rate(turn)
        outer = turn.step_gradient(turn.combine((1.0, weights), (-rate, gradient)), part=1)
        if self.hessian == "differences":
            ahead, behind = (
                turn.step_gradient(turn.combine((1.0, weights), (sign * self.delta, outer)), part=2) for sign in (1, -1)
            )
            factor = rate / (2 * self.delta)
            outer = turn.combine((1.0, outer), (-factor, ahead), (factor, behind), elsewhere=outer)
        gradient.copy_(outer)

    def evaluated(self, model: str) -> str:
        steps = self.adaptation_steps
        return f"{model}, adapted by {steps} step{'s' * (steps > 1)}" if self.adaptation_rate != 0 else model

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        """The shared model after the adaptation, which does not affect training."""
        weights = turn.start
        for step in range(self.adaptation_steps if self.adaptation_rate != 0 else 0):
            gradient = turn.batch_gradient(weights, f"adaptation {step}")
            weights = turn.combine((1.0, weights), (-self._rate(turn), gradient))
        return weights

    def _rate(self, turn: ClientTurn) -> float:
        return turn.learning_rate if self.adaptation_rate is None else self.adaptation_rate
