"""CFL (FedCluster): one model for all, split in two wherever it stands still while its clients would still move.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints", IEEE Transactions on Neural Networks and Learning Systems 2021 (https://arxiv.org/abs/1910.01991):
clustered federated learning with its optimal bipartition and its tree for new clients.

=====================  ==================================================  ======
paper                  here                                                shape
=====================  ==================================================  ======
ΔW_i                   a client's update, weights after minus weights      [P]
                       before its turn
|D_i|                  ``trainer.num_samples``                             [N]
ε1, ε2, γ_max          ``mean_norm``, ``client_norm``, ``gamma_max``
α, the bipartition     :mod:`lightning_fl.functional.cfl`
clusters               ``assignments``, ``splits``                         [N]
=====================  ==================================================  ======

Differs from the paper: ε1 and ε2 may be relative to the clients' norms, and then need no tuning by model and learning
rate. In the round of a split clients are averaged with their own side already. Who took no part in that round, or
arrives after a split, belongs to no cluster until it next takes part: it starts from the average of the clusters and
joins the one whose mean update of that round is most similar to its own, or waits if it opposes all of them
(:class:`ClientClusters`). The paper keeps the updates and models of all splits and has a new client descend the tree by
the most similar update of either side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.cfl import Bipartition, split_cluster
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CFL", "ClusterSplit"]


@dataclass(frozen=True)
class ClusterSplit:
    """A cluster that became two. Clusters are numbered as they arise; 0 is all clients."""

    round: int
    """The round, counted from 1."""
    cluster: int
    """What was split."""
    sides: tuple[int, int]
    """What it became."""
    cross_similarity: float
    """Largest cosine similarity of two clients' updates on different sides."""


class CFL(ClientClusters):
    """Splits clusters of clients by the cosine similarity of their updates, starting with all clients in one.

    A cluster is split when its mean update is short and that of some client is not: its clients then pull in different
    directions, and training on together would help nobody. For the rest see :class:`ClientClusters`.

    Args:
        mean_norm: epsilon 1 > 0: a cluster is split only in a round in which the norm of its mean update, clients
            weighted by their samples, is below it.
        client_norm: epsilon 2 >= 0: and only if the largest norm of an update of its clients is above it.
        norms: what the two are measured in. "relative": ``mean_norm`` as a share of the largest norm of the cluster's
            clients in the same round, ``client_norm`` as a share of the largest norm of all clients in the first
            round. "absolute": as norms of updates, as in the paper.
        gamma_max: from 0 to 1; a split is made only if ``sqrt((1 - c) / 2)`` is above it, with c the largest
            similarity across the sides. 0 splits whatever is not the same, 0.71 what is opposed.
        warm_up_rounds: rounds before the first split.

    Attributes:
        clusters: number of every client's cluster, as ``splits`` number them; -1 for none, length N.
        splits: every split so far.
    """

    def __init__(
        self,
        *,
        mean_norm: float = 0.25,
        client_norm: float = 0.1,
        norms: Literal["relative", "absolute"] = "relative",
        gamma_max: float = 0.0,
        warm_up_rounds: int = 0,
    ) -> None:
        if norms not in ("relative", "absolute"):
            raise ConfigurationError(f"CFL.norms={norms!r}: choose relative or absolute.")
        check_numbers(self, mean_norm=mean_norm, above=0, mend=", such as 0.25 of the largest client's (relative)")
        check_numbers(self, client_norm=client_norm, at_least=0, mend=", such as 0.1 of the first round's (relative)")
        check_numbers(self, gamma_max=gamma_max, at_least=0, below=1)
        check_counts(self, warm_up_rounds=warm_up_rounds, at_least=0)
        self.mean_norm = mean_norm
        self.client_norm = client_norm
        self.norms = norms
        self.gamma_max = gamma_max
        self.warm_up_rounds = warm_up_rounds
        super().__init__()

    def reset(self, num_clients: int) -> None:
        """Everybody is together."""
        super().reset(num_clients)
        self.clusters = [0] * num_clients
        self.splits: list[ClusterSplit] = []
        self._first_norm: float | None = None

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> dict[int, int] | None:
        """Split what stands still; of a cluster that is split, who took no part belongs to none."""
        gram = self.gram(trainer, weights, clients)
        if self._first_norm is None:
            self._first_norm = math.sqrt(float(gram.diagonal().max()))
        if trainer.federation.current_round < self.warm_up_rounds:
            return None
        moves: dict[int, int] = {}
        for cluster in sorted({self.clusters[client] for client in clients} - {-1}):
            rows = [row for row, client in enumerate(clients) if self.clusters[client] == cluster]
            samples = [trainer.federation.num_samples[clients[row]] for row in rows]
            found = self._split(gram[rows][:, rows], samples)
            if found is not None:
                sides = 2 * len(self.splits) + 1, 2 * len(self.splits) + 2
                self.splits.append(
                    ClusterSplit(trainer.federation.current_round + 1, cluster, sides, found.cross_similarity)
                )
                moves |= {client: -1 for client, own in enumerate(self.clusters) if own == cluster}
                moves |= {clients[row]: sides[side] for row, side in zip(rows, found.labels, strict=True)}
        return moves or None

    def _split(self, gram: Tensor, samples: Sequence[int]) -> Bipartition | None:
        """The two sides of a cluster's clients, if it is split."""
        unit, first = 1.0, 1.0
        if self.norms == "relative":
            assert self._first_norm is not None
            unit, first = math.sqrt(float(gram.diagonal().max())), self._first_norm
        return split_cluster(
            gram, samples, eps1=self.mean_norm * unit, eps2=self.client_norm * first, gamma_max=self.gamma_max
        )

    def state_dict(self) -> dict[str, Any]:
        """The history of the clusters."""
        splits = [[one.round, one.cluster, *one.sides, one.cross_similarity] for one in self.splits]
        return {**super().state_dict(), "splits": splits, "first_norm": self._first_norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        super().load_state_dict(state)
        self.splits = [
            ClusterSplit(done, cluster, (first, second), similarity)
            for done, cluster, first, second, similarity in state["splits"]
        ]
        self._first_norm = state["first_norm"]
