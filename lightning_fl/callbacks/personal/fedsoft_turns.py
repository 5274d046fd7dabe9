"""FedSoft's drawing of participants and its proximal term.

Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022,
https://arxiv.org/abs/2112.06053, algorithm 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from lightning_fl.core.cohort import Participant
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.weights.flat import Span, Weights, linear_combination
from lightning_fl.functional.fedsoft import draw_contributors
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["drawn_participants", "proximal_pull"]


def drawn_participants(trainer: TrainerSurface, possible: Sequence[Participant], number: int) -> list[Participant]:
    """Draw ``Sel_s``, the K contributors of every model s.

    Args:
        trainer: before a round.
        possible: candidates, drawn by their weights in the collaboration.
        number: K.

    Returns:
        Clients drawn for at least one model, with equal weights, in the order of ``possible``.
    """
    if any(one.weight is not None for one in possible):
        raise ConfigurationError(
            "FedSoft.clients_per_model conflicts with the callback that selects clients, which sets their weights:"
            " remove one of the two."
        )
    feeds: dict[int, list[int]] = {}
    clients = [one.client for one in possible]
    for model, weights in enumerate(trainer.federation.collaboration.aggregation[:, clients]):
        if float(weights.sum()) > 0:
            for place in draw_contributors(weights, number, trainer.generator("fedsoft", model)):
                feeds.setdefault(place, []).append(model)
    return [replace(possible[place], weight=1.0, feeds=tuple(feeds[place])) for place in sorted(feeds)]


def proximal_pull(
    models: Sequence[Weights], importance: Tensor, lam: float, spans: Sequence[Span]
) -> Callable[[Weights, Weights], None]:
    """Gradient correction ``λ (Σ_s u_ks w - Σ_s u_ks c_s)`` of the proximal term ``λ/2 Σ_s u_ks |w - c_s|²``.

    Args:
        models: c_s, S of them.
        importance: u_k, shape [S].
        lam: λ.
        spans: regularised parameters.
    """
    centre = linear_combination(models[0], list(zip(importance.tolist(), models, strict=True)), spans)
    strength = lam * float(importance.sum())

    def correct_(gradient: Weights, weights: Weights) -> None:
        for dtype, vector in gradient.floating():
            vector.add_(weights.vectors[dtype], alpha=strength).sub_(centre.vectors[dtype], alpha=lam)

    return correct_
