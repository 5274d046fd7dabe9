"""MaxFL: train the shared model for the clients that it may win over, not for those it has or never will.

Cho, Jhunjhunwala, Li, Smith, Joshi: Maximizing Global Model Appeal in Federated Learning, TMLR 2024
(https://arxiv.org/abs/2205.14840): ``min_w (1/N) Σ σ(f_i(w) - ρ_i)``, smoothly the number of those better off alone.

The weights q_i and the server's step ``x + η_g ΣqΔ / (Σq + ε)`` are those of ``functional/fairness.py``; ρ_i = f_i(ŵ_i)
is found in the client's first turn.

With ``opt_out``, as the literature on coalitions reads it, a client takes part only while the shared model's loss is
below its threshold; else it trains, and is evaluated with, its own model, which starts as the shared one.
Differs from the paper: ŵ_i comes from one more round of local work unless ``warm_up_steps`` is set; clients may be
weighted by samples, q_i m_i over the mean m. A client that is out trains the shared model too, because the server
learns of it afterwards. Losses are those of models in evaluation mode.
"""

from collections.abc import Mapping
from math import fsum
from typing import Any, Literal

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, NonNegative, Positive, checked
from lightning_fl.engine.client import ClientTurn, ClientUpdate, LocalWork
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.fairness import appeal_step, appeal_weight
from lightning_fl.strategies.federated import FederatedStrategy


class MaxFL(FederatedStrategy):
    """Federated averaging that maximises the number of clients better off with the shared model.

    Args:
        threshold: ρ, for all clients; ``None`` for the training loss of a model that each client trains alone.
        warm_up_steps: optimiser steps of that model (100 in the paper); ``None`` for a turn's. Not with ``threshold``.
        server_rate: η_g, of the server's step; default 1. Not with ``opt_out``.
        eps: ε, which leaves a cohort that cannot be won over where it is; default 0.01. Not with ``opt_out``.
        opt_out: clients take part while the shared model meets their threshold, else train alone.
        weights: weigh "clients" equally, as in the paper, or by "samples", the default with ``opt_out`` only.
        **settings: those of every strategy.
    """

    name = "maxfl"
    needs_losses = True
    excludes: Mapping[str, str] = {
        "model_per_client": "there is no shared model for clients to accept or reject",
        "drawn_weights": "both weigh clients by their losses",
    }

    @checked
    def __init__(
        self,
        threshold: NonNegative | None = None,
        warm_up_steps: Count | None = None,
        server_rate: Positive | None = None,
        eps: Positive | None = None,
        opt_out: bool = False,
        weights: Literal["clients", "samples"] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if threshold is not None and warm_up_steps is not None:
            raise ConfigurationError("MaxFL.warm_up_steps has no effect with MaxFL.threshold: give one of them.")
        if opt_out and (server_rate is not None or eps is not None):
            raise ConfigurationError("MaxFL.opt_out takes the plain average: leave out server_rate and eps.")
        self.threshold, self.warm_up_steps, self.opt_out = threshold, warm_up_steps, opt_out
        self.server_rate, self.eps = server_rate or 1.0, eps or 0.01
        self.weights = weights or ("samples" if opt_out else "clients")

    def begin_client(self, turn: ClientTurn) -> None:
        """ρ_i in the client's first turn, and the loss of the received model."""
        if self.threshold is None and "threshold" not in turn.kept:
            work = LocalWork(self.warm_up_steps, 1) if self.warm_up_steps else None
            turn.kept["threshold"] = turn.training_loss(turn.train(turn.start, "threshold", work=work))
        turn.kept["loss"] = turn.training_loss(turn.start)

    def end_client(self, turn: ClientTurn, weights: Weights) -> None:
        """Train the own model of a client that is out."""
        turn.kept["out"] = self.opt_out and turn.kept["loss"] >= self._threshold(turn)
        if turn.kept["out"]:
            turn.kept["own"] = turn.train(turn.kept.get("own", turn.start), "alone")

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """``q_i``; 0 or 1 with ``opt_out``."""
        alike = 1.0 if self.weights == "clients" else None
        if self.opt_out:
            return ClientUpdate(weights, float(not turn.kept["out"]), weight=alike)
        weight = appeal_weight(turn.kept["loss"], self._threshold(turn))
        return ClientUpdate(weights, weight, {"weight": weight}, weight=alike)

    def aggregate(self, update: ModelUpdate) -> Weights:
        """``x + s (average - x)``."""
        if self.opt_out:
            return update.average
        shares = [one.weight for one in update.contributions]
        use = [one.weight / one.report.num_samples for one in update.contributions]
        # Divided by the mean of the samples, so that eps keeps its meaning.
        whole = 1.0 if self.weights == "clients" else fsum(shares) * max(use) / fsum(use)
        told = [one.report.numbers["weight"] * one.weight / whole for one in update.contributions]
        step = appeal_step(told, self.server_rate, self.eps)
        return update.combine((1 - step, update.start), (step, update.average))

    def evaluated(self, model: str) -> str:
        return f"{model}, or the own model of a client that is out" if self.opt_out else model

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        return turn.kept["own"] if turn.kept.get("out") else turn.start

    def _threshold(self, turn: ClientTurn) -> float:
        return float(turn.kept["threshold"]) if self.threshold is None else self.threshold
