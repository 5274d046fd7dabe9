"""Soft averaging: several models, each a mean over clients weighted by the share of data that it fits best.

FedSoft: Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022,
https://arxiv.org/abs/2112.06053.

A client trains once from its mixture ``sum_s u_ks c_s``, and its weights count ``u_ks n_k`` in model s. The paper's
proximal term ``lambda/2 sum_s u_ks |w - c_s|^2`` is ``lambda/2 |w - sum_s u_ks c_s|^2`` and a constant, u summing to 1:
FedProx's; the strategy adds it, FedAvg does not (lambda = 0).

Differs from the paper, which :class:`~lightning_fl.callbacks.FedSoft` follows: all clients of a round contribute to all
models by their importance, instead of being drawn for each cluster; they start from their mixture instead of their last
models; u has no lower bound. All models start from the module's weights instead of different ones, which averaging
could not overcome: in the first ``initial_rounds`` each model is the mean of a random group of clients.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.client_clusters import check_at_most_clients
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator, shuffled
from lightning_fl.core.validation import Count, checked_fields, warn_beyond_end
from lightning_fl.data.module import Split
from lightning_fl.engine.probes.on_hosts import check_samples
from lightning_fl.engine.turn.gradients import HeldOutLoss
from lightning_fl.engine.turn.services import refuse_manual_steps
from lightning_fl.runtime.surface import TrainerSurface


class PersonalMixtures(Callback):
    """Base of callbacks with K shared models that set P of the collaboration before evaluations and at the end.

    Validation samples may have another distribution than training samples, which a client's model should fit.
    """

    #: Samples for the choice of models to train, and of models to use; clients without any of these use the former.
    split: Split
    personal_split: Split | None  # None: the same
    #: Rounds done when P was last set.
    personal_round = 0

    def weigh(self, trainer: TrainerSurface, split: Split) -> Tensor:
        """The clients' rows of P on a split, float64 [N, K]; NaN for absent clients and those without samples."""
        raise NotImplementedError

    def set_mixtures_where_evaluated(self, trainer: TrainerSurface, by_split: Tensor) -> None:
        """Set P in ``on_aggregate_end`` before an evaluation or the end, given ``weigh(trainer, split)``."""
        done = trainer.federation.current_round + 1
        if done == trainer.max_rounds or trainer.evaluates_after(done):
            self.set_mixtures(trainer, by_split, done)

    def set_mixtures(self, trainer: TrainerSurface, by_split: Tensor, done: int) -> None:
        mixtures = by_split
        if self.personal_split is not None and self.personal_split != self.split:
            own = self.weigh(trainer, self.personal_split)
            mixtures = torch.where(own.isnan(), by_split, own)
        old = trainer.federation.collaboration
        mixtures = torch.where(mixtures.isnan(), old.personalisation, mixtures)
        trainer.federation.collaboration = Collaboration(old.aggregation, mixtures)
        self.personal_round = done


