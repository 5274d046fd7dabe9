"""APFL: every client mixes the shared model with one of its own, and learns how much of each.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020 (https://arxiv.org/abs/2003.13461), Algorithm 1.

w_i are the weights that the turn trains, v_i is ``turn.kept["own"]``, at first w_i, alpha_i ``turn.kept["alpha"]``,
v_i-bar ``alpha_i v_i + (1 - alpha_i) w_i`` and eta the learning rate of the client's optimiser.

Differs from the paper: v_i is stepped by an optimiser like the client's, with a state of its own (SGD without momentum
is the paper's); a client takes part with the share of its samples. Statistics of BatchNorm under v_i-bar are the
client's own: the gradients at v_i-bar move them. Personal layers are trained with w_i alone.
"""

from typing import Any, Literal

from lightning_fl.core.validation import Fraction, checked
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg


class APFL(FedAvg):
    """Steps of the client's own model: ``v <- v - eta alpha grad f_i(v-bar)``, where ``v-bar = alpha v + (1-alpha) w``.

    The share steps by ``alpha <- clip(alpha - eta <v - w, grad f_i(v-bar)>, 0, 1)``; both updates use the models before
    the step. Clients are evaluated with, and export, the mixture of v and the newly averaged w. The shared model is
    that of federated averaging, to the bit. A client's own model stays with it when coalitions change.

    Args:
        alpha: initial share of the client's own model.
        alpha_every: when the share moves: at the first step of a "round" (as in the authors' code), at every "step", or
            "never".
        **settings: those of every strategy.
    """

    name = "apfl"
    needs_losses = True
    excludes = {  # noqa: RUF012 - of the class
        "model_per_client": "every client already has a model of its own, and APFL adds a second one"
    }

    @checked
    def __init__(
        self, *, alpha: Fraction = 0.5, alpha_every: Literal["round", "step", "never"] = "round", **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.alpha, self.alpha_every = alpha, alpha_every

    def begin_client(self, turn: ClientTurn) -> None:
        """Start the client's own model at the shared one."""
        if "own" not in turn.kept:
            turn.kept["own"], turn.kept["alpha"] = turn.with_personal_layers(turn.start).clone(), self.alpha

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Step the client's own model and its share; the shared model's gradient is unchanged."""
        own, alpha = turn.kept["own"], turn.kept["alpha"]
        moves = self.alpha_every == "step" or (self.alpha_every == "round" and not turn.steps)
        if not alpha and self.alpha_every == "never":
            return
        mixture = own.clone()
        for dtype, vector in mixture.floating():
            vector.mul_(alpha).add_(weights.vectors[dtype], alpha=1 - alpha)
        of_mixture = turn.step_gradient(mixture, buffers=own)
        if moves:
            slope = turn.dot(own, of_mixture) - turn.dot(weights, of_mixture)
            turn.kept["alpha"] = min(max(alpha - turn.learning_rate * slope, 0.0), 1.0)
        for _, vector in of_mixture.floating():
            vector.mul_(alpha)
        turn.second_step("own", of_mixture)

    def evaluated(self, model: str) -> str:
        return f"each client's mixture of a model of its own and {model}"

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        """The mixture; before the client's first turn the shared model."""
        alpha = turn.kept.get("alpha", 0.0)
        if not alpha:
            return turn.start
        return turn.with_buffers(turn.combine((alpha, turn.kept["own"]), (1 - alpha, turn.start)), turn.kept["own"])
