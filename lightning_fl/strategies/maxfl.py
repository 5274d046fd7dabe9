"""MaxFL: the shared model is trained for those whom it may win, and not for those whom it has or never will.

Cho, Jhunjhunwala, Li, Smith, Joshi: Maximizing Global Model Appeal in Federated Learning, TMLR 2024
(https://arxiv.org/abs/2205.14840): ``min_w (1/N) Σ σ(f_i(w) - ρ_i)``, smoothly the number of those better off alone.

======================  ==========================================================  ==========
paper                   here                                                        shape
======================  ==========================================================  ==========
ρ_i = f_i(ŵ_i)          ``turn.kept["threshold"]``, found in the first turn         number
q_i = σ(z)(1 - σ(z))    ``report.numbers["weight"]``, z = f_i(x) - ρ_i              number
η_g, ε                  ``server_rate``, ``eps``                                    numbers
x + η_g ΣqΔ / (Σq + ε)  ``update.start + s (update.average - update.start)``        [P]
======================  ==========================================================  ==========

With ``opt_out``, its reading in the literature on coalitions, a client takes part only where the shared model's loss is
below its threshold; else it goes on with a model of its own, begun as the shared one, with which it is evaluated.
Differs from the paper: ŵ_i comes of one more round of local work unless ``warm_up_steps`` says otherwise; clients may
count by samples, q_i m_i over the mean m. A client that is out trains the shared model too: the server learns it after.
Losses are those of models in evaluation mode.
"""

from collections.abc import Mapping
from typing import Any, Literal

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.engine.client import ClientTurn, ClientUpdate, LocalWork
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.maxfl import appeal_step, appeal_weight
from lightning_fl.strategies.federated import FederatedStrategy

__all__ = ["MaxFL"]


class MaxFL(FederatedStrategy):
    """Federated averaging that maximises the number of clients who want the shared model.

    Args:
        threshold: ρ, for all clients; ``None`` for the training loss of a model that each has trained alone.
        warm_up_steps: optimiser steps of that model (the paper's experiments: 100); ``None`` for those of a turn.
        server_rate: η_g, of the server's step; 1 unless given. Not with ``opt_out``.
        eps: ε, so that a cohort that nothing can win over stays where it is; 0.01 unless given. Not with ``opt_out``.
        opt_out: clients take part where the shared model meets their threshold, else train alone.
        weights: "clients" count alike, as in the paper, or by "samples"; unless given the latter with ``opt_out`` only.
        **settings: those of every strategy.

    Raises:
        ConfigurationError: a number is out of range, or options exclude each other.
    """

    name = "maxfl"
    needs_losses = True
    excludes: Mapping[str, str] = {
        "model_per_client": "there is no shared model for clients to want or to refuse",
        "drawn_weights": "both weigh clients by their losses",
    }

    def __init__(
        self,
        threshold: float | None = None,
        warm_up_steps: int | None = None,
        server_rate: float | None = None,
        eps: float | None = None,
        opt_out: bool = False,
        weights: Literal["clients", "samples"] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        check_numbers(self, threshold=threshold, at_least=0)
        check_counts(self, warm_up_steps=warm_up_steps)
        check_numbers(self, server_rate=server_rate, eps=eps, above=0)
        if threshold is not None and warm_up_steps is not None:
            raise ConfigurationError("MaxFL.threshold is given: no model is trained for it; leave out warm_up_steps.")
        if opt_out and (server_rate is not None or eps is not None):
            raise ConfigurationError("MaxFL.opt_out takes the average as it is: leave out server_rate and eps.")
        if weights not in (None, "clients", "samples"):
            raise ConfigurationError(f"MaxFL.weights={weights!r}: give clients or samples.")
        self.threshold, self.warm_up_steps, self.opt_out = threshold, warm_up_steps, opt_out
        self.server_rate, self.eps = server_rate or 1.0, eps or 0.01
        self.weights = weights or ("samples" if opt_out else "clients")

    def begin_client(self, turn: ClientTurn) -> None:
        """ρ_i in the client's first turn, and the loss of the model that it has received."""
        if self.threshold is None and "threshold" not in turn.kept:
            work = LocalWork(self.warm_up_steps, 1) if self.warm_up_steps else None
            turn.kept["threshold"] = turn.training_loss(turn.train(turn.start, "threshold", work=work))
        turn.kept["loss"] = turn.training_loss(turn.start)

    def end_client(self, turn: ClientTurn, weights: Weights) -> None:
        """A client that is out goes on with its own model."""
        turn.kept["out"] = self.opt_out and turn.kept["loss"] >= self._threshold(turn)
        if turn.kept["out"]:
            turn.kept["own"] = turn.train(turn.kept.get("own", turn.start), "alone")

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """``q_i``; with ``opt_out`` all or nothing."""
        alike = 1.0 if self.weights == "clients" else None
        if self.opt_out:
            return ClientUpdate(weights, float(not turn.kept["out"]), weight=alike)
        weight = appeal_weight(turn.kept["loss"], self._threshold(turn))
        return ClientUpdate(weights, weight, {"weight": weight}, weight=alike)

    def aggregate(self, update: ModelUpdate) -> Weights:
        """``x + s (average - x)``."""
        if self.opt_out:
            return update.average
        told = [one.report.numbers["weight"] for one in update.contributions]
        samples = [one.report.num_samples for one in update.contributions] if self.weights == "samples" else None
        step = appeal_step(told, self.server_rate, self.eps, samples)
        return update.combine((1 - step, update.start), (step, update.average))

    def evaluated(self, model: str) -> str:
        """Who is out has a model of its own."""
        return f"{model}; of clients that are out, their own models" if self.opt_out else model

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        """Its own model of a client that is out, else the shared one."""
        return turn.kept["own"] if turn.kept.get("out") else turn.start

    def _threshold(self, turn: ClientTurn) -> float:
        return float(turn.kept["threshold"]) if self.threshold is None else self.threshold
