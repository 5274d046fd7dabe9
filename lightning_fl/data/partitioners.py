"""Partitioners for recipes: thin classes over :mod:`lightning_fl.data.partition`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from lightning_fl.data import partition
from lightning_fl.data.module import Split
from lightning_fl.data.partition.labels import check_alpha
from lightning_fl.data.partition.sizes import check_num_clients, check_ratios
from lightning_fl.data.targets import dataset_targets
from lightning_fl.errors import ConfigurationError, DataError

__all__ = ["IID", "Dirichlet", "GroupBy", "Partitioner", "Pathological", "Quantity", "Scaffold"]


class Partitioner(ABC):
    """Shares out the samples of a data set among clients.

    A partitioner of one's own needs :meth:`__call__` only, and ``num_clients`` where it is known beforehand.
    """

    #: Number of clients N; ``None`` where the data tell.
    num_clients: int | None = None
    #: Names of the clients where the partition gives them; set by a call.
    names: list[str] | None = None

    @abstractmethod
    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Ascending sample indices of every client: int64, disjoint, covering the data set."""

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Share out separate data sets for training, validation and test so that a client's parts belong together.

        By default each is partitioned for itself with the same seed; partitions by label or key override this, so that
        a client finds in its test data the classes and groups that it was trained on.

        Args:
            datasets: name of the split to data set, the training data first.
            seed: seed of the partition.

        Raises:
            DataError: if one of them cannot be partitioned; the message names it.
        """
        parts = {}
        for name, dataset in datasets.items():
            try:
                parts[name] = self(dataset, seed)
            except DataError as error:
                raise DataError(f"{name} data: {error}") from error
        return parts

    def describe(self) -> dict[str, Any]:
        """Name and arguments, for the run's record."""
        return {"name": type(self).__name__} | {
            name: value for name, value in vars(self).items() if not name.startswith("_") and name != "names"
        }


class IID(Partitioner):
    """Random parts of equal size.

    Args:
        num_clients: number of clients.
    """

    def __init__(self, *, num_clients: int) -> None:
        check_num_clients(num_clients)
        self.num_clients: int = num_clients

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """See :func:`lightning_fl.data.partition.iid`."""
        return partition.iid(_length(dataset), self.num_clients, seed)


class Quantity(Partitioner):
    """Random parts of unequal size.

    Args:
        ratios: one positive number per client, such as ``[7, 2, 1]``.
    """

    def __init__(self, *, ratios: list[float]) -> None:
        check_ratios(ratios)
        self.num_clients = len(ratios)
        self.ratios = ratios

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """See :func:`lightning_fl.data.partition.quantity`."""
        return partition.quantity(_length(dataset), self.ratios, seed)


class _ByLabel(Partitioner):
    """Shares of classes, drawn for the training data and applied to all splits; real targets are put into bins.

    Args:
        num_clients: number of clients.
        num_bins: bins between quantiles, used where targets are floating.
        target: which of several targets [n, T] to go by.
    """

    def __init__(self, *, num_clients: int, num_bins: int, target: int | None) -> None:
        check_num_clients(num_clients)
        if num_bins < 1:
            raise ConfigurationError(f"num_bins={num_bins}: give at least 1.")
        self.num_clients: int = num_clients
        self.num_bins = num_bins
        self.target = target

    @abstractmethod
    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        """Class shares [C, N] from the training labels [n]."""

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Share out every class; see the functions in :mod:`lightning_fl.data.partition`."""
        return self.partition_splits({"train": dataset}, seed)["train"]

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """One matrix of class shares for all splits (and the same bins)."""
        targets = [self._target(dataset) for dataset in datasets.values()]
        together = torch.cat(targets)
        if together.is_floating_point():
            together = partition.bin_targets(together, self.num_bins)
        labels = together.split([len(part) for part in targets])
        shares = self._shares(labels[0], int(together.max()) + 1, seed)
        return {name: partition.by_shares(part, shares, seed) for name, part in zip(datasets, labels, strict=True)}

    def _target(self, dataset: Dataset) -> Tensor:
        """The targets to go by, shape [n]."""
        targets = dataset_targets(dataset)
        columns = targets.reshape(len(targets), -1)
        if self.target is None and columns.shape[1] != 1:
            raise DataError(
                f"the targets have shape {list(targets.shape)}, which gives no single class per sample: choose one of"
                f" the {columns.shape[1]} columns with target=0..{columns.shape[1] - 1}."
            )
        column = self.target or 0
        if not 0 <= column < columns.shape[1]:
            raise DataError(f"target={column}: the targets have the columns 0..{columns.shape[1] - 1}.")
        return columns[:, column]


class Dirichlet(_ByLabel):
    """Label shift with class shares drawn from a Dirichlet distribution.

    Args:
        num_clients: number of clients.
        alpha: concentration > 0: 0.1 gives clients with few classes, 100 nearly equal ones.
        num_bins: bins between quantiles, used where targets are floating.
        target: which of several targets [n, T] to go by.
        min_samples: least number of (training) samples of a client.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        alpha: float,
        num_bins: int = 10,
        target: int | None = None,
        min_samples: int = 1,
    ) -> None:
        super().__init__(num_clients=num_clients, num_bins=num_bins, target=target)
        check_alpha(alpha)
        if min_samples < 1:
            raise ConfigurationError(f"min_samples={min_samples}: every client needs at least 1.")
        self.alpha = alpha
        self.min_samples = min_samples

    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        return partition.dirichlet_shares(
            labels, self.num_clients, self.alpha, seed, num_classes=num_classes, min_samples=self.min_samples
        )


