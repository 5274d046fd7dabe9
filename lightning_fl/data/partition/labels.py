"""Partitions by label: every client holds a number of samples of every class."""

import bisect
import math
from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Fraction, Positive, Size, checked_fields
from lightning_fl.data.module import Split
from lightning_fl.data.partition.classes import check_labels, read_classes
from lightning_fl.data.partition.partitioner import (
    ClientParts,
    Concentration,
    JointPartitioner,
    draw_until_enough,
    name_split,
)
from lightning_fl.functional.drflm import sample_dirichlet

#: Rounding error allowed in a sum of shares.
SUM_TOLERANCE = 1e-5


class LabelPartitioner(JointPartitioner):
    """Base class of partitions by label; real targets are put into ``num_bins`` bins that are the same for all splits.

    What clients hold of every class is drawn for the training data and applied to all splits.

    Args:
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
    """

    num_clients: int
    num_bins: int
    target: int | None

    @abstractmethod
    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        """What clients hold of every class, by default shares, float64 [C, N], from the training samples [C]."""

    def counts(self, sizes: Tensor, holdings: Tensor, split: Split) -> Tensor:
        """Samples of every class for every client, int64, shape [C, N], from the samples [C] of every class."""
        return share_counts(sizes, holdings)

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, ClientParts]:
        labels = read_classes(datasets, num_bins=self.num_bins, target=self.target)
        for split, part in labels.items():
            with name_split(split):
                labels[split] = check_labels(part)
        num_classes = max(int(part.max()) + 1 for part in labels.values())
        holdings = self.holdings(torch.bincount(next(iter(labels.values())), minlength=num_classes), seed)
        parts = {}
        for split, part in labels.items():
            with name_split(split):
                sizes = torch.bincount(part, minlength=len(holdings))
                parts[split] = deal_classes(part, self.counts(sizes, holdings, split), seed)
        return parts


def share_counts(sizes: Tensor, shares: Tensor) -> Tensor:
    """Samples of every class for every client, int64 [C, N]: differences of the rounded cumulative shares.

    ``sizes`` are the samples of every class, int64 [C]; ``shares`` [C, N] have rows with sums of at most 1, and the
    rest of a smaller sum stays unused.
    """
    shares = shares.double()
    ends = (shares.cumsum(1) * sizes[:, None]).round().long()
    whole = shares.sum(1) >= 1 - SUM_TOLERANCE
    ends[whole, -1] = sizes[whole]  # whatever the rounding of the sum
    ends.clamp_(max=sizes[:, None])
    return ends.diff(dim=1, prepend=torch.zeros(len(shares), 1, dtype=torch.long))


def deal_classes(labels: Tensor, counts: Tensor, seed: int) -> ClientParts:
    """Draw a given number of samples of every class for every client, as ascending indices; the rest stays unused.

    ``labels`` are classes ``0..C-1``, int64 [n]; ``counts`` are samples of class c for client i, int64 [C, N].
    """
    rng = generator(seed, "partition", "by_shares")
    clients = torch.arange(counts.shape[1])
    owners = torch.full((len(labels),), len(clients))
    for label, of_class in enumerate(counts):
        members = (labels == label).nonzero().squeeze(1)
        drawn = torch.randperm(len(members), generator=rng)[: int(of_class.sum())]
        owners[members[drawn]] = clients.repeat_interleave(of_class)
    return ClientParts.by_owner(owners, len(clients))


@checked_fields
class Dirichlet(LabelPartitioner):
    """Label shift with class shares drawn from a Dirichlet distribution.

    Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual classification",
    2019, https://arxiv.org/abs/1909.06335, in the form with proportions per class (Yurochkin et al., ICML 2019): the
    clients' shares of every class are one draw from Dir(α, ..., α), redrawn until every client has ``min_samples``.

    Args:
        num_clients: number of clients.
        alpha: concentration α: 0.1 gives clients with few classes, 100 nearly equal ones.
        min_samples: least number of (training) samples of a client.
    """

    num_clients: Count
    alpha: Concentration
    num_bins: Count = 10
    target: Size | None = None
    min_samples: Count = 1

    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        rng = generator(seed, "partition", "dirichlet")

        def draw() -> tuple[Tensor, int]:
            shares = sample_dirichlet(self.alpha, self.num_clients, rng, (len(sizes),))
            return shares, int(share_counts(sizes, shares).sum(0).min())

        return draw_until_enough(draw, int(sizes.sum()), self.num_clients, self.alpha, self.min_samples)


