"""Several models, each the average of all clients weighted by how well it serves them: a baseline for tiers.

Like FedSoft (Ruan, Joe-Wong: "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022,
https://arxiv.org/abs/2112.06053) without its local objective:

=====================  ==========================================  ======
FedSoft                here                                        shape
=====================  ==========================================  ======
c_s, cluster models    ``trainer.models``, ``num_models``          S x [P]
u_ks                   ``importance``, rows sum to 1               [N, S]
n_k                    ``trainer.num_samples``                     [N]
tau                    ``every_n_rounds``
=====================  ==========================================  ======

A client trains once from its mixture ``sum_s u_ks c_s``, and its weights count ``u_ks n_k`` in model s.

Differs from FedSoft: u is by each model's score on the client's samples, not the share of samples for which the model
has the smallest loss of all; a client descends its own loss from the mixture, without a proximal term to every model
(take a strategy that has one); all clients of the round count in all models, while FedSoft draws clients for each
cluster by importance. Models that are equal would stay equal: in the first round clients are dealt out at random, and
each model is the average of its part.
"""

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.collaboration import Collaboration
from lightning_fl.data.module import Split
from lightning_fl.engine.client_scores import ClientScores
from lightning_fl.engine.on_hosts import compute_on_hosts
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.dpfl import shuffled
from lightning_fl.seeding import generator

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["SoftAveraging"]


class SoftAveraging(Callback):
    """K shared models that every client uses, and contributes to, in proportion to how well they serve its data.

    Works with any strategy, with sampled clients, ``PersonalLayers`` and ``ClientArrivals``: a newcomer uses and feeds
    the models as the others do until its importance weights are first estimated. A model of no use to anybody is the
    average of all clients by samples until it is.

    Args:
        num_models: K, at most the number of clients.
        every_n_rounds: rounds between two estimates of the importance weights; the first is after the first round.
        monitor: validation metric that scores a model: a share such as an accuracy, or a loss x as ``exp(-x)``.
            Default: the first of which more is better, else the first loss.
        num_samples: of each client, drawn anew for every estimate; ``None`` for all.
        split: samples that models are scored on, "train" or "val".

    Attributes (a list entry per estimate):
        rounds: rounds done.
        importance: u, float64 [N, K], rows sum to 1.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, there are more models than clients, the
            module has no ``validation_step`` or a client has no samples in the split; later, a metric gives no score.
    """

    role = "collaboration"

    def __init__(
        self,
        *,
        num_models: int,
        every_n_rounds: int = 1,
        monitor: str | None = None,
        num_samples: int | None = 256,
        split: Literal["train", "val"] = "train",
    ) -> None:
        for name, value in (
            ("num_models", num_models),
            ("every_n_rounds", every_n_rounds),
            ("num_samples", num_samples),
        ):
            if value is not None and value < 1:
                raise ConfigurationError(f"SoftAveraging.{name}={value}: give a number of at least 1.")
        if split not in ("train", "val"):
            raise ConfigurationError(
                f"SoftAveraging.split={split!r}: choose train or val; test samples are for the end."
            )
        self.num_models = num_models
        self.every_n_rounds = every_n_rounds
        self.monitor = monitor
        self.num_samples = num_samples
        self.split: Split = split
        self._reset()

    def _reset(self) -> None:
        self.rounds: list[int] = []
        self.importance: list[Tensor] = []

    def on_fit_start(self, trainer: "FederatedTrainer") -> None:
        """Deal clients out: a part of them for each model."""
        self._reset()
        count = trainer.num_clients
        if self.num_models > count:
            raise ConfigurationError(
                f"SoftAveraging.num_models={self.num_models} for {count} clients: give at most one model a client."
            )
        self._scores(trainer).check_samples("SoftAveraging.split")
        order = shuffled(range(count), generator(trainer.seed, "first parts"))
        labels = [0] * count
        for place, client in enumerate(order):
            labels[client] = place % self.num_models
        trainer.collaboration = Collaboration.coalitions(labels, trainer.num_samples)

    def on_aggregate_end(self, trainer: "FederatedTrainer") -> None:
        """Estimate the importance weights anew, where that is due."""
        if trainer.current_round % self.every_n_rounds:
            return
        scores = self._scores(trainer)
        present = [client for client in trainer.present_clients if client not in trainer.resting_clients]
        shares = compute_on_hosts(
            trainer,
            present,
            lambda client: scores.importance(client, trainer.models).shares.tolist(),
            "SoftAveraging cannot score the models",
        )
        importance = torch.full((trainer.num_clients, self.num_models), 1 / self.num_models, dtype=torch.float64)
        for client, row in shares.items():
            importance[client] = torch.tensor(row, dtype=torch.float64)
        trainer.collaboration = soft_collaboration(importance, trainer.num_samples)
        self.rounds.append(trainer.current_round + 1)
        self.importance.append(importance)
        for model, mean in enumerate(importance[list(shares)].mean(0).tolist()):
            trainer.log(f"soft_averaging/{model}/importance", mean)

    def _scores(self, trainer: "FederatedTrainer") -> ClientScores:
        return ClientScores(trainer, "SoftAveraging", self.split, self.num_samples, self.monitor)

    def state_dict(self) -> dict[str, Any]:
        """The history; what is in use is the run's collaboration."""
        return {"rounds": self.rounds, "importance": self.importance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        self.rounds = list(state["rounds"])
        self.importance = [one.clone() for one in state["importance"]]


def soft_collaboration(importance: Tensor, num_samples: list[int]) -> Collaboration:
    """``A_ki = u_ik m_i / sum_j u_jk m_j`` and ``P = u``; a model that nobody uses is the average of all by samples.

    Args:
        importance: u, [N, K], rows sum to 1.
        num_samples: m, length N.
    """
    samples = torch.tensor(num_samples, dtype=torch.float64)
    weights = importance.double().T * samples
    totals = weights.sum(1, keepdim=True)
    weights = torch.where(totals > 0, weights, samples)
    return Collaboration(weights / weights.sum(1, keepdim=True), importance)
