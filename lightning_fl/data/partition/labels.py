"""Base class of partitions by label: every client holds a number of samples of every class."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.seeding import generator
from lightning_fl.data.module import Split
from lightning_fl.data.partition.classes import check_labels, read_classes
from lightning_fl.data.partition.partitioner import JointPartitioner, name_split

#: Rounding error allowed in a sum of shares.
SUM_TOLERANCE = 1e-5


class LabelPartitioner(JointPartitioner):
    """Base class of partitions by label; real targets are put into ``num_bins`` bins that are the same for all splits.

    What clients hold of every class is drawn for the training data and applied to all splits. ``target`` is the column
    to use of several targets [n, T].
    """

    num_clients: int
    num_bins: int
    target: int | None

    @abstractmethod
    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        """What every client holds of every class, by default its share, [C, N], from the training samples [C]."""

    def counts(self, sizes: Tensor, holdings: Tensor, split: Split) -> Tensor:
        """Samples of every class for every client, int64, shape [C, N], from the samples [C] of every class."""
        return share_counts(sizes, holdings)

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
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


def deal_classes(labels: Tensor, counts: Tensor, seed: int) -> list[Tensor]:
    """Draw a given number of samples of every class for every client, as ascending indices; the rest stays unused.

    ``labels`` are classes ``0..C-1``, int64 [n]; ``counts`` are samples of class c for client i, int64 [C, N].
    """
    rng = generator(seed, "partition", "by_shares")
    parts: list[list[Tensor]] = [[] for _ in range(counts.shape[1])]
    for label, of_class in enumerate(counts.tolist()):
        members = (labels == label).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=rng)][: sum(of_class)]
        for part, chosen in zip(parts, members.split(of_class), strict=True):
            part.append(chosen)
    return [torch.cat(part).sort().values for part in parts]
