"""K-means of clients from the inner products of their weights.

K-means depends only on distances, so N points of any dimension are clustered as the N points of at most N - 1
dimensions with the same inner products around their mean.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.functional.gram import check_gram, in_order


def kmeans_from_gram(
    gram: Tensor, num_clusters: int, seed: int, num_restarts: int = 10, weights: Sequence[float] | None = None
) -> list[int]:
    """Cluster N points by k-means, with the least (weighted) sum of squared distances found.

    Labels are 0..K-1 in order of first appearance, fewer if fewer points differ.

    Args:
        gram: inner products of the points around any origin, shape [N, N]; see :func:`.gram_matrix`.
        num_clusters: K, from 1 to N.
        seed: >= 0; the same seed gives the same clusters.
        num_restarts: starts by k-means++; the best result is kept.
        weights: of the points, positive, length N; ``None`` for equal ones.
    """
    from sklearn.cluster import KMeans  # type: ignore[import-untyped]  # takes seconds to import

    inner = check_gram(gram)
    if not 1 <= num_clusters <= len(inner) or seed < 0 or num_restarts < 1:
        raise ConfigurationError(
            f"num_clusters={num_clusters}, seed={seed}, num_restarts={num_restarts}: give 1 to {len(inner)} clusters, a"
            " seed of at least 0 and at least one restart."
        )
    if weights is not None and (len(weights) != len(inner) or min(weights) <= 0):
        raise ConfigurationError(f"weights={list(weights)} for {len(inner)} clients: give each a positive weight.")
    centred = inner - inner.mean(0) - inner.mean(1, keepdims=True) + inner.mean()
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    points = vectors * np.sqrt(np.maximum(values, 0))
    scale = np.abs(points).max()
    if not scale or num_clusters == 1:
        return [0] * len(points)
    distinct = len(np.unique(np.round(points / scale, 6), axis=0))  # the root of float64's rounding, with some room
    best = KMeans(min(num_clusters, distinct), n_init=num_restarts, random_state=seed & 0xFFFF_FFFF)
    found = best.fit(points, sample_weight=None if weights is None else np.array(weights, float)).labels_.tolist()
    return in_order(found)
