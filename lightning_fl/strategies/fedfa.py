"""FedFA: clients with a low accuracy, and clients that take part often, count for more.

Huang, Li, Wang, Du, Zhang: Fairness and Accuracy in Federated Learning, 2020 (https://arxiv.org/abs/2012.10069); not
the methods of the same name of 2022 (feature anchors) and 2023 (feature augmentation).

A client's weight is ``α I_i + (1 - α) I'_i`` of ``functional/fairness.py``, by its accuracy acc_i and its number n_i of
rounds, this one among them; the server moves by ``m = γ m + (1 - γ) Δ``. Where a metric is a loss, as in regression,
the score is ``exp(-loss)``.

Differs from the paper: accuracies are those of the received model on the client's training data, before it trains; the
paper may mean after, which is ``moment="after"``. Sums are over the cohort without failed turns, so what clients learn
is kept until all have trained; a share of the accuracies is at least 1e-6. The clients' momentum is the optimiser's.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval

from lightning_fl.core.metrics import higher_is_better, monitored_metric
from lightning_fl.core.validation import Fraction, checked
from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import Contribution, ModelUpdate
from lightning_fl.engine.probes.client_scores import default_score
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.fairness import accuracy_weights, participation_weights
from lightning_fl.functional.pifl import importance_weights
from lightning_fl.strategies.federated import FederatedStrategy


class FedFA(FederatedStrategy):
    """Averaging by accuracy and participation, with momentum; one more pass over the training data a round.

    Args:
        alpha: share of the accuracies in the weights; the rest is participation's. 1, with ``momentum`` 0, is FedFA as
            a baseline in the literature on coalitions.
        momentum: γ, of the server.
        monitor: metric of ``validation_step``; ``None`` for the first of at least 0 where more is better, else a loss.
        moment: take accuracies "before" a client trains, or "after": clients then train twice in a round, on the same
            batches, and the accuracy is that of a fresh optimiser.
        **settings: those of every strategy.

    Raises:
        ConfigurationError: in the first round, the metric is not logged, or is neither a share nor a loss (0 or more).
    """

    name = "fedfa"
    excludes: Mapping[str, str] = {
        "model_per_client": "each client makes a model of its own, so there is no cohort to compare accuracies in",
        "drawn_weights": "both weigh clients by how well the model does on their data",
    }

    @checked
    def __init__(
        self,
        alpha: Fraction = 0.5,
        momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9,
        monitor: str | None = None,
        moment: Literal["before", "after"] = "before",
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.alpha, self.momentum, self.monitor, self.moment = alpha, momentum, monitor, moment

    def measure_client(self, turn: ClientTurn) -> dict[str, float]:
        """The training accuracy of the received model, or of what the turn makes of it."""
        weights = turn.start if self.moment == "before" else turn.train(turn.start, "train")  # its batches
        metrics = turn.training_metrics(weights)
        name = monitored_metric(metrics, self.monitor, default_score(metrics), "FedFA")
        logged = metrics[name]
        values = torch.tensor([logged.value], dtype=torch.float64)
        return {"score": float(importance_weights(name, values, higher_is_better(name, logged.higher_is_better)))}

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        return ClientUpdate(weights, numbers=dict(turn.measured[turn.client]))

    def weigh_cohort(self, contributions: Sequence[Contribution], state: Mapping[str, Any]) -> list[float]:
        """``α I_i + (1 - α) I'_i``."""
        turns = state.get("turns", {})
        scores = torch.tensor([one.report.numbers["score"] for one in contributions], dtype=torch.float64)
        counts = torch.tensor([turns.get(one.client, 0) + 1 for one in contributions], dtype=torch.float64)
        return (self.alpha * accuracy_weights(scores) + (1 - self.alpha) * participation_weights(counts)).tolist()

    def aggregate(self, update: ModelUpdate) -> Weights:
        """``x + m``; without momentum the average."""
        turns = dict(update.state.get("turns", {}))
        for one in update.contributions:
            turns[one.client] = turns.get(one.client, 0) + 1
        update.state["turns"] = turns
        if not self.momentum:
            return update.average
        before = update.state.get("momentum") or update.direction((0.0, update.start))
        rest = 1 - self.momentum
        moved = update.direction((self.momentum, before), (rest, update.average), (-rest, update.start))
        update.state["momentum"] = moved
        return update.combine((1.0, update.start), (1.0, moved))
