"""KMeans: clients train alone at first, are clustered once by what they have learned, and train on in their clusters.

Ghosh, Hong, Yin, Ramchandran, "Robust Federated Learning in a Heterogeneous Environment", 2019
(https://arxiv.org/abs/1906.06629), its three steps.

=====================  ==================================================  ======
paper                  here                                                shape
=====================  ==================================================  ======
first step, ERM        ``warm_up_rounds`` rounds alone
C, clusters            ``num_clusters``
second step            :mod:`lightning_fl.functional.kmeans` on what the   [N, P]
                       clients' weights have become
third step             the strategy's average in each cluster
clusters               ``assignment``                                      [N]
=====================  ==================================================  ======

Differs from the paper: clients train alone for some rounds, not until their own risk is least, and all from one start;
clusters start from the average of their clients, by samples, where the paper says nothing of the start. The average
in a cluster is the strategy's, not one that is robust to Byzantine clients. The paper knows no clients that come later:
who has not yet trained when clusters are formed trains alone for as many turns as the others did, and then joins the
cluster whose centre is nearest to its own way from its start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.collaboration import Collaboration
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.engine.weights.weighted_sum import mixture
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.hcct import gram_matrix
from lightning_fl.functional.kmeans import kmeans_from_gram
from lightning_fl.seeding import derive_seed
from lightning_fl.surface import TrainerSurface

__all__ = ["KMeans"]

#: Columns of all clients that are subtracted at a time.
_COLUMNS = 1 << 16


class KMeans(Callback):
    """Every client trains alone, then k-means puts clients with similar weights together for the rest of the run.

    Works with any strategy, with sampled clients, with ``PersonalLayers`` (left out of the comparison) and
    ``ClientArrivals``. While clients train alone there are as many models in memory as clients.

    Args:
        num_clusters: K, at most the number of clients. Fewer clusters are formed where fewer clients differ.
        warm_up_rounds: rounds, at least 1, that clients train alone. Clusters are formed after them, or as soon as
            ``num_clusters`` clients have trained.
        num_restarts: starts of k-means, of which the best counts.

    Attributes:
        assignment: cluster of every client, labels 0..K-1 in order of first appearance; after these, every client
            that still trains alone has a label of its own.
        clustering_round: the round after which clusters were formed, counted from 1; ``None`` before.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, there are more clusters than clients.
    """

    role = "collaboration"

    def __init__(self, *, num_clusters: int, warm_up_rounds: int = 1, num_restarts: int = 10) -> None:
        for name, value in (
            ("num_clusters", num_clusters),
            ("warm_up_rounds", warm_up_rounds),
            ("num_restarts", num_restarts),
        ):
            if value < 1:
                raise ConfigurationError(f"KMeans.{name}={value}: give a number of at least 1.")
        self.num_clusters = num_clusters
        self.warm_up_rounds = warm_up_rounds
        self.num_restarts = num_restarts
        self._reset()

    def _reset(self) -> None:
        self.assignment: list[int] = []
        self.clustering_round: int | None = None
        #: Of clients that train alone: turns so far, and what the first one started from.
        self._turns: dict[int, int] = {}
        self._starts: dict[int, Weights] = {}
        #: Mean way of each cluster's clients from their start [K, P]; kept while somebody has still to join.
        self._centres: Tensor | None = None

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Everybody alone."""
        self._reset()
        count = trainer.num_clients
        if self.num_clusters > count:
            raise ConfigurationError(
                f"KMeans.num_clusters={self.num_clusters} for {count} clients: give at most one cluster a client."
            )
        if self.warm_up_rounds >= trainer.max_rounds:
            rank_zero_warn(
                f"KMeans.warm_up_rounds={self.warm_up_rounds} of max_rounds={trainer.max_rounds}: this run ends before"
                " anything is trained in clusters; give more rounds."
            )
        self.assignment = list(range(count))
        trainer.collaboration = Collaboration.local(count)

    def on_average_end(
        self,
        trainer: TrainerSurface,
        starts: Sequence[Weights],
        shares: Mapping[int, Mapping[int, float]],
    ) -> None:
        """Remember where those who train alone started."""
        for client in sorted(trainer.survivors):
            if self._is_alone(client):
                row = trainer.collaboration.personalisation[client].tolist()
                self._starts.setdefault(client, mixture(row, starts))
                self._turns[client] = self._turns.get(client, 0) + 1

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Form clusters, or let those join who have trained alone for long enough."""
        self._use_own(trainer)
        done = trainer.current_round + 1
        if self.clustering_round is None:
            if done >= self.warm_up_rounds and len(self._turns) >= self.num_clusters:
                self._form(trainer)
        else:
            ready = [client for client, turns in sorted(self._turns.items()) if turns >= self.warm_up_rounds]
            if ready:
                self._join(trainer, ready)

    def _is_alone(self, client: int) -> bool:
        return self.clustering_round is None or client in self._waiting

    @property
    def _waiting(self) -> set[int]:
        """Clients outside the clusters that were formed."""
        clusters = 0 if self._centres is None else len(self._centres)
        return {client for client, label in enumerate(self.assignment) if clusters and label >= clusters}

    def _use_own(self, trainer: TrainerSurface) -> None:
        """Who arrived with a mixture of others' models, and has trained it alone, goes on with its own."""
        own = [client for client in sorted(trainer.survivors & self._turns.keys()) if self._is_mixed(trainer, client)]
        if own:
            personalisation = trainer.collaboration.personalisation.clone()
            personalisation[own] = 0.0
            personalisation[own, [self.assignment[client] for client in own]] = 1.0
            trainer.collaboration = Collaboration(trainer.collaboration.aggregation, personalisation)

    def _is_mixed(self, trainer: TrainerSurface, client: int) -> bool:
        return trainer.collaboration.model_of(client) != self.assignment[client]

    def _form(self, trainer: TrainerSurface) -> None:
        """K-means, once."""
        clients = sorted(self._turns)
        trainer.communication.send(clients)
        found = self._as_rank_zero(
            trainer,
            lambda: kmeans_from_gram(
                gram_matrix(self._ways(trainer, clients)),
                self.num_clusters,
                derive_seed(trainer.seed, "k-means"),
                self.num_restarts,
            ),
        )
        self.clustering_round = trainer.current_round + 1
        if len(clients) < trainer.num_clients:
            member = torch.nn.functional.one_hot(torch.tensor(found)).double().T.to(trainer.fabric.device)
            member /= member.sum(1, keepdim=True)
            self._centres = torch.cat(
                [(member @ block.double()).to(block.dtype) for block in self._ways(trainer, clients)], dim=1
            )
        labels = dict(zip(clients, found, strict=True))
        self._regroup(trainer, labels, max(found) + 1, joining=[])
        trainer.log("kmeans/clusters", float(max(found) + 1))

    def _join(self, trainer: TrainerSurface, clients: Sequence[int]) -> None:
        """Put clients where the centre is nearest to their way from their start."""
        assert self._centres is not None
        trainer.communication.send(clients)
        ways = torch.cat(list(self._ways(trainer, clients)), dim=1).double()
        centres = self._centres.to(ways)
        nearest = self._as_rank_zero(trainer, lambda: [int((centres - way).square().sum(1).argmin()) for way in ways])
        waiting = self._waiting
        labels = {client: label for client, label in enumerate(self.assignment) if client not in waiting}
        labels |= dict(zip(clients, nearest, strict=True))
        self._regroup(trainer, labels, len(centres), joining=clients)

    @staticmethod
    def _as_rank_zero(trainer: TrainerSurface, compute: Callable[[], list[int]]) -> list[int]:
        """One decision for all ranks, whatever their hardware makes of the last bits."""
        return trainer.strategy.exchange({trainer.fabric.global_rank: compute()})[0]

    def _regroup(
        self, trainer: TrainerSurface, labels: dict[int, int], num_clusters: int, joining: Sequence[int]
    ) -> None:
        """Make clusters those of the run; who is in none stays alone. Who joins changes nothing in its cluster."""
        others = [client for client in range(trainer.num_clients) if client not in labels]
        labels |= {client: num_clusters + place for place, client in enumerate(others)}
        self.assignment = [labels[client] for client in range(trainer.num_clients)]
        counted = [0 if client in joining else count for client, count in enumerate(trainer.num_samples)]
        trainer.federation.regroup(Collaboration.coalitions(self.assignment, counted))
        trainer.collaboration = Collaboration.coalitions(self.assignment, trainer.num_samples)
        for client in labels.keys() - set(others):
            self._turns.pop(client, None)
            self._starts.pop(client, None)
        if not others:
            self._centres = None
        assert trainer.datamodule is not None
        names = trainer.datamodule.client_names()
        clusters = [[names[i] for i, own in enumerate(self.assignment) if own == k] for k in range(num_clusters)]
        rank_zero_info("KMeans: " + "; ".join(f"cluster {k}: {', '.join(c)}" for k, c in enumerate(clusters)))

    def _ways(self, trainer: TrainerSurface, clients: Sequence[int]) -> Iterator[Tensor]:
        """How far clients that train alone have come from their start, [n, c] at a time."""
        models = [trainer.models[self.assignment[client]] for client in clients]
        for span in trainer.loop.averaged_spans():
            for begin in range(span.begin, span.end, _COLUMNS):
                part = slice(begin, min(begin + _COLUMNS, span.end))
                yield torch.stack(
                    [
                        model.vectors[span.dtype][part]
                        - self._starts[client].vectors[span.dtype][part].to(trainer.fabric.device)
                        for client, model in zip(clients, models, strict=True)
                    ]
                )

    def state_dict(self) -> dict[str, Any]:
        """Clusters, and what those who train alone will be placed by."""
        starts = list({id(start): start for start in self._starts.values()}.values())
        return {
            "assignment": self.assignment,
            "clustering_round": self.clustering_round,
            "turns": dict(self._turns),
            "starts": [start.state_dict() for start in starts],
            "start_of": {c: next(i for i, one in enumerate(starts) if one is s) for c, s in self._starts.items()},
            "centres": None if self._centres is None else self._centres.cpu(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        self.assignment, self.clustering_round = list(state["assignment"]), state["clustering_round"]
        self._turns = dict(state["turns"])
        starts = [Weights.from_state_dict(start, torch.device("cpu")) for start in state["starts"]]
        self._starts = {client: starts[place] for client, place in state["start_of"].items()}
        self._centres = state["centres"]