@checked_fields
class Pathological(LabelPartitioner):
    """Label shift with a fixed number of classes per client.

    After McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
    section 3, with whole classes instead of shards, so that the number of classes is exact. The holders of a class have
    equal shares; numbers of holders differ by at most one. A class without training samples is shared by all clients.

    Args:
        num_clients: number of clients.
        classes_per_client: number of classes of every client; enough for each class to have a holder.
    """

    num_clients: Count
    classes_per_client: Count
    num_bins: Count = 10
    target: Size | None = None

    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        present = sizes.nonzero().squeeze(1)
        fewest_classes = -(-len(present) // self.num_clients)
        if not fewest_classes <= self.classes_per_client <= len(present):
            option = f"Pathological.classes_per_client={self.classes_per_client} with {self.num_clients} clients"
            raise ConfigurationError(f"{option}: must be {fewest_classes} to {len(present)}, the number of classes.")
        rng = generator(seed, "partition", "pathological")
        holders = torch.zeros(len(sizes), self.num_clients, dtype=torch.float64)
        num_holders = torch.zeros(len(sizes), dtype=torch.long)
        for client in range(self.num_clients):
            # The classes with the fewest holders, ties in random order.
            shuffled = present[torch.randperm(len(present), generator=rng)]
            chosen = shuffled[num_holders[shuffled].argsort(stable=True)][: self.classes_per_client]
            holders[chosen, client] = 1.0
            num_holders[chosen] += 1
        if (short := (sizes < num_holders).nonzero()).numel():
            label = int(short[0])
            what = f"class {label} has {int(sizes[label])} samples for {int(num_holders[label])} clients"
            raise DataError(f"{what}: use fewer clients, or a smaller classes_per_client.")
        holders[num_holders == 0] = 1.0
        return holders / holders.sum(1, keepdim=True)


#: FedCollab's four types of clients: the share of every class's samples that a type holds, over ten classes.
_FEDCOLLAB_SHARES = [
    [0.25, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.0, 0.5, 0.5, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 0.5, 0.5, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.25],
]


@checked_fields
class LabelTypes(LabelPartitioner):
    """Label shift between types of clients: a type's share of a class is split evenly among its clients.

    Client i is of type ``i // clients_per_type``. Samples beyond a class's shares stay unused.

    Args:
        shares: for every type the share of every class's samples; a class's shares sum to at most 1. Real targets are
            put into as many bins between quantiles as there are classes.
        clients_per_type: clients of each type.

    Example:
        >>> two_types = LabelTypes(shares=[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], clients_per_type=3)
        >>> two_types.num_clients
        6
    """

    shares: list[list[Fraction]]
    clients_per_type: Count = 5
    target: Size | None = None

    def __post_init__(self) -> None:
        shares = self.shares
        if not shares or not shares[0] or len({len(of_type) for of_type in shares}) > 1:
            raise ConfigurationError(f"shares={shares}: must have one list per type, each with one share per class.")
        for number, of_type in enumerate(shares):
            if not any(of_type):
                raise ConfigurationError(f"shares[{number}]={of_type}: must have a share above 0.")
        for label, of_class in enumerate(zip(*shares, strict=True)):
            if (total := math.fsum(of_class)) > 1 + SUM_TOLERANCE:
                raise ConfigurationError(f"shares of class {label}, {list(of_class)}, sum to {total:g}, above 1.")
        self.num_clients, self.num_bins = len(shares) * self.clients_per_type, len(shares[0])

    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        matrix = torch.tensor(self.shares, dtype=torch.float64)
        shares = (matrix / self.clients_per_type).repeat_interleave(self.clients_per_type, dim=0).T.contiguous()
        held = set(sizes.nonzero().flatten().tolist())
        missing = [label for label, row in enumerate(shares) if row.any() and label not in held]
        if len(sizes) > len(shares) or missing:
            fault = f"none of class {missing[0]}" if missing else f"labels up to {len(sizes) - 1}"
            known = f"{type(self).__name__} has shares for classes 0..{len(shares) - 1}"
            raise DataError(f"{known}, the data have {fault}: give shares for these classes.")
        return shares


class FedCollabLabelShift(LabelTypes):
    """Label shift of FedCollab: four types of clients over ten classes.

    Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning" (FedCollab), ICML 2023,
    https://arxiv.org/abs/2306.06508, section 5.1 and figure 3. Type 0 holds a quarter of class 0 and half of the
    classes 1-3, type 1 half of the classes 1-3 and a quarter of class 4; types 2 and 3 are the same with the classes
    5-9. So the first two types are similar, as are the last two, and the two pairs share no class.

    On the 70,000 images of Fashion-MNIST (training and test data pooled) each of twenty clients holds 2,450.
    """

    def __init__(self, *, clients_per_type: Count = 5, target: Size | None = None) -> None:
        super().__init__(shares=_FEDCOLLAB_SHARES, clients_per_type=clients_per_type, target=target)


@checked_fields
class OneClassShards(LabelPartitioner):
    """Label and quantity shift: shards of one class each, dealt at random to clients in half-normal numbers.

    The CIFAR-10 setting of "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo
    Federated Learning" (HCCT), section 7.1: 100 shards, 10 clients.

    The samples of a class make as many shards as fit; ``num_shards`` of all these are drawn, so that a class's chances
    grow with its samples. Separate validation and test data are dealt in the same class shares.

    The paper leaves the scale of the distribution and the rounding open. Here every client draws ``|z|``,
    ``z ~ N(0, scale²)``, rounded. The same whole number is then added to all draws (or subtracted, leaving each client
    one shard), so that the sum just stays within ``num_shards``; shards left over go to random clients, one each.

    Args:
        num_clients: number N of clients, at most ``num_shards``.
        num_shards: number K of shards.
        scale: standard deviation of z, in shards: small for nearly equal clients, large for a few big ones; ``None``
            for ``K/N · √(π/2)``, which makes K/N the mean draw.
        shard_size: training samples in a shard, other samples stay unused; ``None`` for as many as the classes allow.
            95 gives the paper's 950 samples per client on average.
    """

    num_clients: Count = 10
    num_shards: Count = 100
    scale: Positive | None = None
    shard_size: Count | None = None
    num_bins: Count = 10
    target: Size | None = None

    def __post_init__(self) -> None:
        if self.num_shards < self.num_clients:
            raise ConfigurationError(f"num_shards={self.num_shards}: must be at least num_clients={self.num_clients}.")

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
        if (most := int(available.sum())) < self.num_shards:
            what = f"num_shards={self.num_shards} of {shard_size} samples of one class, but the data make only {most}"
            raise DataError(f"{what}: use fewer or smaller shards.")
        rng = generator(seed, "partition", "shards")
        classes = torch.arange(len(sizes)).repeat_interleave(available)
        dealt = classes[torch.randperm(len(classes), generator=rng)[: self.num_shards]]
        parts = dealt.split(self.shard_counts(seed).tolist())
        return torch.stack([torch.bincount(part, minlength=len(sizes)) for part in parts], dim=1)

    def counts(self, sizes: Tensor, holdings: Tensor, split: Split) -> Tensor:
        if self.shard_size is not None and split == "train":
            return holdings * self.shard_size
        held = holdings.sum(1)
        shard_size = int((sizes[held > 0] // held[held > 0]).min())
        if shard_size == 0:
            label = int((held - sizes).argmax())
            raise DataError(f"class {label} has {sizes[label]} samples for {held[label]} shards: lower num_shards.")
        return holdings * shard_size


def _largest_size(sizes: Tensor, num_shards: int) -> int:
    """The largest shard size at which classes of ``sizes`` samples make ``num_shards`` shards; 1 if none does."""
    candidates = range(1, int(sizes.max()) + 1)
    # The number of shards falls with their size: bisect in its negative, which ascends.
    return max(1, bisect.bisect_right(candidates, -num_shards, key=lambda size: -int((sizes // size).sum())))
