"""CFL: a cluster of clients is split in two when its model stops moving while its clients still would.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints", IEEE Transactions on Neural Networks and Learning Systems 2021 (https://arxiv.org/abs/1910.01991):
clustered federated learning, with its bipartition (:mod:`lightning_fl.functional.cfl`) and tree for new clients.

Differs from the paper: ε1 and ε2 may be relative to the clients' norms, and then need no tuning to model and learning
rate. In the round of a split clients are already averaged with their own side. Clients absent in that round, or new
after a split, belong to no cluster until they take part and join as in :class:`ClientClusters`. The paper keeps the
updates and models of all splits, and a new client descends the tree by the more similar update.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Lt

from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.core.validation import NonNegative, Positive, Size, checked_fields
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.cfl import split_cluster
from lightning_fl.runtime.surface import TrainerSurface


class ClusterSplit(NamedTuple):
    """A split of a cluster in two. Clusters are numbered in order of creation; 0 is all clients."""

    round: int  #: counted from 1
    cluster: int  #: the one that was split
    sides: tuple[int, int]  #: the two new clusters
    cross_similarity: float  #: largest cosine similarity of two clients' updates on different sides


@checked_fields
class CFL(ClientClusters):
    """Splits clusters of clients by the cosine similarity of their updates, starting with all clients in one.

    A cluster is split when its mean update is short and some client's is not: its clients then pull in different
    directions. For the rest see :class:`ClientClusters`.

    Args:
        mean_norm: epsilon 1: upper bound of the norm of the cluster's mean update, clients weighted by their samples.
        client_norm: epsilon 2: lower bound of the largest norm of an update of its clients.
        norms: unit of the two. "relative": ``mean_norm`` relative to the largest norm of the cluster's clients in the
            same round, ``client_norm`` relative to the largest norm of all clients in the first round. "absolute":
            norms of updates, as in the paper.
        gamma_max: lower bound of ``sqrt((1 - c) / 2)``, with c the largest similarity across the sides: 0 splits all
            that differ, 0.71 those that are opposed.
        warm_up_rounds: rounds before the first split.

    Attributes:
        clusters: cluster of every client, as numbered in ``splits``; -1 for none, length N.
        splits: every split so far.
    """

    saved = (*ClientClusters.saved, "_first_norm")

    mean_norm: Positive = 0.25
    client_norm: NonNegative = 0.1
    norms: Literal["relative", "absolute"] = "relative"
    gamma_max: Annotated[float, Ge(0), Lt(1)] = 0.0
    warm_up_rounds: Size = 0

    def reset(self, num_clients: int) -> None:
        super().reset(num_clients)
        self.clusters = [0] * num_clients
        self.splits: list[ClusterSplit] = []
        self._first_norm: float | None = None

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> dict[int, int] | None:
        """Split clusters that stand still; absent clients of a split cluster belong to none."""
        gram = self.gram(trainer, weights, clients)
        if self._first_norm is None:
            self._first_norm = math.sqrt(float(gram.diagonal().max()))
        if trainer.federation.current_round < self.warm_up_rounds:
            return None
        moves: dict[int, int] = {}
        for cluster in sorted({self.clusters[client] for client in clients} - {-1}):
            rows = [row for row, client in enumerate(clients) if self.clusters[client] == cluster]
            samples = [trainer.federation.num_samples[clients[row]] for row in rows]
            own, unit, first = gram[rows][:, rows], 1.0, 1.0
            if self.norms == "relative":
                unit, first = math.sqrt(float(own.diagonal().max())), self._first_norm
            eps1, eps2 = self.mean_norm * unit, self.client_norm * first
            found = split_cluster(own, samples, eps1=eps1, eps2=eps2, gamma_max=self.gamma_max)
            if found is not None:
                sides = 2 * len(self.splits) + 1, 2 * len(self.splits) + 2
                turn = trainer.federation.current_round + 1
                self.splits.append(ClusterSplit(turn, cluster, sides, found.cross_similarity))
                moves |= {client: -1 for client, other in enumerate(self.clusters) if other == cluster}
                moves |= {clients[row]: sides[side] for row, side in zip(rows, found.labels, strict=True)}
        return moves or None

    def state_dict(self) -> dict[str, Any]:
        splits = [[one.round, one.cluster, *one.sides, one.cross_similarity] for one in self.splits]
        return {**super().state_dict(), "splits": splits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.splits = [ClusterSplit(turn, cluster, (a, b), cosine) for turn, cluster, a, b, cosine in state["splits"]]
