"""Partitioners by key: whole groups such as assays, writers or molecular scaffolds."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.module import Split
from lightning_fl.data.partition.groups import (
    choose_groups,
    deal_groups,
    indices_of_clients,
    murcko_scaffolds,
    sorted_groups,
)
from lightning_fl.data.partition.partitioner import Partitioner, read_column, read_smiles
from lightning_fl.data.partition.sizes import check_ratios

__all__ = ["GroupBy", "Scaffold"]


class _ByKey(Partitioner):
    """Whole groups: all splits are dealt together, so that a group has one client everywhere."""

    def __init__(self, *, num_clients: int | None, ratios: list[float] | None) -> None:
        check_counts(self, num_clients=num_clients)
        if ratios is not None:
            check_numbers(self, ratios=ratios, above=0)
            check_ratios(ratios)
            if num_clients is None or len(ratios) != num_clients:
                raise ConfigurationError(
                    f"ratios={ratios} with num_clients={num_clients}: give one ratio per client and the number of"
                    " clients."
                )
        self.num_clients = num_clients
        self.ratios = ratios

    @abstractmethod
    def _keys(self, dataset: Dataset) -> Sequence[Hashable]:
        """The group of every sample."""

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Deal whole groups; see :func:`lightning_fl.data.partition.by_group`."""
        return self.partition_splits({"train": dataset}, seed)["train"]

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """One dealing of the groups of all splits."""
        keys = {name: list(self._keys(dataset)) for name, dataset in datasets.items()}
        together = [key for part in keys.values() for key in part]
        chosen = self._chosen(sorted_groups(together), next(iter(keys.values())), seed)
        client_of, num_clients = self._deal([key for key in together if key in chosen], seed)
        # what belongs to no client is given to one more, who is then left out
        return {
            name: indices_of_clients([client_of.get(key, num_clients) for key in part], num_clients + 1)[:-1]
            for name, part in keys.items()
        }

    def _chosen(self, groups: list[Hashable], train: list[Hashable], seed: int) -> set[Hashable]:
        """The groups to deal; of all splits ``groups``, of the training samples ``train`` are known."""
        return set(groups)

    def _deal(self, keys: list[Hashable], seed: int) -> tuple[dict[Hashable, int], int]:
        """The client of every group, and the number of clients."""
        groups = sorted_groups(keys)
        if self.num_clients is None:
            self.names = [str(group) for group in groups]
            return {group: client for client, group in enumerate(groups)}, len(groups)
        return deal_groups(keys, self.num_clients, seed, self.ratios, kind=self._kind), self.num_clients

    _kind = "groups"


class GroupBy(_ByKey):
    """Whole groups by a column of the data set, such as the assay or the writer.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        num_clients: ``None``: each group is a client, named after it. Otherwise groups are dealt to that many clients.
        ratios: the clients' shares of the samples, one positive number each; ``None`` for equal ones.
        num_groups: use so many groups only, drawn at random; ``None`` for all.
        min_samples: use groups with at least so many (training) samples only.

    Example:
        >>> hundred_writers = GroupBy(column="writer", num_groups=100, min_samples=20)
    """

    def __init__(
        self,
        *,
        column: str,
        num_clients: int | None = None,
        ratios: list[float] | None = None,
        num_groups: int | None = None,
        min_samples: int = 0,
    ) -> None:
        super().__init__(num_clients=num_clients, ratios=ratios)
        check_counts(self, num_groups=num_groups)
        check_counts(self, min_samples=min_samples, at_least=0)
        if num_groups is not None and num_groups < max(1, num_clients or 1):
            raise ConfigurationError(
                f"num_groups={num_groups} with num_clients={num_clients}: give at least one group and one per client,"
                " or null for all groups."
            )
        self.column = column
        self.num_groups = num_groups
        self.min_samples = min_samples

    def _keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return read_column(dataset, self.column, "GroupBy")

    def _chosen(self, groups: list[Hashable], train: list[Hashable], seed: int) -> set[Hashable]:
        counts = Counter(train)
        sizes = {group: counts[group] for group in groups}
        return set(choose_groups(sizes, seed, num_groups=self.num_groups, min_samples=self.min_samples))


class Scaffold(_ByKey):
    """Molecules by Bemis-Murcko scaffold; the data set has an attribute ``smiles``.

    Args:
        num_clients: number of clients.
        ratios: the clients' shares of the samples, one positive number each; ``None`` for equal ones.
    """

    _kind = "scaffolds"

    def __init__(self, *, num_clients: int, ratios: list[float] | None = None) -> None:
        super().__init__(num_clients=num_clients, ratios=ratios)

    def _keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return murcko_scaffolds(read_smiles(dataset, "Scaffold"))
