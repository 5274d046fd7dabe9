"""The mathematics of HCCT: a partition of the clients from the directions of their updates and their data counts.

Sun, Kountouris, Zhang, "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo Federated
Learning", IEEE Transactions on Mobile Computing 2024, https://arxiv.org/abs/2401.13236, algorithm 2 and equations 8 to
20: hierarchical clustering-based collaborative training.

| paper | here | shape |
|---|---|---|
| g_n, update (gradient) of client n | ``updates`` | [N, P] |
| m_n, training samples of client n | ``num_samples`` | [N] |
| λ >= 0, appetite for data | ``tradeoff`` | number, in sqrt(samples) |
| g_k = Σ_{n in k} (m_n / m_k) g_n, update of group k | never formed | [P] |
| s(g_n, g_k), cosine similarity | from ``gram`` = g gᵀ | [N, N] |
| u_n(k) = U_0 − λ / √m_k + s(g_n, g_k), utility of client n in group k | summed in ``utility`` | number |

Every cosine follows from the Gram matrix, since ⟨g_n, g_k⟩ = Σ_j (m_j / m_k) G_nj and ‖g_k‖² is a weighted sum of
entries of G. One product of cost N² P a round is all that depends on P; the merging after it costs O(N²) memory and
O(N³) time and gives the partition of the paper's algorithm exactly, where HCCT-E (:func:`most_telling_layer`)
approximates it.

Differs from the paper: U_0 is 0, as it cancels in every comparison. The cosine with a zero vector is 0 (the paper
leaves it undefined); a client alone has s = 1 even if its update is zero.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.functional.gram import check_counts, check_gram, float64_columns, gram_matrix, inverse_roots

__all__ = [
    "Merge",
    "Partition",
    "hierarchical_partition",
    "join_group",
    "least_merged_cosine",
    "most_telling_layer",
    "partition_from_gram",
]

_Array = npt.NDArray[np.float64]

# Relative size below which a difference of float64 sums is rounding, not a value.
_ROUNDING = 1e-12


class Merge(NamedTuple):
    """One step of the hierarchical partition."""

    first: tuple[int, ...]
    """Members of the group with the smaller smallest client, ascending."""
    second: tuple[int, ...]
    """Members of the other group, ascending."""
    gain: float
    """ΔU > 0, by how much the merge raised the total utility."""


class Partition(NamedTuple):
    """Who is with whom, and how the groups came about."""

    labels: list[int]
    """Group of each client, 0..K-1 in order of first appearance, length N."""
    merges: list[Merge]
    """The merges in the order they were made, at most N - 1."""
    utility: float
    """Total utility of the partition with U_0 = 0."""


def hierarchical_partition(updates: Tensor, num_samples: Sequence[int] | Tensor, tradeoff: float) -> list[int]:
    """HCCT's partition of the clients (algorithm 2); see :func:`partition_from_gram`.

    Args:
        updates: g, floating, shape [N, P].
        num_samples: m, positive, length N.
        tradeoff: λ >= 0.

    Returns:
        Group of each client, labels 0..K-1 in order of first appearance.

    Raises:
        ConfigurationError: if a shape does not fit or an argument is out of range.
        DataError: if an update has an entry that is not finite.

    Example:
        >>> hierarchical_partition(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]), [50, 50, 50], tradeoff=1.0)
        [0, 1, 0]
    """
    return partition_from_gram(gram_matrix(updates), num_samples, tradeoff).labels


def partition_from_gram(gram: Tensor, num_samples: Sequence[int] | Tensor, tradeoff: float) -> Partition:
    """Merge the two groups with the largest gain in utility until no merge gains.

    Starts with every client alone. Of equal gains the pair with the smallest clients is merged, where a group is
    named by its smallest client. A gain within rounding of 0 is no gain.

    Args:
        gram: G = g gᵀ, shape [N, N]; see :func:`lightning_fl.functional.gram_matrix`.
        num_samples: m, positive, length N.
        tradeoff: λ >= 0; 0 leaves clients with distinct directions alone, a large value brings all together.

    Returns:
        Labels, merges and the total utility.

    Raises:
        ConfigurationError: if a shape does not fit or an argument is out of range.
    """
    inner, samples = _check(gram, num_samples, tradeoff)
    cosines = _weighted_cosines(inner, samples)
    inner = inner * samples[:, None] * samples
    scales = inner.diagonal().copy()
    # Groups are kept in the order of their smallest client, so that the first of equal gains is the one to take.
    members: list[tuple[int, ...]] = [(client,) for client in range(len(samples))]
    counts = np.ones(len(samples))
    utilities = 1 - tradeoff / np.sqrt(samples)
    slack = _slack(samples, tradeoff)
    merges: list[Merge] = []
    while len(members) > 1:
        merged = _merged_utilities(counts, samples, cosines, inner, scales, tradeoff)
        gains = np.where(np.tri(len(members), dtype=bool), -np.inf, merged - utilities[:, None] - utilities)
        best = gains.max()
        if best <= slack:
            break
        first, second = divmod(int((gains >= best - slack).argmax()), len(members))
        merges.append(Merge(members[first], members[second], float(gains[first, second])))
        utilities[first] = merged[first, second]
        members[first] = tuple(sorted(members[first] + members.pop(second)))
        utilities = np.delete(utilities, second)
        counts, samples, scales = (_absorb(sums, first, second) for sums in (counts, samples, scales))
        cosines, inner = (_absorb(_absorb(sums, first, second).T, first, second).T for sums in (cosines, inner))
    labels = [0] * gram.shape[0]
    for label, group in enumerate(members):
        for client in group:
            labels[client] = label
    return Partition(labels, merges, float(utilities.sum()))


def least_merged_cosine(appetite: float) -> float:
    """Cosine above which two clients of equal weight and equal length of update come together.

    With c = λ / √m and cosine ρ both have s = √((1 + ρ) / 2) together and 1 alone, so that they merge if
    1 − s < c (1 − 1/√2). From c = 3.414 on they do whatever ρ is.

    Args:
        appetite: c >= 0.

    Returns:
        ρ from -1 (even exactly opposed updates merge) to 1 (none do).

    Raises:
        ConfigurationError: ``appetite`` is negative or not finite.
    """
    if not 0 <= appetite < math.inf:
        raise ConfigurationError(f"appetite={appetite}: give a finite number of at least 0.")
    return 2 * max(0.0, 1 - appetite * (1 - math.sqrt(0.5))) ** 2 - 1


def join_group(
    gram: Tensor, num_samples: Sequence[int] | Tensor, tradeoff: float, labels: Sequence[int], newcomer: int
) -> list[int]:
    """Put a new client where the total utility gains most; nobody else moves.

    Args:
        gram: G of all clients, the newcomer included, shape [N, N].
        num_samples: m, positive, length N.
        tradeoff: λ >= 0.
        labels: groups of the clients, length N; the newcomer's own entry is not read.
        newcomer: index of the new client.

    Returns:
        Labels of all clients, length N: the others keep theirs; the newcomer gets the label of the group with the
        largest ΔU > 0 (of equals the smallest label), or the next free label.

    Raises:
        ConfigurationError: if a shape does not fit or an argument is out of range.
    """
    inner, samples = _check(gram, num_samples, tradeoff)
    if len(labels) != len(samples) or not 0 <= newcomer < len(samples):
        raise ConfigurationError(
            f"{len(labels)} labels and newcomer={newcomer} for a Gram matrix of {len(samples)} clients: give one label"
            f" per client (the newcomer's is not read) and a newcomer from 0 to {len(samples) - 1}."
        )
    used = sorted({labels[client] for client in range(len(samples)) if client != newcomer})
    member = np.array([[label == other for label in labels] for other in used] + [[False] * len(labels)], dtype=float)
    member[:, newcomer] = 0
    member[-1, newcomer] = 1
    cosines = member @ _weighted_cosines(inner, samples) @ member.T
    inner = inner * samples[:, None] * samples
    counts, masses, scales = member.sum(1), member @ samples, member @ inner.diagonal()
    inner = member @ inner @ member.T
    similarity = np.where(counts > 1, _cosine_sum(cosines.diagonal(), inner.diagonal(), scales, counts), 1)
    utilities = similarity - tradeoff * counts / np.sqrt(masses)
    merged = _merged_utilities(counts, masses, cosines, inner, scales, tradeoff)
    gains = merged[-1, :-1] - utilities[:-1] - utilities[-1]
    slack = _slack(samples, tradeoff)
    if gains.max(initial=0) > slack:
        chosen = used[int((gains >= gains.max() - slack).argmax())]
    else:
        chosen = max(used, default=-1) + 1
    joined = list(labels)
    joined[newcomer] = chosen
    return joined


def most_telling_layer(
    updates_by_layer: Mapping[str, Tensor], num_samples: Sequence[int] | Tensor | None = None
) -> str:
    """HCCT-E's layer (equation 19): the one with the largest relative variance Σ_n ‖g_n − ḡ‖² / ‖ḡ‖².

    A layer in which all updates are equal has 0, also where they are all zero; a layer whose updates differ but
    cancel in the mean has infinite relative variance. Of equal layers the first is taken.

    Args:
        updates_by_layer: update of every client in each layer, floating, shape [N, P_l].
        num_samples: with counts m (positive, length N) ḡ is the mean weighted by them, the update that FedAvg would
            make; without, the plain mean over clients. The sum over clients is unweighted in both cases.

    Returns:
        Name of the layer.

    Raises:
        ConfigurationError: if there is no layer, a layer is not a floating matrix, layers differ in their number of
            clients, or ``num_samples`` does not fit.
        DataError: if an update has an entry that is not finite.
    """
    if not updates_by_layer:
        raise ConfigurationError("updates_by_layer is empty: give at least one layer [N, P_l].")
    num_clients = next(iter(updates_by_layer.values())).shape[:1]
    scores: dict[str, float] = {}
    for name, updates in updates_by_layer.items():
        if updates.shape[:1] != num_clients:
            raise ConfigurationError(
                f"layer {name!r} has shape {list(updates.shape)}, but the first layer has {list(num_clients)} rows:"
                " give one row per client in every layer."
            )
        shares = torch.ones(updates.shape[:1], dtype=torch.float64)
        if num_samples is not None:
            shares = torch.from_numpy(check_counts(num_samples, len(updates)))
        shares = (shares / shares.sum()).to(updates.device)
        deviation = total = torch.zeros((), dtype=torch.float64, device=updates.device)
        for columns in float64_columns(updates):
            mean = shares @ columns
            total = total + mean.square().sum()
            deviation = deviation + (columns - mean).square_().sum()
        if not torch.isfinite(deviation):
            raise DataError(
                f"layer {name!r} has an update that is not finite: drop the client from the round or lower its"
                " learning rate."
            )
        scores[name] = _ratio(float(deviation), float(total))
    return max(scores, key=scores.__getitem__)


def _ratio(deviation: float, total: float) -> float:
    if deviation == 0:
        return 0.0
    return deviation / total if total > 0 else math.inf


def _check(gram: Tensor, num_samples: Sequence[int] | Tensor, tradeoff: float) -> tuple[_Array, _Array]:
    inner = check_gram(gram)
    if not 0 <= tradeoff < math.inf:
        raise ConfigurationError(
            f"tradeoff={tradeoff}: give a finite number of at least 0; the paper tunes it per task, try 0.1 to 30."
        )
    return inner, check_counts(num_samples, len(inner))


def _slack(samples: _Array, tradeoff: float) -> float:
    """How far rounding can move a gain from 0, or equal gains apart."""
    return float(_ROUNDING * len(samples) * (1 + tradeoff / np.sqrt(samples.min())))


def _weighted_cosines(inner: _Array, samples: _Array) -> _Array:
    """Entry [n, j]: ⟨g_n / ‖g_n‖, m_j g_j⟩, 0 where g_n is zero. Sums of blocks are what the group cosines need."""
    return inverse_roots(inner.diagonal())[:, None] * inner * samples


def _cosine_sum(directional: _Array, squared_norm: _Array, scale: _Array, counts: _Array) -> _Array:
    """Σ_n s(g_n, g_k) over the members of groups: 0 where a group's update cancels, next to its parts (``scale``)."""
    nonzero = squared_norm > _ROUNDING * scale
    cosines = np.divide(directional, np.sqrt(np.where(nonzero, squared_norm, 1)))
    return np.where(nonzero, np.clip(cosines, -counts, counts), 0)


def _merged_utilities(
    counts: _Array, samples: _Array, cosines: _Array, inner: _Array, scales: _Array, tradeoff: float
) -> _Array:
    """U(a ∪ b) for all pairs of groups, shape [K, K]; the diagonal means nothing."""
    sizes = counts[:, None] + counts
    own = inner.diagonal()
    squared_norm = own[:, None] + own + 2 * inner
    alone = cosines.diagonal()
    directional = alone[:, None] + alone + cosines + cosines.T
    similarity = _cosine_sum(directional, squared_norm, scales[:, None] + scales, sizes)
    return similarity - tradeoff * sizes / np.sqrt(samples[:, None] + samples)


def _absorb(values: _Array, first: int, second: int) -> _Array:
    """Add row ``second`` to row ``first`` and take it out."""
    absorbed = np.delete(values, second, axis=0)
    absorbed[first] += values[second]  # first < second: its place has not changed
    return absorbed
