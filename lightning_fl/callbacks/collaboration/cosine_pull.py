"""Gradient term of pFedGraph: pulls a client's model towards those it was averaged with, by cosines.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
https://proceedings.mlr.press/v202/ye23b.html: ``Σ_j A_ij cos(w, w_j) = z_i·w / |w|``, ``z_i = Σ_j A_ij w_j / |w_j|``.
"""

from collections.abc import Sequence

from torch import Tensor

from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.weights.flat import Span, Weights, inner_product, linear_combination
from lightning_fl.functional.pfedgraph import centre_terms, pull_terms
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CosinePull"]

#: Name of the client store of z_i.
_STORE = "pfedgraph"


class CosinePull:
    """Adds ``strength`` times the gradient of ``Σ_j A_ij cos(w, w_j)``, from a client's second turn on.

    Args:
        strength: factor of the term in the loss; negative pulls, 0 disables it.

    Attributes:
        clients: clients with a z_i, on all ranks.
    """

    def __init__(self, strength: float) -> None:
        self.strength = strength
        self.clients: set[int] = set()
        # Of the present turn.
        self._centre: Weights | None = None
        self._spans: list[Span] = []

    def correct_(self, trainer: TrainerSurface, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Correct the gradient of a step."""
        if turn.steps == 0:
            kept = trainer.client_store(_STORE).get(turn.client) if self.strength else None
            self._centre = None if kept is None else Weights.from_state_dict(kept, trainer.processes.device)
            self._spans = trainer.loop.averaged_spans()
        centre, spans = self._centre, self._spans
        if centre is None:
            return
        a, b = pull_terms(inner_product(centre, weights, spans), inner_product(weights, weights, spans))
        for dtype, vector in gradient.floating():
            vector.add_(centre.vectors[dtype], alpha=self.strength * a)
            vector.add_(weights.vectors[dtype], alpha=self.strength * b)

    def keep_centres(self, trainer: TrainerSurface, clients: Sequence[int], rows: Tensor) -> None:
        """Store z_i of hosted participants; count the download of the previous ones.

        Args:
            trainer: after the turns of a round, before the models are averaged.
            clients: participants, ascending.
            rows: weights of their models in each other's average, [n, n].
        """
        if self.strength == 0:
            return
        spans, store = trainer.loop.averaged_spans(), trainer.client_store(_STORE)
        norms = [
            inner_product(trainer.federation.models[client], trainer.federation.models[client], spans) ** 0.5
            for client in clients
        ]
        hosted = set(trainer.hosted_clients)
        for client, row in zip(clients, rows.tolist(), strict=True):
            if client in hosted:
                terms = [
                    (weight, trainer.federation.models[clients[place]]) for place, weight in centre_terms(row, norms)
                ]
                store[client] = linear_combination(trainer.federation.models[client], terms, spans).state_dict()
        received = sorted(self.clients.intersection(trainer.round.reports))  # received with the model
        trainer.federation.communication.add(dict.fromkeys(received, trainer.federation.communication.model_bytes), {})
        self.clients |= set(clients)
