"""q-FedAvg: clients with a large loss count for more, which evens out accuracies.

Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020
(https://arxiv.org/abs/1905.10497), algorithm 2.

The terms Δ_k and h_k are those of ``functional/fairness.py``, with F_k measured before anybody trains, in evaluation
mode; L is ``lipschitz``, by default 1 / learning rate. The average has the weights F_k^q, and ``s = L ΣF_k^q / Σh_k``,
in (0, 1]. All F_k^q are divided by the largest, which changes neither. q = 0 is the mean of clients that count alike,
not FedAvg's by samples.

Differs from the paper: who takes part is a participation callback's choice. What is no trained, shared parameter
(statistics of BatchNorm) takes the average.
"""

from collections.abc import Mapping
from math import fsum
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import NonNegative, Positive, checked
from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.fairness import fair_bound, loss_weight
from lightning_fl.strategies.federated import FederatedStrategy


class QFedAvg(FederatedStrategy):
    """Fair federated averaging, for losses of at least 0; one more pass over each client's training data a round.

    Args:
        q: weight of fairness; 0.1 to 5 in the paper, 0 weighs clients equally.
        lipschitz: L, the largest curvature of a loss; ``None`` for 1 / the mean learning rate of the client's turn.
        **settings: those of every strategy.
    """

    name = "qfedavg"
    needs_losses = True
    excludes: Mapping[str, str] = {
        "model_per_client": "each client makes a model of its own, so there is no cohort to compare losses in",
        "drawn_weights": "both weigh clients by their losses",
    }

    @checked
    def __init__(self, q: NonNegative = 1.0, lipschitz: Positive | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.q = q
        self.lipschitz = lipschitz

    def measure_client(self, turn: ClientTurn) -> dict[str, float]:
        """F_k of the received model, over all training samples."""
        loss = turn.training_loss(turn.start)
        if loss < 0:
            what = f"QFedAvg takes powers of losses, and client {turn.client} has the loss {loss:.4g}"
            raise ConfigurationError(f"{what}: return a loss of at least 0 from training_step.")
        return {"loss": loss}

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """The weight ``F_k^q``, and the client's terms of the server's step."""
        loss = turn.measured[turn.client]["loss"]
        largest = max(one["loss"] for one in turn.measured.values())
        change = turn.combine((1.0, turn.start), (-1.0, weights))
        slope = self._curvature(turn)
        bound = fair_bound(loss, self.q, slope, turn.dot(change, change))
        weight = loss_weight(loss, largest, self.q)
        return ClientUpdate(weights, numbers={"slope": slope, "bound": bound}, weight=weight)

    def _curvature(self, turn: ClientTurn) -> float:
        if self.lipschitz is not None:
            return self.lipschitz
        rates = turn.rates or [turn.learning_rate]
        rate = rates[0] if len(set(rates)) == 1 else fsum(rates) / len(rates)
        if rate <= 0:
            raise ConfigurationError(f"QFedAvg takes 1 / learning rate for L, and the rate is {rate}: set lipschitz.")
        return 1 / rate

    def aggregate(self, update: ModelUpdate) -> Weights:
        slope, bound = (
            sum(one.weight * one.report.numbers[name] for one in update.contributions) for name in ("slope", "bound")
        )
        step = slope / bound
        return update.combine((1 - step, update.start), (step, update.average))
