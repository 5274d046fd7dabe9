"""The pull of clients' models to those that they were averaged with, by cosines: what pFedGraph adds to a gradient.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
https://proceedings.mlr.press/v202/ye23b.html: ``Σ_j A_ij cos(w, w_j) = z_i·w / |w|``, ``z_i = Σ_j A_ij w_j / |w_j|``.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from lightning_fl.engine.weights.flat import Weights, inner_product, linear_combination
from lightning_fl.functional.pfedgraph import centre_terms, pull_terms
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CosinePull"]

#: What hosted clients keep: z_i.
_STORE = "pfedgraph"


class CosinePull:
    """Adds ``strength`` times the gradient of ``Σ_j A_ij cos(w, w_j)``, from a client's second turn on.

    Args:
        strength: of the term in the loss; negative to pull, 0 for nothing at all.

    Attributes:
        clients: who has a z_i, on whatever rank: it takes part for the second time.
    """

    def __init__(self, strength: float) -> None:
        self.strength = strength
        self.clients: set[int] = set()

    def correction(self, trainer: TrainerSurface, client: int) -> Callable[[Weights, Weights], None] | None:
        """What changes the gradients of a turn."""
        kept = trainer.client_store(_STORE).get(client)
        if kept is None or self.strength == 0:
            return None
        centre, spans = Weights.from_state_dict(kept, trainer.processes.device), trainer.loop.averaged_spans()

        def correct_(gradient: Weights, weights: Weights) -> None:
            a, b = pull_terms(inner_product(centre, weights, spans), inner_product(weights, weights, spans))
            for dtype, vector in gradient.floating():
                vector.add_(centre.vectors[dtype], alpha=self.strength * a)
                vector.add_(weights.vectors[dtype], alpha=self.strength * b)

        return correct_

    def keep_centres(self, trainer: TrainerSurface, clients: Sequence[int], rows: Tensor) -> None:
        """z_i of those who took part, where they are hosted; that of the round before came down with the model.

        Args:
            trainer: after the turns of a round, before the models are averaged.
            clients: who took part, ascending.
            rows: how much of each of their models goes into that of each, [n, n].
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
        received = sorted(self.clients.intersection(trainer.round.reports))  # when their turns began
        trainer.federation.communication.add(dict.fromkeys(received, trainer.federation.communication.model_bytes), {})
        self.clients |= set(clients)
