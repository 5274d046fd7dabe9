"""FL+HC: after some common rounds, clients are clustered once by their updates and continue in these clusters.

Briggs, Fan, Andras: "Federated learning with hierarchical clustering of local updates to improve training on non-IID
data", IJCNN 2020 (https://arxiv.org/abs/2004.11791), algorithm 1.

==================  ======================================================  ========
paper               here                                                    shape
==================  ======================================================  ========
n                   ``after_rounds``
Δw                  updates of the clients in the round after these         [n, P]
T                   ``threshold``
P, metric; L        Euclidean or cosine distance; ``linkage``
clusters            ``assignments``                                         [N]
==================  ======================================================  ========

Differs from the paper: clients that miss that round, or arrive later, join the cluster with the most similar mean
update (``ClientClusters``).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from lightning_fl.callbacks import ClientClusters
from lightning_fl.core.validation import Count, NonNegative, checked
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.surface import TrainerSurface


class ClusterOnce(ClientClusters):
    """Clusters clients hierarchically by the updates of one round; before it, all train one model.

    Args:
        threshold: clusters closer than this merge; a cosine distance is between 0 and 2.
        after_rounds: rounds in which all clients train together first.
        metric: distance between updates.
        linkage: distance between clusters.

    Raises:
        ConfigurationError: a value is out of range.
    """

    @checked
    def __init__(
        self,
        *,
        threshold: NonNegative,
        after_rounds: Count = 1,
        metric: Literal["cosine", "euclidean"] = "cosine",
        linkage: Literal["single", "complete", "average"] = "average",
    ) -> None:
        self.threshold, self.after_rounds = threshold, after_rounds
        self.metric, self.linkage = metric, linkage
        super().__init__()

    def assign(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]
    ) -> dict[int, int] | None:
        """All clients in cluster 0; after one round, clusters by updates."""
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