@checked_fields
class SoftAveraging(PersonalMixtures):
    """Shared models that every client uses and contributes to, weighted by the share of its data that each fits best.

    Works with any strategy, sampled clients, ``PersonalLayers`` and ``ClientArrivals``; newcomers use all models until
    their importance weights are estimated. A model that no client uses is the mean over all clients by samples.

    Args:
        num_models: S, at most the number of clients.
        every_n_rounds: rounds between two estimates of the importance weights.
        initial_rounds: rounds before the first estimate, with fixed random groups of clients.
        num_samples: number of samples per client, drawn for every estimate, each a batch for ``training_step`` of every
            model; ``None`` for all. From a ``DataLoader``, its first batches with as many samples, each as a whole.
        split: samples on which models are compared.
        personal_split: samples that determine a client's mixture in evaluations; default ``split``. Use "val" if
            validation samples follow the distribution that matters.

    Attributes (one list entry per estimate):
        rounds: rounds done.
        importance: u, float64 [N, S], rows sum to 1.

    Raises:
        ConfigurationError: at the start of a run, more models than clients or more initial rounds than rounds, manual
            optimisation, or a client without samples in the split.
        TrainingError: the loss of a sample is not finite.
    """

    method_name = "soft averaging"
    role = "collaboration"
    traits = ("soft_assignment", "mixed_starts")
    saved: ClassVar[tuple[str, ...]] = ("rounds", "importance", "personal_round")
    #: Prefix of logged curves.
    _curve = "soft_averaging"

    num_models: Count
    every_n_rounds: Count = 1
    initial_rounds: Count = 1
    num_samples: Count | None = 256
    split: Literal["train", "val"] = "train"
    personal_split: Literal["train", "val"] | None = None

    def __post_init__(self) -> None:
        self.personal_split = self.personal_split or self.split
        self.rounds: list[int] = []
        self.importance: list[Tensor] = []
        self.personal_round = 0

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Assign clients to random groups."""
        self.__post_init__()
        count, most, name = trainer.num_clients, trainer.max_rounds, type(self).__name__
        warn_beyond_end(self, most, every_n_rounds=self.every_n_rounds, initial_rounds=self.initial_rounds)
        check_at_most_clients(self, count, num_models=self.num_models)
        if self.initial_rounds > most:
            option = f"{name}.initial_rounds={self.initial_rounds}"
            raise ConfigurationError(f"{option}: must be at most trainer.max_rounds={most}.")
        refuse_manual_steps(trainer.loop.module, name)
        check_samples(trainer.loop, f"{name}.split", self.split)
        check_samples(trainer.loop, f"{name}.personal_split", self.personal_split or self.split)
        order = shuffled(range(count), generator(trainer.seed, "first parts"))
        labels = (torch.tensor(order).argsort() % self.num_models).tolist()  # dealt in this order
        trainer.federation.collaboration = Collaboration.coalitions(labels, trainer.federation.num_samples)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Train from the mixtures by importance, also if clients were evaluated with others."""
        if self.importance and self.personal_split != self.split:
            aggregation = trainer.federation.collaboration.aggregation
            trainer.federation.collaboration = Collaboration(aggregation, self.importance[-1])

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        since = trainer.federation.current_round + 1 - self.initial_rounds
        if since >= 0 and since % self.every_n_rounds == 0:
            trainer.federation.communication.receive(trainer.active_clients, trainer.federation.models)
            importance = self.weigh(trainer, self.split)
            importance = torch.where(importance.isnan(), 1 / self.num_models, importance)  # away or at rest
            trainer.federation.collaboration = self._collaboration(importance, trainer.federation.num_samples)
            self.rounds.append(trainer.federation.current_round + 1)
            self.importance.append(importance)
            for model, mean in enumerate(importance[trainer.active_clients].mean(0).tolist()):
                trainer.log(f"{self._curve}/{model}/importance", mean)
        if self.importance:
            self.set_mixtures_where_evaluated(trainer, self.importance[-1])

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Set the mixtures of a run that ended early."""
        if self.importance and trainer.federation.current_round != self.personal_round:
            self.set_mixtures(trainer, self.importance[-1], trainer.federation.current_round)

    def _collaboration(self, importance: Tensor, num_samples: Sequence[int]) -> Collaboration:
        """Collaboration for importance weights [N, S]: ``A_sk`` proportional to ``u_ks n_k``."""
        return Collaboration.from_shares(importance, num_samples)

    def weigh(self, trainer: TrainerSurface, split: Split) -> Tensor:
        loss = HeldOutLoss(trainer.loop, split, self.num_samples, f"soft averaging by {split}")

        def shares_of(client: int) -> Tensor:
            losses = [loss.of_samples(client, model) for model in trainer.federation.models]
            return smallest_loss_shares(torch.stack([of_model for of_model, _ in losses]), losses[0][1])

        shares = trainer.on_hosts(trainer.active_clients, shares_of, f"{type(self).__name__} cannot compare the models")
        found = torch.full((trainer.num_clients, self.num_models), float("nan"), dtype=torch.float64)
        for client, row in shares.items():
            found[client] = row
        return found


def smallest_loss_shares(losses: Tensor, num_samples: Tensor | None = None) -> Tensor:
    """Share of samples for which model s has the smallest of losses [S, n], float64 [S]; ties share a sample.

    ``num_samples`` [n] are weights of the losses, 1 by default.
    """
    smallest = (losses == losses.amin(0)).double()
    each = torch.ones(losses.shape[1], dtype=torch.float64) if num_samples is None else num_samples.double()
    return (smallest / smallest.sum(0) * each).sum(1) / each.sum()
