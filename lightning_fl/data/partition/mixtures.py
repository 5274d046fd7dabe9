"""Mixtures of two distributions: every client holds a share of D_A and the rest of D_B, all clients equally much.

The heterogeneous clients of FedSoft and PI-FL: Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with
Proximal Local Updating", AAAI 2022, https://arxiv.org/abs/2112.06053; Khan et al., PI-FL, 2023,
https://arxiv.org/abs/2304.07514, section 4.1.

In PI-FL's experiments on images a client is tested on the inverse of its training distribution: with a share a of D_A
among its training samples, 1 - a among its test samples.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, checked
from lightning_fl.data.partition.labels import by_counts
from lightning_fl.data.partition.sizes import split_sizes

__all__ = ["by_mixture", "check_mixture", "largest_mixture", "mixture_counts", "mixture_share", "mixture_shares"]

#: Rounding error allowed in products of shares and sizes.
_TOLERANCE = 1e-9


@checked
def mixture_shares(mixture: str, num_clients: Count, seed: int) -> Tensor:
    """Every client's share of D_A.

    ============  ====================================================================================
    ``"10:90"``   p:q, two percentages: q % for the first half of the clients, p % for the others
    ``"linear"``  (k + 1/2) / N for client k of N: (0.5 + k) % for a hundred clients
    ``"random"``  drawn uniformly from 0 to 1 for each client independently, the same for every N
    ============  ====================================================================================

    Args:
        mixture: one of these; any p and q >= 0 that add to 100.
        num_clients: N. If it is odd, the first half is the larger.
        seed: seed of the partition, used by ``"random"``.

    Returns:
        Shares from 0 to 1, float64, shape [N].

    >>> mixture_shares("10:90", 4, 0).tolist()
    [0.9, 0.9, 0.1, 0.1]
    """
    shares = [mixture_share(mixture, client, num_clients, seed) for client in range(num_clients)]
    return torch.tensor(shares, dtype=torch.float64)


def mixture_share(mixture: str, client: int, num_clients: int, seed: int) -> float:
    """One client's share of D_A; see :func:`mixture_shares`."""
    percentages = check_mixture(mixture)
    if percentages is not None:
        p, q = percentages
        return (q if 2 * client < num_clients else p) / 100
    if mixture == "linear":
        return (client + 0.5) / num_clients
    rng = generator(seed, "partition", "mixture", client)
    return float(torch.rand((), generator=rng, dtype=torch.float64))


def check_mixture(mixture: str) -> tuple[float, float] | None:
    """The percentages p and q of a mixture ``"p:q"``, or ``None`` for ``"linear"`` and ``"random"``."""
    if mixture in ("linear", "random"):
        return None
    try:
        p, q = map(float, mixture.split(":"))
    except ValueError:
        p = q = -1.0
    if p >= 0 and q >= 0 and abs(p + q - 100) < _TOLERANCE:
        return p, q
    raise ConfigurationError(
        f"mixture={mixture!r}: must be linear, random, or two percentages of at least 0 that add to 100, such as"
        " '10:90'."
    )


def mixture_counts(shares: Tensor, sizes: Sequence[int], inverted: Sequence[bool]) -> Tensor:
    """Numbers of samples of D_A and D_B in each part of every client.

    A part of m samples has a·m of D_A, rounded to the nearest whole number; halves go to the distribution with the
    larger share, or to D_A if both are equal. An inverted part swaps the two numbers, so that it mirrors a part of the
    same size exactly.

    Args:
        shares: share a of D_A for every client, from 0 to 1, float64, shape [N].
        sizes: samples of every part, the same for all clients.
        inverted: for every part, whether its mixture is the inverse.

    Returns:
        int64, shape [2, N, parts]; D_A first.

    >>> mixture_counts(mixture_shares("10:90", 2, 0), [10, 5], [False, True])[0].tolist()  # of D_A
    [[9, 0], [1, 5]]
    """
    size = torch.tensor(sizes, dtype=torch.long)
    exact = shares.double()[:, None] * size
    upwards = (exact + 0.5 + _TOLERANCE).floor()
    downwards = (exact - 0.5 - _TOLERANCE).ceil()
    counts = torch.where(shares[:, None] >= 0.5, upwards, downwards).long()
    of_a = torch.where(torch.tensor(inverted), size - counts, counts)
    return torch.stack([of_a, size - of_a])


def largest_mixture(
    available: Sequence[int], shares: Tensor, fractions: Sequence[float], inverted: Sequence[bool]
) -> int:
    """The largest number of samples per client for which no sample is needed twice.

    Found by trying, downwards from the samples divided by the clients: because of rounding, the numbers needed do not
    always grow with the size, so there is no formula.

    Args:
        available: samples of D_A and of D_B.
        shares: share of D_A for every client, shape [N].
        fractions: the parts' shares of a client's samples, with sum 1; see
            :func:`~lightning_fl.data.partition.sizes.split_sizes`.
        inverted: for every part, whether its mixture is the inverse.

    Returns:
        The number; 0 if there is none.
    """
    limit = torch.tensor(available)
    for size in range(sum(available) // len(shares), 0, -1):
        if (_needed(size, shares, fractions, inverted) <= limit).all():
            return size
    return 0


def by_mixture(
    of_b: Tensor,
    shares: Tensor,
    seed: int,
    *,
    fractions: Sequence[float] = (1.0,),
    inverted: Sequence[bool] = (False,),
    samples_per_client: int | None = None,
) -> list[list[Tensor]]:
    """Deal the samples of two distributions to clients of equal size, each in its mixture, in parts.

    Within a distribution, samples (and so their classes) are drawn at random. Samples left over stay unused.

    Args:
        of_b: 0 for a sample of D_A, 1 for D_B, 2 for neither, integers, shape [n].
        shares: share of D_A for every client, from 0 to 1, shape [N].
        seed: seed of the partition.
        fractions: shares of a client's samples in each of its parts, with sum 1.
        inverted: for every part, whether its mixture is the inverse.
        samples_per_client: samples of a client, all parts together; ``None`` for the largest possible number.

    Returns:
        For every part, one ascending index tensor per client.
    """
    counts = torch.bincount(of_b, minlength=3)
    available = counts[:2].tolist()
    if 0 in available:
        raise DataError(
            f"distribution {'AB'[available.index(0)]} has none of the {len(of_b)} samples: choose classes or values so"
            " that both have some."
        )
    size = samples_per_client
    if size is None:
        size = largest_mixture(available, shares, fractions, inverted)
    needed = _needed(max(size, 1), shares, fractions, inverted).tolist()
    if size == 0 or any(need > have for need, have in zip(needed, available, strict=True)):
        raise DataError(
            f"{len(shares)} clients with {max(size, 1)} samples each need {needed[0]} samples of distribution A and"
            f" {needed[1]} of B, there are {available[0]} and {available[1]}: use fewer clients"
            f"{' or samples_per_client' if samples_per_client else ''}."
        )
    wanted = mixture_counts(shares, split_sizes(size, fractions), inverted)  # [2, N, parts]
    table = torch.cat([wanted.flatten(1), torch.zeros(1, wanted[0].numel(), dtype=torch.long)])
    dealt = by_counts(of_b, table, seed)  # client by client, each part after part
    return [dealt[part :: len(fractions)] for part in range(len(fractions))]


def _needed(size: int, shares: Tensor, fractions: Sequence[float], inverted: Sequence[bool]) -> Tensor:
    """Samples of D_A and of D_B that clients of this size need together, shape [2]."""
    return mixture_counts(shares, split_sizes(size, fractions), inverted).sum((1, 2))
