"""Inner products, cosines and distances of clients' updates.

Everything that depends only on directions and lengths of updates g [N, P] follows from their Gram matrix G = g gᵀ
[N, N], the only product with a cost that grows with P. The mean update of a group with shares s has the squared norm
sᵀ G s and the inner products G s.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import Fraction, checked
from lightning_fl.functional.shapes import check_floating, check_square

_Array = npt.NDArray[np.float64]

# Columns converted to float64 at a time: wide enough for a fast product, small enough to stay in cache.
_CHUNK_COLUMNS = 4096
# Relative size below which a sum of float64 products is rounding, not a value.
_ROUNDING = 1e-12


def gram_matrix(updates: Tensor | Iterable[Tensor]) -> Tensor:
    """Inner products of all pairs of updates, G = g gᵀ, float64, shape [N, N], symmetric, on the updates' device.

    ``updates`` are floating, [N, P], or an iterable of blocks of columns [N, P_b] on one device.
    """
    gram: Tensor | None = None
    for columns in float64_columns(updates):
        product = columns @ columns.T
        gram = product if gram is None else gram.add_(product)
    if gram is None:
        raise ConfigurationError("updates of clients have no entries to compare: no parameter is trained and shared.")
    gram = (gram + gram.T) / 2  # a product of a matrix with itself is symmetric up to rounding only
    if broken := (~gram.diagonal().isfinite()).nonzero().flatten().tolist():
        raise DataError(f"updates of clients {broken} are not finite: drop them, or lower their learning rate.")
    return gram


def float64_columns(updates: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    """The updates, as :func:`gram_matrix` takes them, in float64, a few thousand columns at a time: [N, c], c >= 1."""
    rows: int | None = None
    for block in (updates,) if isinstance(updates, Tensor) else updates:
        check_floating("updates", block, rows, block.shape[-1] if block.ndim else None)
        rows = len(block)
        for columns in block.detach().split(_CHUNK_COLUMNS, dim=1):
            if columns.shape[1]:
                yield columns.double()


def check_gram(gram: Tensor) -> _Array:
    """A checked copy of a Gram matrix as float64 NumPy array."""
    check_square("gram", gram)
    inner = gram.detach().to("cpu", torch.float64).numpy().copy()
    if not np.isfinite(inner).all() or (inner.diagonal() < 0).any():
        raise ConfigurationError("gram: inner products must be finite and the squared norms on the diagonal >= 0.")
    return inner


def sample_counts(num_samples: Sequence[int] | Tensor, num_clients: int) -> _Array:
    """Checked numbers of samples as float64 NumPy array, shape [N]."""
    counts = torch.as_tensor(num_samples, dtype=torch.float64, device="cpu").numpy().copy()
    if counts.shape != (num_clients,) or not (np.isfinite(counts) & (counts > 0)).all():
        raise ConfigurationError(f"num_samples={counts.tolist()} for {num_clients} clients: give positive counts.")
    return counts


def inverse_roots(squared_norms: _Array) -> _Array:
    """``1 / sqrt(x)``, and 0 where a squared norm is 0: the cosine with a zero vector is 0."""
    norms = np.sqrt(squared_norms)
    return np.where(norms > 0, 1 / np.where(norms > 0, norms, 1), 0)


def cosine_similarities(gram: Tensor) -> Tensor:
    """Cosines of all pairs of updates from their Gram matrix, float64, [N, N], symmetric, from -1 to 1.

    The diagonal is 1; the similarity with a zero update is 0.
    """
    inner = check_gram(gram)
    scale = inverse_roots(inner.diagonal())
    similarities = np.clip(inner * scale[:, None] * scale, -1, 1)
    np.fill_diagonal(similarities, 1)
    return torch.from_numpy((similarities + similarities.T) / 2)


@checked
def remembered_cosines(mean: Tensor, weight: Tensor, cosines: Tensor, memory: Fraction) -> tuple[Tensor, Tensor]:
    """Add a round to the mean of cosines over rounds: C̄ ← (β w C̄ + C) / (β w + 1), w ← β w + 1.

    A pair's rounds weigh β^0, β^1, ..., the last first, β being ``memory``: with 0 only the last round counts, with 1
    all count equally. Tensors are [N, N]; ``weight`` is w, the sum of the weights so far, 0 before the first round.
    """
    check_floating("weight", weight, *mean.shape)
    check_floating("cosines", cosines, *mean.shape)
    before = memory * weight
    return (torch.where(before > 0, before * mean, 0) + cosines) / (before + 1), before + 1


def with_cosines(gram: Tensor, cosines: Tensor) -> Tensor:
    """The Gram matrix [N, N] with the cosines replaced by C: ‖g_n‖ C_nj ‖g_j‖, float64, with the diagonal of G."""
    inner = check_gram(gram)
    check_floating("cosines", cosines, *gram.shape)
    norms = np.sqrt(inner.diagonal())
    changed = cosines.detach().to("cpu", torch.float64).numpy() * norms[:, None] * norms
    np.fill_diagonal(changed, inner.diagonal())
    return torch.from_numpy(changed)


def join_most_similar(gram: Tensor, num_samples: Sequence[int] | Tensor, labels: Sequence[int]) -> list[int]:
    """Add clients without a group to the group with the most similar mean update (cosine).

    Clients with a group keep it; of equally similar groups the smallest label is taken. A client without a positive
    cosine joins none: -1. Cosines with a zero or cancelling mean update are 0.

    Args:
        gram: G = g gᵀ, shape [N, N].
        num_samples: m, positive, length N; means are weighted by them.
        labels: group of each client, >= 0, or -1 for none, length N.

    Example:
        >>> updates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 0.5]])
        >>> join_most_similar(gram_matrix(updates), [50, 50, 50], [0, 1, -1])
        [0, 1, 1]
    """
    inner = check_gram(gram)
    counts = sample_counts(num_samples, len(inner))
    if len(labels) != len(inner) or min(labels) < -1:
        raise ConfigurationError(f"labels={list(labels)} for {len(inner)} clients: give each one of at least -1.")
    groups = sorted(set(labels) - {-1})
    if not groups:
        return list(labels)
    shares = counts * [[own == group for own in labels] for group in groups]
    shares /= shares.sum(1, keepdims=True)
    with_means = shares @ inner
    squared_norms = (with_means * shares).sum(1)
    cancels = squared_norms <= _ROUNDING * (shares @ inner.diagonal())
    # A client's own norm is the same factor for every group.
    similarities = inverse_roots(np.where(cancels, 0, squared_norms))[:, None] * with_means
    nearest = np.where(similarities.max(0) > 0, np.array(groups)[similarities.argmax(0)], -1).tolist()
    return [other if own < 0 else own for own, other in zip(labels, nearest, strict=True)]


def squared_distances(blocks: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """``||W - W~^(k)||²`` of one client's weights from every centre, float64, shape [K].

    ``blocks`` are blocks of the weights [c] and of all centres [K, c], floating.
    """
    total: Tensor | None = None
    for point, centres in blocks:
        check_floating("weights", point, point.numel())
        check_floating("centres", centres, None if total is None else len(total), *point.shape)
        part = (centres.double() - point.double()).square().sum(1)
        total = part if total is None else total + part
    if total is None:
        raise ConfigurationError("blocks: give at least one block [c], [K, c].")
    if not bool(total.isfinite().all()):
        raise DataError("the distance from a centre is not finite: drop the client or lower its learning rate.")
    return total


def in_order(labels: Iterable[int]) -> list[int]:
    """The same partition with labels 0..K-1 in order of first appearance; -1, a client without a group, stays."""
    numbers = {-1: -1}
    return [numbers.setdefault(label, len(numbers) - 1) for label in labels]


def kmeans_from_gram(gram: Tensor, num_clusters: int, seed: int, weights: Sequence[float] | None = None) -> list[int]:
    """Cluster N points by k-means, with the least (weighted) sum of squared distances found.

    Labels are 0..K-1 in order of first appearance, fewer if fewer points differ. K-means depends only on distances, so
    the points are replaced by N points of at most N - 1 dimensions with the same inner products around their mean.

    Args:
        gram: inner products of the points around any origin, shape [N, N]; see :func:`.gram_matrix`.
        num_clusters: K, from 1 to N.
        seed: >= 0; the same seed gives the same clusters.
        weights: of the points, positive, length N; ``None`` for equal ones.
    """
    from sklearn.cluster import KMeans  # type: ignore[import-untyped]  # takes seconds to import

    inner = check_gram(gram)
    if not 1 <= num_clusters <= len(inner) or seed < 0:
        given = f"num_clusters={num_clusters}, seed={seed}"
        raise ConfigurationError(f"{given}: give 1 to {len(inner)} clusters, and a seed of at least 0.")
    if weights is not None and (len(weights) != len(inner) or min(weights) <= 0):
        raise ConfigurationError(f"weights={list(weights)} for {len(inner)} clients: give each a positive weight.")
    centred = inner - inner.mean(0) - inner.mean(1, keepdims=True) + inner.mean()
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    points = vectors * np.sqrt(np.maximum(values, 0))
    scale = np.abs(points).max()
    if not scale or num_clusters == 1:
        return [0] * len(points)
    distinct = len(np.unique(np.round(points / scale, 6), axis=0))  # the root of float64's rounding, with some room
    best = KMeans(min(num_clusters, distinct), n_init=10, random_state=seed & 0xFFFF_FFFF)
    found = best.fit(points, sample_weight=None if weights is None else np.array(weights, float)).labels_.tolist()
    return in_order(found)
