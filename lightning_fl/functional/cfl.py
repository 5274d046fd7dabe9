"""The mathematics of CFL: when a cluster of clients is split, and into which two.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints", IEEE Transactions on Neural Networks and Learning Systems 2021, https://arxiv.org/abs/1910.01991: its
optimal bipartition and stopping criteria.

A cluster is split if its mean update is shorter than ε1 and some client's is longer than ε2, along the bipartition with
the least α_cross^max, the largest similarity across the two sides: the last merge of single linkage on ``1 - α``. It is
kept if ``sqrt((1 - α_cross^max) / 2) > γ_max``. γ_max in [0, 1) bounds the distance of a client's gradient from its
cluster's true gradient, relative to the length of the latter; it is chosen by hand, as in the paper.

Differs from the paper: the cosine with a zero update is 0 (the paper leaves it undefined).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.functional.gram import check_gram, cosine_similarities
from lightning_fl.functional.shapes import check_square

# Distances from a cosine of 1 below this are rounding, not a difference.
_ROUNDING = 1e-12


class UpdateNorms(NamedTuple):
    """Lengths of a cluster's updates in a round."""

    mean: float
    """Norm of the mean update, clients weighted by their samples."""
    largest: float
    """Largest norm of a client's update."""


class Bipartition(NamedTuple):
    """Two sides of a cluster."""

    labels: list[int]
    """Side of each client, length N: 0 for the first client's, 1 for the other."""
    cross_similarity: float
    """Largest similarity of two clients on different sides."""


def update_norms(gram: Tensor, num_samples: Sequence[int]) -> UpdateNorms:
    """The two norms that decide whether a cluster is split, from ΔW ΔWᵀ [N, N] and |D_i| >= 0, not all zero [N]."""
    inner, counts = check_gram(gram), np.asarray(num_samples, dtype=np.float64)
    if counts.shape != (len(inner),) or not (counts >= 0).all() or not 0 < counts.sum() < math.inf:
        raise DataError(f"num_samples={counts.tolist()} for {len(inner)} clients: give counts >= 0, not all zero.")
    shares = counts / counts.sum()
    return UpdateNorms(math.sqrt(max(0.0, shares @ inner @ shares)), math.sqrt(inner.diagonal().max()))


def optimal_bipartition(similarities: Tensor) -> Bipartition:
    """Two sides, none empty, such that the largest similarity across them is least.

    ``similarities`` are α, symmetric, [N, N] with N >= 2, from -1 to 1; the diagonal is not read.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    check_square("similarities", similarities, least=2)
    alpha = np.array(similarities.detach().double().cpu())
    np.fill_diagonal(alpha, 1)
    if not (np.abs(alpha) <= 1 + 1e-6).all() or not np.allclose(alpha, alpha.T, rtol=0, atol=1e-6):  # float32's too
        raise ConfigurationError("similarities: give a symmetric matrix of finite cosines from -1 to 1.")
    distances = np.maximum(1 - (alpha + alpha.T) / 2, 0)
    np.fill_diagonal(distances, 0)
    labels = cut_tree(linkage(squareform(distances, checks=False), method="single"), n_clusters=2)[:, 0]
    side = labels != labels[0]
    return Bipartition(side.astype(int).tolist(), float(alpha[side][:, ~side].max()))


def split_cluster(
    gram: Tensor, num_samples: Sequence[int], *, eps1: float, eps2: float, gamma_max: float = 0.0
) -> Bipartition | None:
    """The two sides into which a cluster is split, or ``None`` if it stays whole; ``gram`` as in :func:`update_norms`.

    Args:
        eps1: upper bound of the norm of the mean update.
        eps2: lower bound of the largest norm of a client's update.
        gamma_max: from 0 (any separation is enough) to 1.
    """
    norms = update_norms(gram, num_samples)
    if len(num_samples) < 2 or not (norms.mean < eps1 and norms.largest > eps2):
        return None
    found = optimal_bipartition(cosine_similarities(gram))
    distance = 1 - found.cross_similarity
    separation = math.sqrt(distance / 2) if distance > _ROUNDING else 0.0
    return found if separation > gamma_max else None
