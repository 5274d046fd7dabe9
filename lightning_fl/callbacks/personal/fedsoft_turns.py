"""What FedSoft asks of the turns of a round: whose they are, and the pull of a client's model to the cluster models.

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
    """``Sel_s`` of every model s: so many clients for each, who feed the models that they are drawn for.

    Args:
        trainer: before a round.
        possible: those who may be drawn, by their weights in the run's collaboration.
        number: K.

    Returns:
        Those who are drawn for some model, counting alike, in the order of ``possible``.
    """
    if any(one.weight is not None for one in possible):
        raise ConfigurationError(
            "FedSoft.clients_per_model draws the clients of a model, who count alike; the callback that selects"
            " clients gives them weights. Leave one of the two out."
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
    """What adds ``λ (Σ_s u_ks w - Σ_s u_ks c_s)``, the gradient of ``λ/2 Σ_s u_ks |w - c_s|²``, to a client's.

    Args:
        models: c_s, S of them.
        importance: u_k, shape [S].
        lam: λ.
        spans: the parameters that are pulled.
    """
    centre = linear_combination(models[0], list(zip(importance.tolist(), models, strict=True)), spans)
    strength = lam * float(importance.sum())

    def correct_(gradient: Weights, weights: Weights) -> None:
        for dtype, vector in gradient.floating():
            vector.add_(weights.vectors[dtype], alpha=strength).sub_(centre.vectors[dtype], alpha=lam)

    return correct_
