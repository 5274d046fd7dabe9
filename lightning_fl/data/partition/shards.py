"""Label and quantity shift: shards of one class each, dealt to clients in half-normal numbers."""

import bisect
import math

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Positive, Size, checked_fields
from lightning_fl.data.module import Split
from lightning_fl.data.partition.labels import LabelPartitioner


@checked_fields
class OneClassShards(LabelPartitioner):
    """Label and quantity shift: shards of one class each, dealt at random to clients in half-normal numbers.

    The CIFAR-10 setting of "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo
    Federated Learning" (HCCT), section 7.1: 100 shards, 10 clients.

    The samples of a class make as many shards as fit; ``num_shards`` of all these are drawn, so that a class's chances
    grow with its samples. Separate validation and test data are dealt in the same class shares, in shards as large as
    they allow.

    The paper leaves the scale of the distribution and the rounding open. Here every client draws ``|z|``,
    ``z ~ N(0, scale²)``, rounded. The same whole number is then added to all draws (or subtracted, leaving each client
    one shard), so that the sum comes as near to ``num_shards`` as it can from below; random clients get the few left
    over, one each.

    Args:
        num_clients: number N of clients, at most ``num_shards``.
        num_shards: number K of shards.
        scale: standard deviation of z, in shards: small for nearly equal clients, large for a few big ones; ``None``
            for ``K/N · √(π/2)``, which makes K/N the mean draw.
        shard_size: training samples in a shard, other samples stay unused; ``None`` for as many as the classes allow.
            95 gives the paper's 950 samples per client on average.
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
    """

    num_clients: Count = 10
    num_shards: Count = 100
    scale: Positive | None = None
    shard_size: Count | None = None
    num_bins: Count = 10
    target: Size | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_shards < self.num_clients:
            raise ConfigurationError(
                f"OneClassShards.num_shards={self.num_shards}: must be at least num_clients={self.num_clients}."
            )

    def shard_counts(self, seed: int) -> Tensor:
        """Numbers of shards of every client, >= 1, with sum ``num_shards``, int64, shape [N]."""
        rng = generator(seed, "partition", "half_normal")
        scale = self.num_shards / self.num_clients * math.sqrt(math.pi / 2) if self.scale is None else self.scale
        draws = (torch.randn(self.num_clients, generator=rng, dtype=torch.float64).abs() * scale).round()
        # Only differences from the largest draw matter, and at most K of them: a client K below has one shard anyway.
        below = (draws - draws.max()).clamp(min=-self.num_shards).long()

        def numbers(level: int) -> Tensor:
            return (below + level).clamp(min=1)

        levels = range(1, self.num_shards + 2)
        level = levels[bisect.bisect_right(levels, self.num_shards, key=lambda level: int(numbers(level).sum())) - 1]
        counts = numbers(level)
        rising = (numbers(level + 1) > counts).nonzero().squeeze(1)
        chosen = torch.randperm(len(rising), generator=rng)[: self.num_shards - int(counts.sum())]
        counts[rising[chosen]] += 1
        return counts

    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        """Shards of class c at client i, int64, shape [C, N], with sum ``num_shards``."""
        shard_size = _largest_size(sizes, self.num_shards) if self.shard_size is None else self.shard_size
        available = sizes // shard_size
        if int(available.sum()) < self.num_shards:
            raise DataError(
                f"num_shards={self.num_shards} of {shard_size} samples of one class, but the data make only"
                f" {int(available.sum())}: use fewer or smaller shards."
            )
        rng = generator(seed, "partition", "shards")
        classes = torch.arange(len(sizes)).repeat_interleave(available)
        dealt = classes[torch.randperm(len(classes), generator=rng)[: self.num_shards]]
        parts = dealt.split(self.shard_counts(seed).tolist())
        return torch.stack([torch.bincount(part, minlength=len(sizes)) for part in parts], dim=1)

    def counts(self, sizes: Tensor, holdings: Tensor, split: Split) -> Tensor:
        """Samples of every class for every client, in shards of ``shard_size``, or as large as all classes allow."""
        if self.shard_size is not None and split == "train":
            return holdings * self.shard_size
        held = holdings.sum(1)
        shard_size = int((sizes[held > 0] // held[held > 0]).min())
        if shard_size == 0:
            label = int((held - sizes).argmax())
            raise DataError(
                f"class {label} has {int(sizes[label])} samples for {int(held[label])} shards: lower num_shards."
            )
        return holdings * shard_size


def _largest_size(sizes: Tensor, num_shards: int) -> int:
    """The largest shard size at which classes of ``sizes`` samples make ``num_shards`` shards; 1 if none does."""
    candidates = range(1, int(sizes.max()) + 1)
    # The number of shards falls with their size: bisect in its negative, which ascends.
    return max(1, bisect.bisect_right(candidates, -num_shards, key=lambda size: -int((sizes // size).sum())))
