"""Label shift with a fixed number of classes per client."""

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Size, checked_fields
from lightning_fl.data.partition.labels import LabelPartitioner


@checked_fields
class Pathological(LabelPartitioner):
    """Label shift with a fixed number of classes per client.

    After McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
    section 3, with whole classes instead of shards, so that the number of classes is exact. The holders of a class have
    equal shares of it; the numbers of holders of the classes differ by at most one. All clients share a class without
    training samples.

    Args:
        num_clients: number of clients.
        classes_per_client: number of classes of every client; enough for each class to have a holder.
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
    """

    num_clients: Count
    classes_per_client: Count
    num_bins: Count = 10
    target: Size | None = None

    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        """Class shares, float64, shape [C, N]; each row sums to 1."""
        present = sizes.nonzero().squeeze(1)
        fewest_classes = -(-len(present) // self.num_clients)
        if not fewest_classes <= self.classes_per_client <= len(present):
            raise ConfigurationError(
                f"Pathological.classes_per_client={self.classes_per_client}: for {self.num_clients} clients and"
                f" {len(present)} classes it must be from {fewest_classes} to {len(present)}."
            )
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
            raise DataError(
                f"class {label} has {int(sizes[label])} samples for {int(num_holders[label])} clients: use fewer"
                " clients, or a smaller classes_per_client."
            )
        holders[num_holders == 0] = 1.0
        return holders / holders.sum(1, keepdim=True)
