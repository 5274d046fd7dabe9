"""Shards of one class each, dealt to clients in half-normal numbers.

The functions behind :class:`~lightning_fl.data.partition.OneClassShards`, which has the paper and the arguments.
"""

import bisect
import math

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Positive, checked
from lightning_fl.data.partition.labels import by_counts, checked_labels

__all__ = ["by_shards", "check_shards", "half_normal_counts", "one_class_shards", "shard_holdings"]


@checked
def half_normal_counts(num_shards: Count, num_clients: Count, seed: int, *, scale: Positive | None = None) -> Tensor:
    """Numbers of shards per client from a half-normal distribution.

    Every client draws ``|z|``, ``z ~ N(0, scale²)``, rounded. The same whole number is then added to all draws (or
    subtracted, leaving each client one shard), so that the sum comes as near to ``num_shards`` as it can from below;
    random clients get the few left over, one each. A small scale therefore gives nearly equal numbers, a large one
    nearly all shards to a few clients.

    Args:
        num_shards: K, at least one per client.
        num_clients: N.
        seed: seed of the partition.
        scale: standard deviation of z, in shards; ``None`` for ``K/N · √(π/2)``, which makes K/N the mean draw.

    Returns:
        Shards of every client, >= 1, sum K, int64, shape [N].
    """
    check_shards(num_shards, num_clients)
    rng = generator(seed, "partition", "half_normal")
    scale = num_shards / num_clients * math.sqrt(math.pi / 2) if scale is None else scale
    draws = (torch.randn(num_clients, generator=rng, dtype=torch.float64).abs() * scale).round()
    # Only differences from the largest draw matter, and at most K of them: a client K below it has one shard anyway.
    below = (draws - draws.max()).clamp(min=-num_shards).long()

    def numbers(level: int) -> Tensor:
        return (below + level).clamp(min=1)

    levels = range(1, num_shards + 2)
    level = levels[bisect.bisect_right(levels, num_shards, key=lambda level: int(numbers(level).sum())) - 1]
    counts = numbers(level)
    rising = (numbers(level + 1) > counts).nonzero().squeeze(1)
    chosen = torch.randperm(len(rising), generator=rng)[: num_shards - int(counts.sum())]
    counts[rising[chosen]] += 1
    return counts


@checked
def shard_holdings(
    labels: Tensor,
    num_clients: Count,
    num_shards: Count,
    seed: int,
    *,
    scale: Positive | None = None,
    shard_size: Count | None = None,
    num_classes: int | None = None,
) -> Tensor:
    """How many shards of every class each client holds.

    The samples of a class make as many shards as fit; ``num_shards`` of all these are drawn (so that a class's chances
    grow with its samples) and dealt at random in the numbers of :func:`half_normal_counts`. ``num_classes`` is C, by
    default the largest label + 1.

    Returns:
        Shards of class c at client i, int64, shape [C, N], sum K.
    """
    check_shards(num_shards, num_clients)
    labels = checked_labels(labels, num_classes)
    sizes = torch.bincount(labels, minlength=num_classes or 0)
    shard_size = _largest_size(sizes, num_shards) if shard_size is None else shard_size
    available = sizes // shard_size
    if int(available.sum()) < num_shards:
        raise DataError(
            f"num_shards={num_shards} of {shard_size} samples of one class each, but the {len(labels)} samples make"
            f" only {int(available.sum())}: use fewer or smaller shards."
        )
    rng = generator(seed, "partition", "shards")
    classes = torch.arange(len(sizes)).repeat_interleave(available)
    dealt = classes[torch.randperm(len(classes), generator=rng)[:num_shards]]
    counts = half_normal_counts(num_shards, num_clients, seed, scale=scale)
    parts = dealt.split(counts.tolist())
    return torch.stack([torch.bincount(part, minlength=len(sizes)) for part in parts], dim=1)


def by_shards(labels: Tensor, holdings: Tensor, seed: int, *, shard_size: int | None = None) -> list[Tensor]:
    """Give every client samples for its shards; samples in no shard stay unused.

    Args:
        labels: classes ``0..C-1``, integers, shape [n].
        holdings: shards of class c at client i, see :func:`shard_holdings`, shape [C, N].
        seed: seed of the partition.
        shard_size: samples in a shard; ``None`` for as many as all classes allow, so that separate test data give
            every client its class shares.
    """
    if shard_size is None:
        labels = checked_labels(labels, len(holdings))
        held = holdings.sum(1)
        sizes = torch.bincount(labels, minlength=len(holdings))
        shard_size = int((sizes[held > 0] // held[held > 0]).min())
        if shard_size == 0:
            label = int((held - sizes).argmax())
            raise DataError(
                f"class {label} has {int(sizes[label])} samples for {int(held[label])} shards: lower num_shards."
            )
    return by_counts(labels, holdings * shard_size, seed)


def one_class_shards(
    labels: Tensor,
    num_clients: int,
    num_shards: int,
    seed: int,
    *,
    scale: float | None = None,
    shard_size: int | None = None,
) -> list[Tensor]:
    """Partition by :func:`shard_holdings` and :func:`by_shards`."""
    holdings = shard_holdings(labels, num_clients, num_shards, seed, scale=scale, shard_size=shard_size)
    return by_shards(labels, holdings, seed, shard_size=shard_size)


def check_shards(num_shards: int, num_clients: int) -> None:
    """Refuse fewer shards than clients."""
    if num_shards < num_clients:
        raise ConfigurationError(
            f"num_shards={num_shards} for num_clients={num_clients}: must be at least one per client."
        )


def _largest_size(sizes: Tensor, num_shards: int) -> int:
    """The largest shard size at which classes of ``sizes`` samples make ``num_shards`` shards; 1 if none does."""
    candidates = range(1, int(sizes.max()) + 1)
    # The number of shards falls with their size: bisect in its negative, which ascends.
    return max(1, bisect.bisect_right(candidates, -num_shards, key=lambda size: -int((sizes // size).sum())))
