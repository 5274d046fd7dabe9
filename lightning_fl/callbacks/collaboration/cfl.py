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
rate. In the round of a split clients are averaged with their own side already. Who took no part in that round, and who
arrives later, is placed as the paper places new clients: it waits at the model that was split (a newcomer trains once
from what it arrived with), is placed by its next update, which enters no average, and again if that side was split
too. It goes to the side whose mean update is more similar to its own; the paper keeps all updates of a split and goes
by the most similar one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.collaboration import Collaboration
from lightning_fl.engine.probes.updates import update_blocks
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.cfl import cosine_similarities, split_cluster
from lightning_fl.functional.hcct import gram_matrix
from lightning_fl.surface import TrainerSurface

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


@dataclass
class _Junction:
    """A split that some clients have still to pass."""

    model: Weights
    """What was split: the cluster's model at the start of that round."""
    directions: Tensor
    """Mean update of either side, [2, P]."""


class CFL(Callback):
    """Splits clusters of clients by the cosine similarity of their updates, starting with all clients in one.

    A cluster is split when its mean update is short and that of some client is not: its clients then pull in different
    directions, and training on together would help nobody. Works with any strategy, with sampled clients, with
    ``PersonalLayers`` (left out of the comparison) and ``ClientArrivals``. Keeps the weights of all clients of a round
    until it is known who is split from whom.

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
        rounds: rounds done when each entry of ``assignments`` was made.
        assignments: cluster of every client, labels 0..K-1; who has still to be placed is in one of its own.
        splits: every split so far.

    Raises:
        ConfigurationError: a value is out of range.
    """

    role = "collaboration"

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
        if not 0 < mean_norm < math.inf:
            raise ConfigurationError(
                f"CFL.mean_norm={mean_norm}: give a number above 0, such as 0.25 of the largest client's (relative)."
            )
        if not 0 <= client_norm < math.inf:
            raise ConfigurationError(
                f"CFL.client_norm={client_norm}: give a number of at least 0, such as 0.1 of the first round's"
                " (relative)."
            )
        if not 0 <= gamma_max < 1:
            raise ConfigurationError(f"CFL.gamma_max={gamma_max}: give a number of at least 0 and below 1.")
        if warm_up_rounds < 0:
            raise ConfigurationError(f"CFL.warm_up_rounds={warm_up_rounds}: give a number of at least 0.")
        self.mean_norm = mean_norm
        self.client_norm = client_norm
        self.norms = norms
        self.gamma_max = gamma_max
        self.warm_up_rounds = warm_up_rounds
        self._reset()

    def _reset(self) -> None:
        self.rounds: list[int] = []
        self.assignments: list[list[int]] = []
        self.splits: list[ClusterSplit] = []
        #: Number of every client's cluster; of one that was split, where the client has still to be placed.
        self._clusters: list[int] = []
        self._junctions: dict[int, _Junction] = {}
        #: Where those who were placed in this round go when it is averaged.
        self._moves: dict[int, int] = {}
        self._first_norm: float | None = None

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Forget an earlier run; everybody is together."""
        self._reset()
        self._clusters = [0] * trainer.num_clients

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """In a resumed run, have what was split and a model of the run be one again."""
        models = dict(zip(dict.fromkeys(self._clusters), trainer.models, strict=True))
        for cluster, junction in self._junctions.items():
            kept = {dtype: vector.to(trainer.fabric.device) for dtype, vector in junction.model.vectors.items()}
            junction.model = models.get(cluster) or Weights(kept)

    def select_collaboration(self, trainer: TrainerSurface, weights: Mapping[int, Weights]) -> Collaboration | None:
        """Place who waits for it, split what stands still."""
        clients = sorted(trainer.survivors)
        directions = [junction.directions for junction in self._junctions.values()]
        gram = gram_matrix(self._rows(trainer, weights, clients, directions)).cpu()
        if self._first_norm is None:
            self._first_norm = math.sqrt(float(gram.diagonal()[: len(clients)].max()))
        if self._junctions:
            self._place(gram, clients)
        if trainer.current_round < self.warm_up_rounds:
            return None
        known, parts = len(self.splits), {}
        for cluster in sorted({self._clusters[client] for client in clients} - set(self._junctions)):
            members = [row for row, client in enumerate(clients) if self._clusters[client] == cluster]
            found = self._split(trainer, gram[members][:, members], [clients[row] for row in members])
            if found is not None:
                sides = 2 * len(self.splits) + 1, 2 * len(self.splits) + 2
                self.splits.append(ClusterSplit(trainer.current_round + 1, cluster, sides, found[1]))
                parts[cluster] = found[0]
        if not parts:
            return None
        for split in self.splits[known:]:
            self._part(trainer, weights, split, parts[split.cluster])
        return Collaboration.coalitions(self._labels(), trainer.num_samples)

    def _rows(
        self,
        trainer: TrainerSurface,
        weights: Mapping[int, Weights],
        clients: Sequence[int],
        directions: Sequence[Tensor] = (),
    ) -> Iterator[Tensor]:
        """Blocks of columns: the clients' updates, below them the mean updates that a client is placed by."""
        begin = 0
        for block in update_blocks(trainer.loop, weights, clients, trainer.loop.averaged_spans()):
            end = begin + block.shape[1]
            yield torch.cat([block, *(means[:, begin:end].to(block.device) for means in directions)])
            begin = end

    def _place(self, gram: Tensor, clients: Sequence[int]) -> None:
        """Choose the more similar side for every client of the round that waits."""
        similarities = cosine_similarities(gram)
        for place, cluster in enumerate(self._junctions):
            columns = slice(len(clients) + 2 * place, len(clients) + 2 * place + 2)
            for row, client in enumerate(clients):
                if self._clusters[client] == cluster:
                    first, second = similarities[row, columns].tolist()
                    self._moves[client] = self._sides(cluster)[int(second > first)]

    def _split(
        self, trainer: TrainerSurface, gram: Tensor, clients: Sequence[int]
    ) -> tuple[dict[int, int], float] | None:
        """The side of each of a cluster's clients that took part, and how similar the sides are, if it is split."""
        unit, first = 1.0, 1.0
        if self.norms == "relative":
            assert self._first_norm is not None
            unit, first = math.sqrt(float(gram.diagonal().max())), self._first_norm
        found = split_cluster(
            gram,
            [trainer.num_samples[client] for client in clients],
            eps1=self.mean_norm * unit,
            eps2=self.client_norm * first,
            gamma_max=self.gamma_max,
        )
        return None if found is None else (dict(zip(clients, found.labels, strict=True)), found.cross_similarity)

    def _part(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], split: ClusterSplit, sides: dict[int, int]
    ) -> None:
        """Move a cluster's clients to its two sides; who took no part stays where it was split."""
        model = trainer.shared_model(next(iter(sides)))
        for client, side in sides.items():
            self._clusters[client] = split.sides[side]
        if self._needs(split.cluster):
            shares = torch.zeros(2, len(sides), dtype=torch.float64, device=trainer.fabric.device)
            for column, (client, side) in enumerate(sides.items()):
                shares[side, column] = trainer.num_samples[client]
            shares /= shares.sum(1, keepdim=True)
            blocks = self._rows(trainer, weights, list(sides))
            means = torch.cat([(shares @ block.double()).to(block.dtype) for block in blocks], dim=1)
            self._junctions[split.cluster] = _Junction(model, means)

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Move who was placed; models that were split stay as they were."""
        if self._junctions:
            models = dict(zip(dict.fromkeys(self._clusters), trainer.models, strict=True))
            models |= {cluster: junction.model for cluster, junction in self._junctions.items()}
            if self._moves:
                self._clusters = [self._moves.get(client, cluster) for client, cluster in enumerate(self._clusters)]
                trainer.collaboration = Collaboration.coalitions(self._labels(), trainer.num_samples)
                self._junctions = {cluster: kept for cluster, kept in self._junctions.items() if self._needs(cluster)}
                self._moves = {}
            trainer.models = [models[cluster] for cluster in dict.fromkeys(self._clusters)]
        self.rounds.append(trainer.current_round + 1)
        self.assignments.append(self._labels())
        present = {self._clusters[client] for client in trainer.present_clients}
        trainer.log("cfl/clusters", float(len(present - set(self._junctions))))

    def _labels(self) -> list[int]:
        order = {cluster: label for label, cluster in enumerate(dict.fromkeys(self._clusters))}
        return [order[cluster] for cluster in self._clusters]

    def _sides(self, cluster: int) -> tuple[int, int]:
        return next(split.sides for split in self.splits if split.cluster == cluster)

    def _needs(self, cluster: int) -> bool:
        """Whether some client is still at a cluster that was split, or above it."""
        parents = {side: split.cluster for split in self.splits for side in split.sides}
        above = {cluster}
        while cluster in parents:
            cluster = parents[cluster]
            above.add(cluster)
        return not above.isdisjoint(self._clusters)

    def state_dict(self) -> dict[str, Any]:
        """The history of the clusters, and what clients are still placed by."""
        return {
            "rounds": self.rounds,
            "assignments": self.assignments,
            "splits": [[one.round, one.cluster, *one.sides, one.cross_similarity] for one in self.splits],
            "clusters": self._clusters,
            "junctions": {
                cluster: {"model": junction.model.state_dict(), "directions": junction.directions.cpu()}
                for cluster, junction in self._junctions.items()
            },
            "first_norm": self._first_norm,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history."""
        self.rounds, self.assignments = list(state["rounds"]), [list(labels) for labels in state["assignments"]]
        self.splits = [
            ClusterSplit(done, cluster, (first, second), similarity)
            for done, cluster, first, second, similarity in state["splits"]
        ]
        self._clusters = list(state["clusters"])
        self._junctions = {
            cluster: _Junction(Weights.from_state_dict(kept["model"], torch.device("cpu")), kept["directions"])
            for cluster, kept in state["junctions"].items()
        }
        self._first_norm = state["first_norm"]