class Pathological(_ByLabel):
    """Label shift with a fixed number of classes per client.

    Args:
        num_clients: number of clients.
        classes_per_client: number of classes of every client.
        num_bins: bins between quantiles, used where targets are floating.
        target: which of several targets [n, T] to go by.
    """

    def __init__(
        self, *, num_clients: int, classes_per_client: int, num_bins: int = 10, target: int | None = None
    ) -> None:
        super().__init__(num_clients=num_clients, num_bins=num_bins, target=target)
        if classes_per_client < 1:
            raise ConfigurationError(f"classes_per_client={classes_per_client}: give at least 1.")
        self.classes_per_client = classes_per_client

    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        return partition.pathological_shares(
            labels, self.num_clients, self.classes_per_client, seed, num_classes=num_classes
        )


class _ByKey(Partitioner):
    """Whole groups: all splits are dealt together, so that a group has one client everywhere."""

    def __init__(self, *, num_clients: int | None, ratios: list[float] | None) -> None:
        if num_clients is not None:
            check_num_clients(num_clients)
        if ratios is not None:
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
        client_of, num_clients = self._deal(together, seed)
        return {
            name: partition.indices_of_clients([client_of[key] for key in part], num_clients)
            for name, part in keys.items()
        }

    def _deal(self, keys: list[Hashable], seed: int) -> tuple[dict[Hashable, int], int]:
        """The client of every group, and the number of clients."""
        groups = partition.sorted_groups(keys)
        if self.num_clients is None:
            self.names = [str(group) for group in groups]
            return {group: client for client, group in enumerate(groups)}, len(groups)
        return partition.deal_groups(keys, self.num_clients, seed, self.ratios, kind=self._kind), self.num_clients

    _kind = "groups"


class GroupBy(_ByKey):
    """Whole groups by a column of the data set, such as the assay or the writer.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        num_clients: ``None``: each group is a client, named after it. Otherwise groups are dealt to that many clients.
        ratios: the clients' shares of the samples, one positive number each; ``None`` for equal ones.
    """

    def __init__(self, *, column: str, num_clients: int | None = None, ratios: list[float] | None = None) -> None:
        super().__init__(num_clients=num_clients, ratios=ratios)
        self.column = column

    def _keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return _read(
            dataset,
            lambda base: base.column(self.column) if hasattr(base, "column") else None,
            f"has no method column(name) that returns the {self.column!r} of every sample: GroupBy needs one",
        )


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
        smiles = _read(
            dataset,
            lambda base: getattr(base, "smiles", None),
            "has no attribute smiles with the SMILES of every sample: Scaffold needs molecules",
        )
        return partition.murcko_scaffolds(smiles)


def _read(dataset: Any, read: Callable[[Any], Sequence[Any] | None], problem: str) -> Sequence[Any]:
    """One entry per sample, read from the data set, or from the one below a ``Subset``."""
    if type(dataset) is Subset:
        values = _read(dataset.dataset, read, problem)
        return [values[index] for index in dataset.indices]
    found = read(dataset)
    if found is None:
        raise DataError(f"{type(dataset).__name__} {problem}.")
    if len(found) != len(dataset):
        raise DataError(
            f"{type(dataset).__name__} has {len(dataset)} samples but {len(found)} keys to partition by: there must be"
            " one per sample."
        )
    return found


def _length(dataset: Any) -> int:
    return len(dataset)
