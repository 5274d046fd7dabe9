"""Latent Dirichlet allocation over molecular scaffolds, as in FedChem."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Size, checked
from lightning_fl.data.module import Split
from lightning_fl.data.partition.groups import indices_of_clients, murcko_scaffolds, sorted_groups
from lightning_fl.data.partition.partitioner import JointPartitioner, read_smiles
from lightning_fl.data.partition.sizes import Concentration, no_draw
from lightning_fl.functional.dirichlet import sample_dirichlet

__all__ = ["ScaffoldLDA", "group_lda"]

_MAX_DRAWS = 1000


@checked
def group_lda(
    groups: Sequence[Hashable], num_clients: Count, alpha: Concentration, seed: int, *, min_samples: Size = 1
) -> list[Tensor]:
    """Divide every group among the clients in shares drawn from a Dirichlet distribution.

    The groups are visited from the largest to the smallest (ties by name). Each draws shares from
    Dir(alpha, ..., alpha), and each of its samples a client from these. Redrawn until every client has ``min_samples``.

    Args:
        groups: the group of every sample, length n.
        num_clients: N.
        alpha: concentration: small values keep a group at one client, large ones divide it evenly.
        seed: seed of the partition.
        min_samples: least number of samples of a client.

    Returns:
        Ascending indices of every client, int64; together all samples.
    """
    names, sizes = sorted_groups(groups), Counter(groups)
    if num_clients * min_samples > len(groups):
        raise DataError(
            f"{len(groups)} samples for {num_clients} clients with at least {min_samples} each: use at most"
            f" {len(groups) // max(1, min_samples)} clients."
        )
    names.sort(key=lambda name: -sizes[name])
    members: dict[Hashable, list[int]] = {name: [] for name in names}
    for index, group in enumerate(groups):
        members[group].append(index)
    order = [index for name in names for index in members[name]]
    counts = torch.tensor([sizes[name] for name in names])
    rng, smallest = generator(seed, "partition", "group lda"), -1
    for _ in range(_MAX_DRAWS):
        shares = sample_dirichlet(alpha, num_clients, rng, (len(names),)).repeat_interleave(counts, dim=0)
        owners = torch.multinomial(shares, 1, generator=rng)[:, 0]
        fewest = int(torch.bincount(owners, minlength=num_clients).min())
        if fewest >= min_samples:
            client_of = torch.empty(len(groups), dtype=torch.long)
            client_of[torch.tensor(order)] = owners
            return indices_of_clients(client_of.tolist(), num_clients)
        smallest = max(smallest, fewest)
    raise no_draw(_MAX_DRAWS, alpha, num_clients, min_samples, smallest)


class ScaffoldLDA(JointPartitioner):
    """Molecules by scaffold and latent Dirichlet allocation: one number sets how much clients' scaffolds differ.

    Zhu, Luo, White, "Federated learning of molecular properties with graph neural networks in a heterogeneous
    setting", Patterns 3 (2022) 100521 (FedChem, FLIT+), which uses alpha = 0.1 and 1: molecules are grouped by
    Bemis-Murcko scaffold, the groups sorted by size, and each is divided among the clients in shares drawn from
    Dir(alpha). Unlike in :class:`~lightning_fl.data.partition.Scaffold`, a group may be divided.

    Differs from FedChem's code, which cuts a group at the shares rounded down, so that the last client gets nearly all
    scaffolds of a single molecule: here each molecule's client is drawn from the shares of its scaffold.

    Args:
        num_clients: number of clients.
        alpha: concentration: 0.1 keeps most scaffolds at one client, 100 gives nearly equal shares of each.
        min_samples: least number of molecules of a client, over all parts of the data.
    """

    @checked
    def __init__(self, *, num_clients: Count, alpha: Concentration, min_samples: Count = 1) -> None:
        self.num_clients: int = num_clients
        self.alpha = alpha
        self.min_samples = min_samples

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Allocate the molecules of all splits at once by :func:`group_lda`, so that shares of scaffolds agree."""
        scaffolds = [murcko_scaffolds(read_smiles(dataset, "ScaffoldLDA")) for dataset in datasets.values()]
        together = [name for part in scaffolds for name in part]
        parts = group_lda(together, self.num_clients, self.alpha, seed, min_samples=self.min_samples)
        found: dict[Split, list[Tensor]] = {}
        begin = 0
        for split, part in zip(datasets, scaffolds, strict=True):
            end = begin + len(part)
            found[split] = [own[(own >= begin) & (own < end)] - begin for own in parts]
            begin = end
        return found
