"""IFCA: several models; in every round each client trains the one with its least training loss.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
https://arxiv.org/abs/2006.04088, algorithm 1, option II (model averaging).

Differs from the paper: a model is the average of its clients weighted by samples, which are equally many in the paper.
Layers shared by all models (section 6.2) are not implemented. Clients are evaluated with the model that then has the
least loss on their training data. As in the paper, results depend on the first models: try several seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.nn.utils.parametrize import is_parametrized

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator, seed_default_generators
from lightning_fl.core.validation import Count, Positive, checked_fields
from lightning_fl.engine.turn.gradients import HeldOutLoss
from lightning_fl.engine.turn.services import refuse_manual_steps
from lightning_fl.engine.weights.flat import FlatModule, Span, Weights, copy_spans_
from lightning_fl.functional.ifca import perturbed
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class IFCA(ClientClusters):
    """A fixed number of clusters with a model each; participants choose their cluster again in every round.

    A client trains the model with the least loss on its training data, of equal ones the first. A model that no client
    trains stays; clients that have not chosen yet use the first. Works with any strategy, with sampled clients,
    ``PersonalLayers`` (a client compares models with its own layers) and ``ClientArrivals``. With
    ``optimizer_state="keep"`` a client has one optimiser for all models.

    Args:
        num_clusters: K, at most the number of clients.
        num_samples: training samples of each client on which models are compared, redrawn in every round; ``None``
            for all. From a ``DataLoader`` the first batches with that many samples are taken.
        initial_noise: ``None`` draws the parameters of all models but the first by ``reset_parameters`` of the layers
            (or of the module, if it defines that). A number adds normal noise to the module's parameters, relative to
            the root mean square of each: for a pretrained network. Frozen and personal parameters stay equal.

    Attributes:
        clusters: the model that each client trained when it last took part, -1 for none yet, length N;
            ``assignments`` has those of every round.
        losses: each client's loss under every model when it last took part, float64 [N, K]; NaN for none yet.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, there are more models than clients, the
            module optimises manually, or its models would start equal; in a round, the callback that selects clients
            assigns models to them.
        TrainingError: a loss is not finite.
    """

    saved = (*ClientClusters.saved, "losses")
    #: Models that a client uses and contributes to: those with the least losses.
    num_best = 1
    #: Clusters are chosen before the turns, so that no weights are kept.
    select_collaboration = Callback.select_collaboration

    num_clusters: Count
    num_samples: Count | None = None
    initial_noise: Positive | None = None

    def reset(self, num_clients: int) -> None:
        super().reset(num_clients)
        self.losses: Tensor = torch.full((num_clients, self.num_clusters), torch.nan, dtype=torch.float64)
        #: Client -> losses of the current models, which are compared once for an evaluation and the next round.
        self._found: dict[int, list[float]] = {}

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        super().on_fit_start(trainer)
        refuse_manual_steps(trainer.loop.module, type(self).__name__)
        first = one_hot(torch.zeros(trainer.num_clients, dtype=torch.long), self.num_clusters).double()
        trainer.federation.collaboration = Collaboration.from_shares(first, trainer.federation.num_samples)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Make different first models, once all callbacks have set their personal layers."""
        if trainer.federation.current_round == 0:
            trainer.federation.models = self._initial_models(trainer)

    def assign_models(self, trainer: TrainerSurface, cohort: Cohort) -> Cohort:
        """Participants receive all models and train the one with the least loss."""
        cohort.refuse_models(type(self).__name__)
        clients = cohort.clients
        trainer.federation.communication.receive(clients, trainer.federation.models)
        chosen = self._choose(trainer, clients, trainer.federation.current_round)
        for client, models in chosen.items():
            self.clusters[client] = models[0]
            self.losses[client] = torch.tensor(self._found[client], dtype=torch.float64)
        # other clients use what they chose when they last took part, not what an evaluation has chosen since
        _, shares = self._best_of(self.losses)
        shares[self.losses.isnan().any(1)] = one_hot(torch.tensor(0), self.num_clusters).double()
        trainer.federation.collaboration = Collaboration.from_shares(shares, trainer.federation.num_samples)
        loss = math.fsum(min(self._found[client]) for client in clients) / len(clients)
        trainer.log(f"{type(self).__name__.lower()}/loss", loss)
        beta = Collaboration.fedavg(trainer.federation.num_samples).aggregation[0].tolist()
        parts = []
        for one in cohort.participants:
            models, weight = chosen[one.client], beta[one.client] if one.weight is None else one.weight
            part: dict[str, Any] = {"model": models[0]} if len(models) == 1 else {"feeds": tuple(models)}
            parts.append(replace(one, **part, weight=weight))
        return Cohort(tuple(parts))

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Before an evaluation, let each client use its best current model."""
        super().on_aggregate_end(trainer)
        self._found = {}
        done = trainer.federation.current_round + 1
        if done == trainer.max_rounds or trainer.evaluates_after(done):
            self._choose(trainer, trainer.present_clients, done)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if trainer.federation.current_round:
            self._choose(trainer, trainer.present_clients, trainer.federation.current_round)

    def _choose(self, trainer: TrainerSurface, clients: Sequence[int], drawn_in: int) -> dict[int, list[int]]:
        """Client -> its best models, the best first; it uses their average from now on."""
        loss = HeldOutLoss(trainer.loop, "train", self.num_samples, "IFCA", drawn_in)
        self._found |= trainer.on_hosts(
            [client for client in clients if client not in self._found],
            lambda client: [loss.value(client, model) for model in trainer.federation.models],
            f"{type(self).__name__} cannot compare the models",
        )
        losses = torch.tensor([self._found[client] for client in clients], dtype=torch.float64)
        best, shares = self._best_of(losses)
        personalisation = trainer.federation.collaboration.personalisation.clone()
        personalisation[list(clients)] = shares
        trainer.federation.collaboration = Collaboration.from_shares(personalisation, trainer.federation.num_samples)
        return dict(zip(clients, best.tolist(), strict=True))

    def _best_of(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """For losses [n, K] the best models, of equal ones the first, and the shares of the models in their average."""
        best = losses.argsort(dim=1, stable=True)[:, : self.num_best]
        return best, one_hot(best, self.num_clusters).double().mean(dim=1)

    def _initial_models(self, trainer: TrainerSurface) -> list[Weights]:
        own, name = trainer.federation.models[0], type(self).__name__
        flat = trainer.loop.flat
        spans = trainer.loop.averaged_spans()
        models = [own]
        # A parametrised layer's weight is computed anew at each access, so that what reset_parameters draws is lost.
        computed = any(hasattr(part, "reset_parameters") and is_parametrized(part) for part in flat.module.modules())
        for model in range(1, self.num_clusters):
            path = ("first models", model)
            if self.initial_noise is None:
                models.append(_reinitialised(flat, own, spans, trainer.seed, *path))
            else:
                models.append(own.clone())
                draws = generator(trainer.seed, *path)
                for span in spans:
                    models[-1].part(span).copy_(perturbed(own.part(span), self.initial_noise, draws))
            if any(models[-1].equal(one) for one in models[:-1]) or (computed and self.initial_noise is None):
                advice = "leave it out, as all its parameters are zero"
                if self.initial_noise is None:
                    advice = "set it" if computed else "set it, or define a reset_parameters that draws"
                what = f"{name}.initial_noise: models of {type(trainer.module).__name__} would start with equal weights"
                raise ConfigurationError(f"{what}; {advice}.")
        return models


def _reinitialised(flat: FlatModule, start: Weights, spans: Sequence[Span], seed: int, *path: int | str) -> Weights:
    """Weights drawn again by ``reset_parameters``, inner modules first; those of modules without it stay."""
    flat.load(start)
    seed_default_generators(seed, *path)
    with torch.no_grad():
        for submodule in reversed(list(flat.module.modules())):
            # Attention layers have a private one.
            reset = getattr(submodule, "reset_parameters", None) or getattr(submodule, "_reset_parameters", None)
            if callable(reset):
                reset()
    return copy_spans_(start.clone(), flat.collect(), spans)
