"""The mathematics of HCCT: a partition of the clients by the directions of their updates and their data counts.

Sun, Kountouris, Zhang, "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo Federated
Learning", IEEE Transactions on Mobile Computing 2024, https://arxiv.org/abs/2401.13236, algorithm 2 and equations 8 to
20: hierarchical clustering-based collaborative training.

Client n with the update g_n and m_n training samples has in group k the utility ``u_n(k) = U_0 − λ / √m_k + s(g_n,
g_k)``, with the group's samples m_k, its update g_k = Σ_{n in k} (m_n / m_k) g_n and the cosine similarity s. Every
cosine follows from the Gram matrix, since ⟨g_n, g_k⟩ = Σ_j (m_j / m_k) G_nj and ‖g_k‖² is a weighted sum of entries of
G. Only this product, of cost N² P, depends on the number of parameters P; the merging costs O(N²) memory and O(N³) time
and gives exactly the partition of the paper's algorithm, which HCCT-E
(:func:`~lightning_fl.functional.most_discriminative_layer`) approximates.

Differs from the paper: U_0 is 0, as it cancels in every comparison. The cosine with a zero vector is 0 (the paper
leaves it undefined); a client alone has s = 1 even if its update is zero. Not in the paper: ``leave_one_out`` takes
s(g_n, g_{k∖n}), the cosine with the update of the group's other clients. g_k contains g_n, so s(g_n, g_k) is at least
about 1/√|k| even for unrelated updates.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import NonNegative, checked
from lightning_fl.functional.gram import check_gram, float64_columns, gram_matrix, inverse_roots, sample_counts
from lightning_fl.functional.shapes import Integers, check_floating

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
    """Groups, and the merges that formed them."""

    labels: list[int]
    """Group of each client, 0..K-1 in order of first appearance, length N."""
    merges: list[Merge]
    """The merges in their order, at most N - 1."""
    utility: float
    """Total utility of the partition with U_0 = 0."""


def hierarchical_partition(
    updates: Tensor, num_samples: Integers, tradeoff: float, *, leave_one_out: bool = False
) -> list[int]:
    """HCCT's partition of the clients (algorithm 2) by updates g [N, P]; see :func:`partition_from_gram`.

    Example:
        >>> hierarchical_partition(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]), [50, 50, 50], tradeoff=1.0)
        [0, 1, 0]
    """
    return partition_from_gram(gram_matrix(updates), num_samples, tradeoff, leave_one_out=leave_one_out).labels


def partition_from_gram(
    gram: Tensor, num_samples: Integers, tradeoff: float, *, leave_one_out: bool = False
) -> Partition:
    """Merge the two groups with the largest gain in utility until no merge gains.

    Starts with every client alone. Of equal gains the pair of groups with the smallest first clients is merged. Gains
    within rounding of 0 do not count.

    Args:
        gram: G = g gᵀ, shape [N, N]; see :func:`lightning_fl.functional.gram_matrix`.
        num_samples: m, positive, length N.
        tradeoff: λ >= 0; 0 leaves clients with distinct directions alone, a large value merges all.
        leave_one_out: compare a client with the other clients of its group.
    """
    inner, samples = _check(gram, num_samples, tradeoff)
    # Entry [n, j]: ⟨g_n / ‖g_n‖, m_j g_j⟩. Cosines of groups are sums of its blocks.
    cosines = inverse_roots(inner.diagonal())[:, None] * inner * samples
    inner = inner * samples[:, None] * samples
    scales = inner.diagonal().copy()
    own, reach, place = inner.diagonal().copy(), inner.copy(), np.arange(len(samples))
    # Groups are in the order of their smallest client, so that the first of equal gains is taken.
    members: list[tuple[int, ...]] = [(client,) for client in range(len(samples))]
    counts = np.ones(len(samples))
    utilities = 1 - tradeoff / np.sqrt(samples)
    slack = _slack(samples, tradeoff)
    merges: list[Merge] = []
    while len(members) > 1:
        if leave_one_out:
            similarity = _others_similarity(reach, inner, own, scales, place)
        else:
            similarity = _similarity(counts, cosines, inner, scales)
        sizes = counts[:, None] + counts
        merged = similarity - tradeoff * sizes / np.sqrt(samples[:, None] + samples)
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
        reach = _absorb(reach.T, first, second).T
        place = np.where(place == second, first, place - (place > second))
    return Partition(place.tolist(), merges, float(utilities.sum()))


def partition_utility(
    gram: Tensor, num_samples: Integers, tradeoff: float, labels: Sequence[int], *, leave_one_out: bool = False
) -> float:
    """Σ_n u_n(k(n)) of a partition with any labels [N] and U_0 = 0; arguments as in :func:`partition_from_gram`."""
    inner, samples = _check(gram, num_samples, tradeoff)
    if len(labels) != len(samples):
        raise ConfigurationError(f"{len(labels)} labels for {len(samples)} clients: give one label per client.")
    place = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)
    member = np.equal.outer(np.arange(place.max() + 1), place).astype(float)
    inner = inner * samples[:, None] * samples
    own, reach = inner.diagonal().copy(), inner @ member.T
    mine, squared = reach[np.arange(len(place)), place], (member @ reach).diagonal()[place]
    scales = (member @ own)[place]
    if leave_one_out:
        mine, squared = mine - own, squared - 2 * mine + own
    similarity = np.where(member.sum(1)[place] > 1, _cosines(mine, own, squared, scales), 1)
    return float((similarity - tradeoff / np.sqrt(member @ samples)[place]).sum())


@checked
def least_merged_cosine(relative_trade_off: NonNegative, *, leave_one_out: bool = False) -> float:
    """Cosine ρ above which two clients of equal weight and equal length of update merge, from -1 (all do) to 1 (none).

    With c = λ / √m both have s = √((1 + ρ) / 2) together (s = ρ with ``leave_one_out``) and 1 alone, so they merge if
    1 − s < c (1 − 1/√2). From c = 3.414 on (6.828) they merge for every ρ.
    """
    least = 1 - relative_trade_off * (1 - math.sqrt(0.5))
    return max(-1.0, least) if leave_one_out else 2 * max(0.0, least) ** 2 - 1


def join_group(
    gram: Tensor,
    num_samples: Integers,
    tradeoff: float,
    labels: Sequence[int],
    newcomer: int,
    *,
    leave_one_out: bool = False,
) -> list[int]:
    """Add a new client where the total utility gains most; the others keep their labels.

    The newcomer gets the label of the group with the largest ΔU > 0 (of equals the smallest label), or the next free
    label. Arguments are as for :func:`partition_from_gram`, of all clients; its entry of ``labels`` is not read.
    """
    _, samples = _check(gram, num_samples, tradeoff)
    if len(labels) != len(samples) or not 0 <= newcomer < len(samples):
        raise ConfigurationError(f"{len(labels)} labels and newcomer={newcomer} do not fit {len(samples)} clients.")
    used = sorted({labels[client] for client in range(len(samples)) if client != newcomer})
    found = list(labels)
    found[newcomer] = max(used, default=-1) + 1
    # Only the utility of the joined group changes.
    gains = []
    for label in used:
        rows = [client for client in range(len(samples)) if client == newcomer or labels[client] == label]
        part, counts = gram[rows][:, rows], samples[rows].tolist()
        apart = [int(client == newcomer) for client in rows]
        together, without = (
            partition_utility(part, counts, tradeoff, groups, leave_one_out=leave_one_out)
            for groups in ([0] * len(rows), apart)
        )
        gains.append(together - without)
    slack = _slack(samples, tradeoff)
    best = max(gains, default=0.0)
    if best > slack:
        found[newcomer] = next(label for label, gain in zip(used, gains, strict=True) if gain >= best - slack)
    return found


def most_discriminative_layer(updates_by_layer: Mapping[str, Tensor], num_samples: Integers | None = None) -> str:
    """Find the layer with the largest relative variance Σ_n ‖g_n − ḡ‖² / ‖ḡ‖² of the clients' updates (equation 19).

    It is 0 if all updates are equal, infinite if they differ but cancel in the mean. Of equal layers, take the first.

    Args:
        updates_by_layer: update of every client in each layer, floating, shape [N, P_l].
        num_samples: counts m (positive, length N) that weight the mean ḡ, as FedAvg does; ``None`` for the plain mean.
            The sum over clients is unweighted in both cases.
    """
    if not updates_by_layer:
        raise ConfigurationError("updates_by_layer is empty: give at least one layer [N, P_l].")
    num_clients = len(next(iter(updates_by_layer.values())))
    scores: dict[str, float] = {}
    for name, updates in updates_by_layer.items():
        check_floating(f"layer {name!r}", updates, num_clients, updates.shape[-1])
        shares = torch.ones(updates.shape[:1], dtype=torch.float64)
        if num_samples is not None:
            shares = torch.from_numpy(sample_counts(num_samples, len(updates)))
        shares = (shares / shares.sum()).to(updates.device)
        deviation = total = torch.zeros((), dtype=torch.float64, device=updates.device)
        for columns in float64_columns(updates):
            mean = shares @ columns
            total = total + mean.square().sum()
            deviation = deviation + (columns - mean).square_().sum()
        if not torch.isfinite(deviation):
            raise DataError(f"layer {name!r} has an update that is not finite: lower the learning rate.")
        scores[name] = float(deviation / total) if deviation > 0 else 0.0  # infinite for a mean of zero
    return max(scores, key=scores.__getitem__)


@checked
def _check(gram: Tensor, num_samples: Integers, tradeoff: NonNegative) -> tuple[_Array, _Array]:
    inner = check_gram(gram)
    return inner, sample_counts(num_samples, len(inner))


def _slack(samples: _Array, tradeoff: float) -> float:
    return float(_ROUNDING * len(samples) * (1 + tradeoff / np.sqrt(samples.min())))


def _similarity(counts: _Array, cosines: _Array, inner: _Array, scales: _Array) -> _Array:
    """Σ_n s(g_n, g_{a ∪ b}) over the members of both, for all pairs of groups, [K, K]; 0 where their update cancels."""
    sizes = counts[:, None] + counts
    own = inner.diagonal()
    squared_norm = own[:, None] + own + 2 * inner
    alone = cosines.diagonal()
    directional = alone[:, None] + alone + cosines + cosines.T
    nonzero = squared_norm > _ROUNDING * (scales[:, None] + scales)
    similarity = directional / np.sqrt(np.where(nonzero, squared_norm, 1))
    return np.where(nonzero, np.clip(similarity, -sizes, sizes), 0)


def _others_similarity(
    reach: _Array, inner: _Array, own: _Array, scales: _Array, place: npt.NDArray[np.intp]
) -> _Array:
    """As :func:`_similarity`, with the cosines of clients with the other members of both groups.

    ``reach`` is ⟨m_n g_n, Σ_b m_j g_j⟩ [N, K], ``inner`` ⟨Σ_a m_i g_i, Σ_b m_j g_j⟩ [K, K], ``own`` ‖m_n g_n‖² [N],
    ``scales`` Σ_b ‖m_j g_j‖² [K], and ``place`` a client's group [N].
    """
    squares = inner.diagonal()
    home = reach[np.arange(len(place)), place]
    # Remove a client's own part from the inner product and, by ‖x − y‖² = ‖x‖² − 2⟨x, y⟩ + ‖y‖², from the norm.
    mine = home[:, None] + reach - own[:, None]
    squared = squares[place][:, None] + squares + 2 * inner[place] - 2 * (home[:, None] + reach) + own[:, None]
    cosines = _cosines(mine, own[:, None], squared, scales[place][:, None] + scales)
    half: _Array = np.zeros_like(inner)
    np.add.at(half, place, cosines)
    return half + half.T


def _cosines(mine: _Array, own: _Array, squared: _Array, scale: _Array) -> _Array:
    """⟨x, y⟩ / ‖x‖ ‖y‖: 0 where x is zero, or y is rounding of the sum or difference behind it (``scale``)."""
    nonzero = (own > 0) & (squared > _ROUNDING * scale)
    norms = np.sqrt(np.where(nonzero, own, 1)) * np.sqrt(np.where(nonzero, squared, 1))
    return np.where(nonzero, np.clip(mine / norms, -1, 1), 0)


def _absorb(values: _Array, first: int, second: int) -> _Array:
    """Add row ``second`` to row ``first`` and remove it."""
    absorbed = np.delete(values, second, axis=0)
    absorbed[first] += values[second]  # first < second: its place has not changed
    return absorbed
