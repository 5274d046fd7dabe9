"""FL+HC: after some rounds together, clients with similar updates are put into clusters, once, and train on in these.

Briggs, Fan, Andras: "Federated learning with hierarchical clustering of local updates to improve training on non-IID
data", IJCNN 2020 (https://arxiv.org/abs/2004.11791), algorithm 1.

==================  ======================================================  ========
paper               here                                                    shape
==================  ======================================================  ========
n                   ``after_rounds``
Δw                  what the clients learn in the round after these         [n, P]
T                   ``threshold``
P, metric; L        Euclidean or cosine distance; ``linkage``
clusters            ``assignments``                                         [N]
==================  ======================================================  ========

Differs from the paper: clients that take no part in that round, or arrive later, join the cluster whose mean update is
most similar to theirs (``ClientClusters``).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from lightning_fl import ConfigurationError
from lightning_fl.callbacks import ClientClusters
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.surface import TrainerSurface


class ClusterOnce(ClientClusters):
    """Clusters clients hierarchically by the updates of one round; before it all train one model.

    Args:
        threshold: clusters that are nearer than this are merged; a cosine distance is between 0 and 2.
        after_rounds: rounds that all clients train together first.
        metric: of the distance between updates.
        linkage: of the distance between clusters.

    Raises:
        ConfigurationError: a value is out of range.
    """

    def __init__(
        self,
        *,
        threshold: float,
        after_rounds: int = 1,
        metric: Literal["cosine", "euclidean"] = "cosine",
        linkage: Literal["single", "complete", "average"] = "average",
    ) -> None:
        for name, value, least in (("threshold", threshold, 0), ("after_rounds", after_rounds, 1)):
            if not least <= value < float("inf"):
                raise ConfigurationError(f"ClusterOnce.{name}={value}: give a number of at least {least}.")
        self.threshold, self.after_rounds = threshold, after_rounds
        self.metric, self.linkage = metric, linkage
        super().__init__()

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> dict[int, int] | None:
        """Everybody in cluster 0; in one round, by their updates."""
        if trainer.current_round != self.after_rounds or len(clients) < 2:
            return None if trainer.current_round else dict.fromkeys(range(trainer.num_clients), 0)
        gram = self.gram(trainer, weights, clients).numpy()
        squares = gram.diagonal()
        if self.metric == "cosine":
            norms = np.sqrt(np.maximum(squares, np.finfo(float).tiny))
            distances = 1 - gram / np.outer(norms, norms)
        else:
            distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * gram, 0))
        tree = linkage(squareform(distances, checks=False), self.linkage)
        found = fcluster(tree, self.threshold, criterion="distance").tolist()
        absent = dict.fromkeys(range(trainer.num_clients), -1)  # they join when they take part
        return absent | dict(zip(clients, found, strict=True))
