"""FedSoft: every client has a model of its own, pulled to cluster models by how much of its data each explains best.

Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022,
https://arxiv.org/abs/2112.06053, algorithm 1. The mathematics is in ``functional/fedsoft.py``.

=======================  =========================================================  ======
paper                    here                                                       shape
=======================  =========================================================  ======
c_s, S cluster models    ``trainer.models``, ``num_models`` of them                 [P]
w_k                      ``trainer.client_store("own_models")[k]``                  [P]
u_ks, σ                  ``floored_importance(importance, sigma)``                  [N, S]
v_sk                     A of ``trainer.collaboration``                             [S, N]
λ, τ                     ``lam``, ``every_n_rounds``
K, Sel_s                 ``clients_per_model``, who is drawn for model s
=======================  =========================================================  ======

Every τ rounds u and v are estimated anew. In a round K clients are drawn for each model with p = v_s, without
replacement; who is drawn at all trains once, from its own last w_k, on ``f_k(w) + λ/2 Σ_s u_ks |w - c_s|²``, and c_s
becomes the mean of those drawn for it, or ``Σ_k v_sk w_k`` where nobody is drawn. A client uses its w_k.

Differs from the paper: models do not start from different weights but from different clients, as in
:class:`SoftAveraging`, and before the first estimate nobody is drawn or pulled; a sample that two models explain
equally well counts half in each. The authors keep the state of Adam between rounds: ``trainer.optimizer_state=keep``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from lightning_fl.callbacks.personal.fedsoft_turns import drawn_participants, proximal_pull
from lightning_fl.callbacks.personal.own_models import OwnModels
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.fedsoft import contribution_weights, floored_importance
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["FedSoft"]


class FedSoft(OwnModels):
    """Soft clusters: clients feed cluster models, and keep models of their own near those that explain their data.

    Composes as :class:`SoftAveraging` does; with sampled clients those of a model are drawn among them. In every round
    who takes part receives all cluster models, and sends its own once.

    Args:
        num_models: S, at most the number of clients.
        lam: λ, the strength of the proximal term (the authors: 0.01 for CIFAR-10, 0.1 for MNIST, 1 for linear models).
        clients_per_model: K, clients that are drawn for each model in a round; ``None`` for everybody, by v.
        sigma: σ, the least importance of a model for a client.
        every_n_rounds: τ, rounds between two estimates.
        initial_rounds: rounds before the first one, in which clients stay in the parts that they are dealt out to.
        num_samples: of each client that models are compared on, drawn anew for every estimate; ``None`` for all.
        split: samples that models are compared on, "train" or "val".

    Attributes (a list entry per estimate):
        rounds: rounds done.
        importance: the shares of samples n_ks / n_k, float64 [N, S], rows sum to 1.

    Raises:
        ConfigurationError: a value is out of range; in a round, the callback that selects clients names models for
            them, or weights where clients are drawn by v; further those of :class:`SoftAveraging`.
        TrainingError: the loss of a sample is not finite.
    """

    method_name = "FedSoft"

    traits = ("soft_assignment",)
    _curve = "fedsoft"

    def __init__(
        self,
        *,
        num_models: int,
        lam: float,
        clients_per_model: int | None = None,
        sigma: float = 1e-4,
        every_n_rounds: int = 2,
        initial_rounds: int = 1,
        num_samples: int | None = None,
        split: Literal["train", "val"] = "train",
    ) -> None:
        check_numbers(self, at_least=0, lam=lam)
        check_numbers(self, at_least=0, at_most=1, sigma=sigma)
        check_counts(self, clients_per_model=clients_per_model)
        self.lam, self.sigma, self.clients_per_model = lam, sigma, clients_per_model
        super().__init__(
            num_models=num_models,
            every_n_rounds=every_n_rounds,
            initial_rounds=initial_rounds,
            num_samples=num_samples,
            split=split,
        )

    def _collaboration(self, importance: torch.Tensor, num_samples: Sequence[int]) -> Collaboration:
        return Collaboration(contribution_weights(floored_importance(importance, self.sigma), num_samples), importance)

    def assign_models(self, trainer: TrainerSurface, cohort: Cohort) -> Cohort:
        """Draw who makes which model; all go on from their own models."""
        if any(one.model is not None for one in cohort.participants):
            raise ConfigurationError(
                "FedSoft lets clients feed several models; the callback that selects clients names one for them. Keep"
                " one of the two in trainer.callbacks."
            )
        chosen = [replace(one, own=one.client in self.trained) for one in cohort.participants]
        if self.importance and self.clients_per_model is not None:
            chosen = drawn_participants(trainer, chosen, self.clients_per_model)
        if self.importance:
            trainer.federation.communication.receive([one.client for one in chosen], trainer.federation.models)
        return Cohort(tuple(chosen))

    def gradient_correction(self, trainer: TrainerSurface, client: int) -> Callable[[Weights, Weights], None] | None:
        """The proximal term's, once u is known."""
        if self.lam == 0 or not self.importance:
            return None
        importance = floored_importance(self.importance[-1][client], self.sigma)
        return proximal_pull(trainer.federation.models, importance, self.lam, trainer.loop.averaged_spans())
