"""Several models, each the average of all clients weighted by how much of their data it explains best.

FedSoft: Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022,
https://arxiv.org/abs/2112.06053.

=====================  =============================================================  ========
paper                  here                                                           shape
=====================  =============================================================  ========
c_s, cluster models    ``trainer.models``, ``num_models`` of them                     S x [P]
l(c_s; x, y)           the loss of ``training_step`` on one sample                    [S, n]
u_ks                   ``importance``, :func:`smallest_loss_shares`                   [N, S]
n_k                    ``trainer.num_samples``                                        [N]
tau                    ``every_n_rounds``
=====================  =============================================================  ========

A client trains once from its mixture ``sum_s u_ks c_s``, and its weights count ``u_ks n_k`` in model s. The paper's
proximal term ``lambda/2 sum_s u_ks |w - c_s|^2`` is ``lambda/2 |w - sum_s u_ks c_s|^2`` and a constant, u summing to 1:
FedProx's. It is the strategy's part, which with FedAvg has none (lambda = 0).

Differs from the paper, which :class:`~lightning_fl.callbacks.FedSoft` follows: all clients of a round count in all
models by their importance, while it draws clients for each cluster by importance, and they go on from their own last
models; u has no lower bound. Where the paper's models start from different initial weights, which an
average of networks does not get out of, here all start from the module's: in the first ``initial_rounds`` clients are
dealt out at random and each model is the average of its part.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.client_clusters import check_at_most_clients
from lightning_fl.callbacks.personal.personal_mixtures import PersonalMixtures
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator, shuffled
from lightning_fl.core.validation import Count, checked, warn_beyond_end
from lightning_fl.data.module import Split
from lightning_fl.engine.probes.on_hosts import check_samples
from lightning_fl.engine.turn.held_out_loss import HeldOutLoss
from lightning_fl.engine.turn.module_checks import refuse_manual_steps
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["SoftAveraging"]


class SoftAveraging(Callback):
    """Shared models that every client uses and contributes to, by how much of its data each of them explains best.

    Works with any strategy, with sampled clients, ``PersonalLayers`` and ``ClientArrivals``: a newcomer uses and feeds
    the models as the others do until its importance weights are first estimated. A model of no use to anybody is the
    average of all clients by samples until it is.

    Args:
        num_models: S, at most the number of clients.
        every_n_rounds: rounds between two estimates of the importance weights; the first is after the first
            ``initial_rounds``.
        initial_rounds: rounds, at least 1, for which clients stay in the parts that they are dealt out to at random.
        num_samples: of each client, drawn anew for every estimate, each given to ``training_step`` as a batch of its
            own under every model; ``None`` for all. Of data that come from a ``DataLoader``, its first batches that
            hold as many, each compared as a whole.
        split: samples that models are compared on, "train" or "val".
        personal_split: those that decide what a client uses when it is evaluated; by default the same. Validation
            samples may have another mixture than training samples: they say what the client wants to be good at.

    Attributes (a list entry per estimate):
        rounds: rounds done.
        importance: u, float64 [N, S], rows sum to 1.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, there are more models than clients or
            more initial rounds than rounds, the module optimises manually or a client has no samples in the
            split.
        TrainingError: the loss of a sample is not finite.
    """

    method_name = "soft averaging"
    role = "collaboration"
    traits = ("soft_assignment",)
    #: What curves are logged under.
    _curve = "soft_averaging"

    @checked
    def __init__(
        self,
        *,
        num_models: Count,
        every_n_rounds: Count = 1,
        initial_rounds: Count = 1,
        num_samples: Count | None = 256,
        split: Literal["train", "val"] = "train",
        personal_split: Literal["train", "val"] | None = None,
    ) -> None:
        self.num_models = num_models
        self.every_n_rounds = every_n_rounds
        self.initial_rounds = initial_rounds
        self.num_samples = num_samples
        self.split: Split = split
        self.personal_split: Split = personal_split or split
        self._reset()

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _reset(self) -> None:
        self.rounds: list[int] = []
        self.importance: list[Tensor] = []
        self._mixtures = PersonalMixtures(self.split, self.personal_split, self._weigh)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Deal clients out: a part of them for each model."""
        self._reset()
        warn_beyond_end(
            self, trainer.max_rounds, every_n_rounds=self.every_n_rounds, initial_rounds=self.initial_rounds
        )
        count = trainer.num_clients
        check_at_most_clients(self, count, num_models=self.num_models)
        if self.initial_rounds > trainer.max_rounds:
            raise ConfigurationError(
                f"{self._name}.initial_rounds={self.initial_rounds}: a run of {trainer.max_rounds} rounds would never"
                " estimate the importance weights; give a smaller number."
            )
        refuse_manual_steps(trainer.loop.module, self._name)
        for name, split in (("split", self.split), ("personal_split", self.personal_split)):
            check_samples(trainer.loop, f"{self._name}.{name}", split)
        order = shuffled(range(count), generator(trainer.seed, "first parts"))
        labels = [0] * count
        for place, client in enumerate(order):
            labels[client] = place % self.num_models
        trainer.federation.collaboration = Collaboration.coalitions(labels, trainer.federation.num_samples)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Train from the mixtures by importance, whatever clients were evaluated with."""
        if self.importance and self.personal_split != self.split:
            trainer.federation.collaboration = Collaboration(
                trainer.federation.collaboration.aggregation, self.importance[-1]
            )

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Estimate the importance weights anew, where that is due."""
        since = trainer.federation.current_round + 1 - self.initial_rounds
        if since >= 0 and since % self.every_n_rounds == 0:
            trainer.federation.communication.receive(trainer.active_clients, trainer.federation.models)
            importance = self._weigh(trainer, self.split)
            importance = torch.where(importance.isnan(), 1 / self.num_models, importance)  # away or at rest
            trainer.federation.collaboration = self._collaboration(importance, trainer.federation.num_samples)
            self.rounds.append(trainer.federation.current_round + 1)
            self.importance.append(importance)
            for model, mean in enumerate(importance[trainer.active_clients].mean(0).tolist()):
                trainer.log(f"{self._curve}/{model}/importance", mean)
        if self.importance:
            self._mixtures.set_where_evaluated(trainer, self.importance[-1])

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Personal models of a run that ended early."""
        if self.importance:
            self._mixtures.set_at_the_end(trainer, lambda: self.importance[-1])

    def _collaboration(self, importance: Tensor, num_samples: Sequence[int]) -> Collaboration:
        """What follows from importance weights [N, S]: ``A_sk`` in proportion to ``u_ks n_k``."""
        return Collaboration.from_shares(importance, num_samples)

    def _weigh(self, trainer: TrainerSurface, split: Split) -> Tensor:
        """u on a split's samples, NaN for clients that are away or rest."""
        loss = HeldOutLoss(trainer.loop, split, self.num_samples, f"soft averaging by {split}")
        shares = trainer.on_hosts(
            trainer.active_clients,
            lambda client: _shares(loss, client, trainer.federation.models),
            f"{self._name} cannot compare the models",
        )
        found = torch.full((trainer.num_clients, self.num_models), float("nan"), dtype=torch.float64)
        for client, row in shares.items():
            found[client] = row
        return found

    def state_dict(self) -> dict[str, Any]:
        """The history; what is in use is the run's collaboration."""
        return {"rounds": self.rounds, "importance": self.importance, "personal_round": self._mixtures.round}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        self.rounds = list(state["rounds"])
        self.importance = [one.clone() for one in state["importance"]]
        self._mixtures.round = state["personal_round"]


def _shares(loss: HeldOutLoss, client: int, models: Sequence[Weights]) -> Tensor:
    found = [loss.of_samples(client, model) for model in models]
    return smallest_loss_shares(torch.stack([losses for losses, _ in found]), found[0][1])


def smallest_loss_shares(losses: Tensor, num_samples: Tensor | None = None) -> Tensor:
    """``u_s``: the share of samples of which model s has the smallest loss; equal ones share a sample.

    Args:
        losses: of every model on every sample, shape [S, n].
        num_samples: samples behind each loss, shape [n]; one each unless given.

    Returns:
        float64, shape [S], sums to 1.
    """
    smallest = (losses == losses.amin(0)).double()
    each = torch.ones(losses.shape[1], dtype=torch.float64) if num_samples is None else num_samples.double()
    return (smallest / smallest.sum(0) * each).sum(1) / each.sum()
