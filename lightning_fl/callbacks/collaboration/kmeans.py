"""KMeans: clients train alone, are clustered once by their weights, and then train in their clusters.

Ghosh, Hong, Yin, Ramchandran, "Robust Federated Learning in a Heterogeneous Environment", 2019
(https://arxiv.org/abs/1906.06629), its three steps. The clustering is :func:`.kmeans_from_gram`.

Differs from the paper: clients train alone for some rounds, not until convergence, and all from one start; clusters
start from the average of their clients, weighted by samples (the paper does not define the start). The average in a
cluster is the strategy's, not one that is robust to Byzantine clients. The paper has no late clients: here clients that
have not yet trained when clusters are formed join as in :class:`ClientClusters`.
"""

from collections.abc import Mapping, Sequence

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn

from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.seeding import derive_seed
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.engine.probes.updates import column_blocks
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.gram import gram_matrix, kmeans_from_gram
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class KMeans(ClientClusters):
    """Clients train alone, then k-means groups clients with similar weights for the rest of the run.

    While clients train alone they belong to no cluster, and memory holds one model per client in addition to the
    weights of the participants. For the rest see :class:`ClientClusters`.

    Args:
        num_clusters: K, at most the number of clients. Fewer clusters are formed if fewer clients differ.
        warm_up_rounds: rounds that clients train alone. Clusters follow once ``num_clusters`` clients have trained.

    Attributes:
        clustering_round: the round after which clusters were formed, counted from 1; ``None`` before.
    """

    saved = (*ClientClusters.saved, "clustering_round", "_trained")

    num_clusters: Count
    warm_up_rounds: Count = 1

    def reset(self, num_clients: int) -> None:
        super().reset(num_clients)
        self.clustering_round: int | None = None
        #: Clients that have trained alone.
        self._trained: set[int] = set()

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        super().on_fit_start(trainer)
        if self.warm_up_rounds >= trainer.max_rounds:
            ends = f"KMeans.warm_up_rounds={self.warm_up_rounds}: the run ends at max_rounds={trainer.max_rounds}"
            rank_zero_warn(f"{ends}, before clusters train. Give more rounds.")
        trainer.federation.collaboration = Collaboration.local(trainer.num_clients)

    def assign(self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]) -> None:
        """Keep the clusters; newcomers join once there are some."""

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        if self.clustering_round is None:
            self._trained |= trainer.round.survivors
            if trainer.federation.current_round + 1 >= self.warm_up_rounds and len(self._trained) >= self.num_clusters:
                self._form(trainer)
        super().on_aggregate_end(trainer)

    def _form(self, trainer: TrainerSurface) -> None:
        clients = sorted(self._trained)
        trainer.federation.communication.send(clients)
        blocks = (
            torch.stack([trainer.federation.models[client].vectors[dtype][part] for client in clients]).double()
            for dtype, part in column_blocks(trainer.loop.averaged_spans())
        )
        gram, seed = gram_matrix(block - block.mean(0) for block in blocks), derive_seed(trainer.seed, "k-means")
        found = kmeans_from_gram(gram, self.num_clusters, seed)
        # All ranks use the decision of rank 0, as their last bits may differ.
        found = trainer.processes.of_ranks(found)[0]
        for client, cluster in zip(clients, found, strict=True):
            self.clusters[client] = cluster
        self.clustering_round = trainer.federation.current_round + 1
        trainer.federation.regroup(self.collaboration(trainer))
        names = trainer.datamodule.client_names()
        members = [[names[i] for i, own in enumerate(self.clusters) if own == k] for k in range(max(found) + 1)]
        rank_zero_info("KMeans: " + "; ".join(f"cluster {k}: {', '.join(c)}" for k, c in enumerate(members)))
