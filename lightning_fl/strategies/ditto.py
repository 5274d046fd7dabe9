"""Ditto: every client also trains a model of its own, pulled towards the shared one.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021
(https://arxiv.org/abs/2012.04221), Algorithm 1.

lambda is ``strength``, w^t ``turn.start``, v_k ``turn.kept["own"]``, at first w^t, and s ``personal_steps``.

Differs from the paper: the shared model is trained first, which changes nothing because the two have separate
optimisers and random draws; a client that is not drawn keeps v_k, and is evaluated with it.
"""

from typing import Any

from lightning_fl.core.validation import Count, NonNegative, checked
from lightning_fl.engine.client import ClientTurn, LocalWork
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies.fedavg import FedAvg


class Ditto(FedAvg):
    """Personal steps ``v <- v - eta (grad f_k(v) + strength (v - w^t))``; clients are evaluated with v, and export it.

    The shared model is that of federated averaging, to the bit. A client's model stays with it when coalitions change.

    Args:
        strength: lambda, of the pull; 0 for local training; 0.1 to 2 in the paper, 1 in FedCollab, 0.75 in DPFL.
        personal_steps: optimiser steps of the personal model in a turn; ``None`` for as many as the shared model takes.
        **settings: those of every strategy.
    """

    name = "ditto"
    excludes = {  # noqa: RUF012 - of the class
        "model_per_client": "every client already has a model of its own, and Ditto adds a second one"
    }

    @checked
    def __init__(self, *, strength: NonNegative = 1.0, personal_steps: Count | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.strength, self.personal_steps = strength, personal_steps

    def end_client(self, turn: ClientTurn, weights: Weights) -> None:
        def pull(gradient: Weights, present: Weights) -> None:
            for dtype, vector in gradient.floating():
                vector.add_(present.vectors[dtype] - turn.start.vectors[dtype], alpha=self.strength)

        work = None if self.personal_steps is None else LocalWork(self.personal_steps, 1)
        own = turn.kept.get("own", turn.start)
        turn.kept["own"] = turn.train(own, "personal", work=work, correct_=pull if self.strength else None)

    def evaluated(self, model: str) -> str:
        return f"each client's own model, trained alongside {model}"

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        return turn.kept.get("own", turn.start)
