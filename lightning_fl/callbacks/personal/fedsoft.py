"""FedSoft: soft clusters with a personal model per client, regularised towards the cluster models.

Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022,
https://arxiv.org/abs/2112.06053, algorithm 1. The weights u and v are those of ``functional/fedsoft.py``.

u and v are estimated every τ rounds. In each round K clients are drawn for each model with p = v_s, without
replacement; a drawn client trains once, from its last w_k, on ``f_k(w) + λ/2 Σ_s u_ks |w - c_s|²``, and c_s becomes the
mean of those drawn for it, or ``Σ_k v_sk w_k`` without draws. A client uses its w_k.

Differs from the paper: models start from different clients instead of different weights, as in
:class:`SoftAveraging`; before the first estimate there is no drawing and no regularisation; a sample that two models
explain equally well counts half for each. The authors keep Adam's state: ``trainer.optimizer_state=keep``.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Literal

from torch import Tensor

from lightning_fl.callbacks.personal.soft_averaging import SoftAveraging
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Fraction, NonNegative, checked_fields
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.federation import OWN_MODELS
from lightning_fl.engine.weights.flat import Weights, linear_combination
from lightning_fl.functional.fedsoft import contribution_weights, draw_contributors, floored_importance
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class FedSoft(SoftAveraging):
    """Soft clusters: clients contribute to cluster models and keep personal models close to those that fit their data.

    Composes like :class:`SoftAveraging`; with sampled clients, those of a model are drawn among them. Each participant
    of a round receives all cluster models and sends its own model once.

    Args:
        num_models: S, at most the number of clients.
        lam: λ, strength of the proximal term (the authors: 0.01 for CIFAR-10, 0.1 for MNIST, 1 for linear models).
        clients_per_model: K, clients drawn for each model in a round; ``None`` for all, weighted by v.
        sigma: σ, minimum importance of a model for a client.
        every_n_rounds: τ, as for :class:`SoftAveraging`.
        initial_rounds: as for :class:`SoftAveraging`.
        num_samples: as for :class:`SoftAveraging`; ``None`` for all.
        split: as for :class:`SoftAveraging`.

    Attributes:
        trained: clients with a personal model, on any rank.

    Raises:
        ConfigurationError: in a round, the callback that selects clients assigns models, or weights if clients are
            drawn by v; also those of :class:`SoftAveraging`.
        TrainingError: the loss of a sample is not finite.
    """

    method_name = "FedSoft"

    saved = (*SoftAveraging.saved, "trained")
    _curve = "fedsoft"

    lam: NonNegative
    clients_per_model: Count | None = None
    sigma: Fraction = 1e-4
    every_n_rounds: Count = 2
    num_samples: Count | None = None
    personal_split: Literal["train", "val"] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trained: set[int] = set()

    def _collaboration(self, importance: Tensor, num_samples: Sequence[int]) -> Collaboration:
        return Collaboration(contribution_weights(floored_importance(importance, self.sigma), num_samples), importance)

    def assign_models(self, trainer: TrainerSurface, cohort: Cohort) -> Cohort:
        """Draw the contributors of each model; clients continue with their own models."""
        cohort.refuse_models("FedSoft")
        chosen = [replace(one, own=one.client in self.trained) for one in cohort.participants]
        if self.importance and self.clients_per_model is not None:
            chosen = _drawn(trainer, chosen, self.clients_per_model)
        if self.importance:
            trainer.federation.communication.receive([one.client for one in chosen], trainer.federation.models)
        return Cohort(tuple(chosen))

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        return "each client's own model" if trainer.federation.own_models else model

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        trainer.client_store(OWN_MODELS)[client] = trainer.client_weights().clone().state_dict()

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        self.trained |= trainer.round.survivors
        super().on_aggregate_end(trainer)

    def correct_gradient_(self, trainer: TrainerSurface, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Add ``λ (Σ_s u_ks w - Σ_s u_ks c_s)``, once u is known."""
        if self.lam == 0 or not self.importance:
            return
        if turn.steps == 0:  # keep Σ_s u_ks c_s and λ Σ_s u_ks of the turn
            importance = floored_importance(self.importance[-1][turn.client], self.sigma)
            models = trainer.federation.models
            terms = list(zip(importance.tolist(), models, strict=True))
            self._centre = linear_combination(models[0], terms, trainer.loop.averaged_spans())
            self._strength = self.lam * float(importance.sum())
        for dtype, vector in gradient.floating():
            vector.add_(weights.vectors[dtype], alpha=self._strength)
            vector.sub_(self._centre.vectors[dtype], alpha=self.lam)


def _drawn(trainer: TrainerSurface, possible: Sequence[Participant], number: int) -> list[Participant]:
    """Draw ``Sel_s``, ``number`` contributors of every model s; returned are those drawn for at least one, in order."""
    if any(one.weight is not None for one in possible):
        raise ConfigurationError("FedSoft.clients_per_model conflicts with the callback that sets weights: drop one.")
    feeds: dict[int, list[int]] = {}
    clients = [one.client for one in possible]
    for model, weights in enumerate(trainer.federation.collaboration.aggregation[:, clients]):
        if float(weights.sum()) > 0:
            for place in draw_contributors(weights, number, trainer.generator("fedsoft", model)):
                feeds.setdefault(place, []).append(model)
    return [replace(possible[place], weight=1.0, feeds=tuple(feeds[place])) for place in sorted(feeds)]
