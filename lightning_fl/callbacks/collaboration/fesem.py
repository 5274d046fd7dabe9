"""FeSEM: several centres; after every round each client joins the centre nearest to its weights.

Long, Xie, Shen, Zhou, Wang, Jiang, "Multi-center federated learning: clients clustering for better personalization",
World Wide Web 26, 2023, https://arxiv.org/abs/2005.01026, algorithm 1.

Differs from the paper: centres are averages weighted by samples. The paper does not define the first centres: here all
clients start the first round from one model, and k-means (k-means++ starts) of their weights gives the first clusters.
Distances are those of the shared, trainable parameters. A centre without clients stays, and clients may return to it.
A client that has not taken part yet starts from the average of the centres, weighted by samples. A new centre is the
average of the participants of its cluster.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import derive_seed
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.engine.probes.updates import column_blocks
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.gram import kmeans_from_gram, squared_distances
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class FeSEM(ClientClusters):
    """A fixed number of clusters by k-means of the clients' weights, one step per round.

    At least ``num_clusters`` clients must take part in the first round. Logs ``fesem/distance``, the mean distance from
    the nearest centre. For the rest see :class:`ClientClusters`.

    Args:
        num_clusters: K, at most the number of clients.

    Raises:
        ConfigurationError: as for :class:`ClientClusters`; in the first round, fewer clients than clusters take part.
        DataError: a client's weights are not finite.
    """

    saved = (*ClientClusters.saved, "_empty")

    num_clusters: Count

    def reset(self, num_clients: int) -> None:
        super().reset(num_clients)
        #: Cluster without clients -> its centre; those with clients are the run's models, in ascending order.
        self._empty: dict[int, dict[str, Tensor]] = {}

    def assign(self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]) -> dict[int, int]:
        """Assign participants; the engine averages them to the new centres."""
        centres = self._centres(trainer)
        if max(self.clusters) >= 0:  # not the first round
            nearest = self._nearest(trainer, weights, clients, centres)
        else:
            nearest = self._first(trainer, weights, clients)
        found = dict(zip(clients, nearest, strict=True))
        used = {found.get(client, own) for client, own in enumerate(self.clusters)}
        self._empty = {k: centre.state_dict() for k, centre in enumerate(centres) if k not in used}
        return found

    def _centres(self, trainer: TrainerSurface) -> list[Weights]:
        """All K centres before the round; in the first round all are the initial model."""
        if max(self.clusters) < 0:
            return [trainer.federation.models[0]] * self.num_clusters
        models = iter(trainer.federation.models)
        empty = {k: Weights.from_state_dict(centre, trainer.fabric.device) for k, centre in self._empty.items()}
        return [empty[k] if k in empty else next(models) for k in range(self.num_clusters)]

    def _first(self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int]) -> Sequence[int]:
        if len(clients) < self.num_clusters:
            count = f"only {len(clients)} clients took part in the first round"
            raise ConfigurationError(f"FeSEM.num_clusters={self.num_clusters}: {count}. Lower the number.")
        # All started from one model, so updates have the distances of weights.
        gram, seed = self.gram(trainer, weights, clients), derive_seed(trainer.seed, "first centres")
        samples = [trainer.federation.num_samples[client] for client in clients]
        return kmeans_from_gram(gram, self.num_clusters, seed, weights=samples)

    def _nearest(
        self, trainer: TrainerSurface, weights: Mapping[int, Weights], clients: Sequence[int], centres: list[Weights]
    ) -> Sequence[int]:
        spans = trainer.loop.averaged_spans()

        def distances(client: int) -> list[float]:
            own = weights[client].vectors
            return squared_distances(
                (own[dtype][part], torch.stack([centre.vectors[dtype][part] for centre in centres]))
                for dtype, part in column_blocks(spans)
            ).tolist()

        found = trainer.on_hosts(clients, distances, "FeSEM cannot measure distances")
        squared = torch.tensor([found[client] for client in clients], dtype=torch.float64)
        trainer.log("fesem/distance", float(squared.amin(1).sqrt().mean()))
        return squared.argmin(1).tolist()
