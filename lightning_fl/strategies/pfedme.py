"""pFedMe: clients train models near the shared one, which follows them by the Moreau envelope of their losses.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020
(https://arxiv.org/abs/2006.08848), Algorithm 1.

lambda is ``strength``, K ``personal_steps``, each of size eta_p, ``personal_rate`` (the paper: "a gradient method"),
theta ``turn.kept["own"]``, eta the learning rate of the client's optimiser, and beta ``server_rate``.

Differs from the paper: theta restarts from w_i at each batch, as in FedCollab. Statistics of BatchNorm under
theta are the client's own: the last of the K gradients on a batch moves them. A client is evaluated with its theta, or
with the shared model if it has none or the model's clients or weights have changed since.
"""

from typing import Any

import torch

from lightning_fl.core.validation import Count, NonNegative, Positive, checked
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg


class PFedMe(FedAvg):
    """K times ``theta <- theta - eta_p (grad f_i(theta) + lambda (theta - w))``; ``w <- w - eta lambda (w - theta)``.

    That is a step, on one batch. The server takes ``(1 - beta) x + beta sum_i beta_i w_i``.

    Args:
        strength: lambda, of the pull of theta to w; 0 leaves w as it is. 15 in the paper, 1 in FedCollab.
        personal_steps: K.
        personal_rate: eta_p; theta diverges where it exceeds 2 over the sum of ``strength`` and the loss's curvature.
        server_rate: beta; 1 for the plain average.
        **settings: those of every strategy.
    """

    name = "pfedme"
    kept_for_model = ("own",)
    needs_losses = True
    excludes = {  # noqa: RUF012 - of the class
        "model_per_client": "every client already has a model of its own, and pFedMe adds a second one"
    }

    @checked
    def __init__(
        self,
        *,
        strength: NonNegative = 15.0,
        personal_steps: Count = 5,
        personal_rate: Positive = 0.1,
        server_rate: Positive = 1.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.strength, self.personal_steps, self.personal_rate = strength, personal_steps, personal_rate
        self.server_rate = server_rate

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Find theta on the step's batches; put ``lambda (w - theta)`` in place of the gradient."""
        own, buffers = weights.clone(), turn.kept.get("own", turn.start).clone()
        for step in range(self.personal_steps):
            last = step == self.personal_steps - 1
            known = not (step or (last and turn.buffers))  # the step's own gradient is that at theta
            at_own = gradient if known else turn.step_gradient(own, buffers=buffers if last else None)
            for dtype, vector in own.floating():
                slope = at_own.vectors[dtype] + self.strength * (vector - weights.vectors[dtype])
                vector.add_(slope, alpha=-self.personal_rate)
        for dtype, vector in gradient.floating():
            torch.sub(weights.vectors[dtype], own.vectors[dtype], out=vector).mul_(self.strength)
        turn.kept["own"] = turn.with_buffers(own, buffers)

    def end_client(self, turn: ClientTurn, weights: Weights) -> None:
        """theta has the personal layers of the turn's end."""
        if own := turn.kept.get("own"):
            turn.kept["own"] = turn.with_buffers(turn.combine((1.0, own), elsewhere=weights), own)

    def aggregate(self, update: ModelUpdate) -> Weights:
        if self.server_rate == 1:
            return update.average
        return update.combine((1 - self.server_rate, update.start), (self.server_rate, update.average))

    def evaluated(self, model: str) -> str:
        return f"each client's own model, near {model}"

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        return turn.kept.get("own", turn.start)
