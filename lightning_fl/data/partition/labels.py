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
    """Base class of partitions by label; real targets are put into bins that are the same for all splits.

    What clients hold of every class is drawn for the training data and applied to all splits.

    Attributes:
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
    """

    num_clients: int
    num_bins: int
    target: int | None

    @abstractmethod
    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        """What every client holds of every class, shape [C, N]: by default its share.

        Args:
            sizes: training samples of every class, int64, shape [C].
            seed: seed of the partition.
        """

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
    """Samples of every class for every client: differences of the rounded cumulative shares.

    Args:
        sizes: samples of every class, int64, shape [C].
        shares: >= 0, rows with sums of at most 1, shape [C, N]; the rest of a smaller sum stays unused.

    Returns:
        int64, shape [C, N].
    """
    shares = shares.double()
    ends = (shares.cumsum(1) * sizes[:, None]).round().long()
    whole = shares.sum(1) >= 1 - SUM_TOLERANCE
    ends[whole, -1] = sizes[whole]  # whatever the rounding of the sum
    ends.clamp_(max=sizes[:, None])
    return ends.diff(dim=1, prepend=torch.zeros(len(shares), 1, dtype=torch.long))


def deal_classes(labels: Tensor, counts: Tensor, seed: int) -> list[Tensor]:
    """Draw a given number of samples of every class for every client; the rest stays unused.

    Args:
        labels: classes ``0..C-1``, int64, shape [n].
        counts: samples of class c for client i, rows with sums of at most the class's samples, int64, shape [C, N].
        seed: seed of the partition.

    Returns:
        N ascending index tensors; empty for a client without samples.
    """
    rng = generator(seed, "partition", "by_shares")
    parts: list[list[Tensor]] = [[] for _ in range(counts.shape[1])]
    for label, of_class in enumerate(counts.tolist()):
        members = (labels == label).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=rng)][: sum(of_class)]
        for part, chosen in zip(parts, members.split(of_class), strict=True):
            part.append(chosen)
    return [torch.cat(part).sort().values for part in parts]
