"""FeSEM: several centres; after every round each client goes to the one that its weights are nearest to.

Long, Xie, Shen, Zhou, Wang, Jiang, "Multi-center federated learning: clients clustering for better personalization",
World Wide Web 26, 2023, https://arxiv.org/abs/2005.01026, algorithm 1.

========================  ======================================================  ========
paper                     here                                                    shape
========================  ======================================================  ========
W_i                       a client's weights after its turn                       [P]
W~^(k), K centres         ``trainer.models``, and centres without clients         K x [P]
r_i^(k)                   ``assignments``                                         [N]
E-step, M-step            :mod:`lightning_fl.functional.fesem`
========================  ======================================================  ========

Differs from the paper: centres are averages weighted by samples. It leaves open where they begin: here all clients
start the first round from one model, and k-means (k-means++ starts) of what they learned gives the first clusters.
Distances are those of the shared, trainable parameters. A centre that loses its last client stays where it is, and may
win clients back. A client that has not taken part yet uses, and starts from, the average of the centres by the samples
of their clients. Of a cluster whose clients took part in part, the new centre is the average of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.collaboration import Collaboration
from lightning_fl.engine.probes.on_hosts import compute_on_hosts
from lightning_fl.engine.probes.updates import update_blocks
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.fesem import cluster_matrices, initial_clusters, nearest_centres, squared_distances
from lightning_fl.functional.hcct import gram_matrix
from lightning_fl.seeding import derive_seed
from lightning_fl.surface import TrainerSurface

__all__ = ["FeSEM"]

#: Columns compared at a time.
_COLUMNS = 1 << 16


class FeSEM(Callback):
    """A fixed number of clusters by k-means of the clients' weights, one step of it a round.

    Works with any strategy, with sampled clients (at least ``num_clusters`` in the first round), with
    ``PersonalLayers`` (left out of the distances) and ``ClientArrivals``. Keeps the weights of all clients of a round
    until they are assigned.

    Args:
        num_clusters: K, at most the number of clients.

    Attributes (a list entry per round):
        rounds: rounds done.
        assignments: the cluster of every client, 0..K-1, or -1 for those that have not taken part yet, length N.

    Raises:
        ConfigurationError: the number of clusters is out of range; at the start of a run, there are more clusters than
            clients; in the first round, fewer clients than clusters take part.
        DataError: a client's weights are not finite.
    """

    role = "collaboration"

    def __init__(self, *, num_clusters: int) -> None:
        if num_clusters < 1:
            raise ConfigurationError(f"FeSEM.num_clusters={num_clusters}: give a number of at least 1.")
        self.num_clusters = num_clusters
        self._reset()

    def _reset(self) -> None:
        self.rounds: list[int] = []
        self.assignments: list[list[int]] = []
        #: Cluster without clients -> its centre; those with clients are the run's models, in ascending order.
        self._empty: dict[int, dict[str, Tensor]] = {}

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Forget an earlier run."""
        self._reset()
        if self.num_clusters > trainer.num_clients:
            raise ConfigurationError(
                f"FeSEM.num_clusters={self.num_clusters} for {trainer.num_clients} clients: give at most one cluster a"
                " client."
            )

    def select_collaboration(self, trainer: TrainerSurface, weights: Mapping[int, Weights]) -> Collaboration:
        """Assign those who took part; the engine averages them to the new centres."""
        clients = sorted(trainer.survivors)
        centres = self._centres(trainer)
        before = self.assignments[-1] if self.assignments else [-1] * trainer.num_clients
        if self.assignments:
            found = self._nearest(trainer, weights, clients, centres)
        else:
            found = self._first(trainer, weights, clients)
        labels = list(before)
        for client, cluster in zip(clients, found, strict=True):
            labels[client] = cluster
        used = sorted(set(labels) - {-1})
        self._empty = {k: centre.state_dict() for k, centre in enumerate(centres) if k not in used}
        self.rounds.append(trainer.current_round + 1)
        self.assignments.append(labels)
        trainer.log("fesem/clusters", len({labels[client] for client in trainer.present_clients} - {-1}))
        trainer.log("fesem/moved", sum(before[client] not in (-1, labels[client]) for client in clients))
        models = {-1: -1} | {cluster: model for model, cluster in enumerate(used)}
        return Collaboration(*cluster_matrices([models[label] for label in labels], trainer.num_samples))

    def _centres(self, trainer: TrainerSurface) -> list[Weights]:
        """All K, as they were before the round; in the first one all are the initial model."""
        if not self.assignments:
            return [trainer.models[0]] * self.num_clusters
        models = iter(trainer.models)
        device = trainer.fabric.device
        return [
            Weights.from_state_dict(self._empty[k], device) if k in self._empty else next(models)
            for k in range(self.num_clusters)
        ]

    def _first(self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]) -> Sequence[int]:
        if len(clients) < self.num_clusters:
            raise ConfigurationError(
                f"FeSEM.num_clusters={self.num_clusters}, but {len(clients)} clients took part in the first round,"
                " whose weights give the first centres: let more take part, or lower the number."
            )
        # All started from one model, so that updates are as far apart as weights.
        gram = gram_matrix(update_blocks(trainer.loop, weights, clients, trainer.loop.averaged_spans()))
        samples = [trainer.num_samples[client] for client in clients]
        return initial_clusters(gram, samples, self.num_clusters, derive_seed(trainer.seed, "first centres"))

    def _nearest(
        self,
        trainer: TrainerSurface,
        weights: Mapping[int, Weights],
        clients: Sequence[int],
        centres: Sequence[Weights],
    ) -> Sequence[int]:
        spans = trainer.loop.averaged_spans()
        found = compute_on_hosts(
            trainer.processes,
            clients,
            lambda client: squared_distances(_blocks(weights[client], centres, spans)).tolist(),
            "FeSEM cannot measure distances",
        )
        distances = torch.tensor([found[client] for client in clients], dtype=torch.float64)
        trainer.log("fesem/distance", float(distances.amin(1).sqrt().mean()))
        return nearest_centres(distances)

    def state_dict(self) -> dict[str, Any]:
        """The history, and centres without clients."""
        return {"rounds": self.rounds, "assignments": self.assignments, "empty": self._empty}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        self.rounds = list(state["rounds"])
        self.assignments = [list(labels) for labels in state["assignments"]]
        self._empty = {cluster: dict(centre) for cluster, centre in state["empty"].items()}


def _blocks(own: Weights, centres: Sequence[Weights], spans: Sequence[Span]) -> Iterator[tuple[Tensor, Tensor]]:
    for span in spans:
        for begin in range(span.begin, span.end, _COLUMNS):
            part = slice(begin, min(begin + _COLUMNS, span.end))
            yield own.vectors[span.dtype][part], torch.stack([one.vectors[span.dtype][part] for one in centres])
