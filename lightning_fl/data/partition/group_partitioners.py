"""Partitioners by key: whole groups such as assays, writers or molecular scaffolds."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Positive, Size, checked
from lightning_fl.data.module import Split
from lightning_fl.data.partition.groups import (
    check_client_ratios,
    choose_groups,
    deal_groups,
    indices_of_clients,
    murcko_scaffolds,
    sorted_groups,
)
from lightning_fl.data.partition.partitioner import JointPartitioner, read_column, read_smiles

__all__ = ["GroupBy", "Scaffold"]


class _ByKey(JointPartitioner):
    """Partitioner by whole groups; all splits are dealt together, so that a group has the same client in each."""

    _kind = "groups"

    def __init__(self, *, num_clients: int | None, ratios: list[float] | None) -> None:
        if ratios is not None:
            check_client_ratios(ratios, num_clients)
        self.num_clients = num_clients
        self.ratios = ratios

    @abstractmethod
    def _keys(self, dataset: Dataset) -> Sequence[Hashable]:
        """The group of every sample."""

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Deal the groups of all splits at once; see :func:`lightning_fl.data.partition.deal_groups`."""
        keys = {name: list(self._keys(dataset)) for name, dataset in datasets.items()}
        together = [key for part in keys.values() for key in part]
        chosen = self._choose(sorted_groups(together), next(iter(keys.values())), seed)
        client_of, num_clients = self._deal([key for key in together if key in chosen], seed)
        # samples without a client go to one more client, who is then left out
        return {
            name: indices_of_clients([client_of.get(key, num_clients) for key in part], num_clients + 1)[:-1]
            for name, part in keys.items()
        }

    def _choose(self, groups: list[Hashable], train: list[Hashable], seed: int) -> set[Hashable]:
        """The groups to deal, of the groups of all splits; ``train`` has the group of every training sample."""
        return set(groups)

    def _deal(self, keys: list[Hashable], seed: int) -> tuple[dict[Hashable, int], int]:
        """The client of every group, and the number of clients."""
        groups = sorted_groups(keys)
        if self.num_clients is None:
            self.names = [str(group) for group in groups]
            return {group: client for client, group in enumerate(groups)}, len(groups)
        return deal_groups(keys, self.num_clients, seed, self.ratios, kind=self._kind), self.num_clients


class GroupBy(_ByKey):
    """Whole groups by a column of the data set, such as the assay or the writer.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        num_clients: number of clients to deal the groups to; ``None``: each group is a client with its name.
        ratios: the clients' shares of the samples, one per client; ``None`` for equal ones.
        num_groups: number of groups to use, drawn at random; ``None`` for all.
        min_samples: least number of (training) samples of a group; smaller groups stay unused.

    Example:
        >>> hundred_writers = GroupBy(column="writer", num_groups=100, min_samples=20)
    """

    @checked
    def __init__(
        self,
        *,
        column: str,
        num_clients: Count | None = None,
        ratios: list[Positive] | None = None,
        num_groups: Count | None = None,
        min_samples: Size = 0,
    ) -> None:
        super().__init__(num_clients=num_clients, ratios=ratios)
        if num_groups is not None and num_groups < (num_clients or 1):
            raise ConfigurationError(
                f"num_groups={num_groups} with num_clients={num_clients}: must be at least one per client, or null for"
                " all groups."
            )
        self.column = column
        self.num_groups = num_groups
        self.min_samples = min_samples

    def _keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return read_column(dataset, self.column, "GroupBy")

    def _choose(self, groups: list[Hashable], train: list[Hashable], seed: int) -> set[Hashable]:
        counts = Counter(train)
        sizes = {group: counts[group] for group in groups}
        return set(choose_groups(sizes, seed, num_groups=self.num_groups, min_samples=self.min_samples))


class Scaffold(_ByKey):
    """Molecules by Bemis-Murcko scaffold; the data set needs an attribute ``smiles``.

    Molecules of one scaffold stay together. Those without a ring share one (empty) scaffold, often the largest group.

    Args:
        num_clients: number of clients.
        ratios: the clients' shares of the samples, one per client; ``None`` for equal ones.
    """

    _kind = "scaffolds"

    @checked
    def __init__(self, *, num_clients: Count, ratios: list[Positive] | None = None) -> None:
        super().__init__(num_clients=num_clients, ratios=ratios)

    def _keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return murcko_scaffolds(read_smiles(dataset, "Scaffold"))
