"""Partitioners by label: the share of every class that each client holds, the same in all splits."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.validation import Count, Fraction, Positive, Size, checked
from lightning_fl.data.module import Split
from lightning_fl.data.partition.labels import (
    by_shares,
    check_type_shares,
    dirichlet_shares,
    pathological_shares,
    type_shares,
)
from lightning_fl.data.partition.partitioner import JointPartitioner, class_labels, name_split
from lightning_fl.data.partition.shards import by_shards, check_shards, shard_holdings
from lightning_fl.data.partition.sizes import Concentration

__all__ = ["Dirichlet", "FedCollabLabelShift", "LabelTypes", "OneClassShards", "Pathological"]

#: FedCollab's four types of clients: the share of every class's samples that a type holds, over ten classes.
_FEDCOLLAB_SHARES = [
    [0.25, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.0, 0.5, 0.5, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 0.5, 0.5, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.25],
]


class _ByLabel(JointPartitioner):
    """Partitioner by the classes of all splits; real targets are put into bins that are the same for all splits."""

    def __init__(self, *, num_clients: int, num_bins: int, target: int | None) -> None:
        self.num_clients: int = num_clients
        self.num_bins = num_bins
        self.target = target

    @abstractmethod
    def _partition(self, labels: Mapping[Split, Tensor], num_classes: int, seed: int) -> dict[Split, list[Tensor]]:
        """Partition all splits by their classes [n], integers in ``0..num_classes-1``; the training data come first."""

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Draw what clients hold of every class for the training data and apply it to all splits."""
        labels = class_labels(datasets, num_bins=self.num_bins, target=self.target)
        num_classes = max(int(part.max()) + 1 for part in labels.values() if len(part))
        return self._partition(labels, num_classes, seed)


class _ByShares(_ByLabel):
    """Shares of classes, drawn for the training data and applied to all splits."""

    @abstractmethod
    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        """Class shares [C, N] from the training labels [n]."""

    def _partition(self, labels: Mapping[Split, Tensor], num_classes: int, seed: int) -> dict[Split, list[Tensor]]:
        shares = self._shares(next(iter(labels.values())), num_classes, seed)
        return {split: by_shares(part, shares, seed) for split, part in labels.items()}


class Dirichlet(_ByShares):
    """Label shift with class shares drawn from a Dirichlet distribution.

    Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual classification",
    2019, https://arxiv.org/abs/1909.06335, in the form with proportions per class (Yurochkin et al., ICML 2019).

    Args:
        num_clients: number of clients.
        alpha: concentration α: 0.1 gives clients with few classes, 100 nearly equal ones.
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
        min_samples: least number of (training) samples of a client.
    """

    @checked
    def __init__(
        self,
        *,
        num_clients: Count,
        alpha: Concentration,
        num_bins: Count = 10,
        target: Size | None = None,
        min_samples: Count = 1,
    ) -> None:
        super().__init__(num_clients=num_clients, num_bins=num_bins, target=target)
        self.alpha = alpha
        self.min_samples = min_samples

    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        return dirichlet_shares(
            labels, self.num_clients, self.alpha, seed, num_classes=num_classes, min_samples=self.min_samples
        )


class Pathological(_ByShares):
    """Label shift with a fixed number of classes per client.

    After McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
    section 3, with whole classes instead of shards, so that the number of classes is exact.

    Args:
        num_clients: number of clients.
        classes_per_client: number of classes of every client.
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
    """

    @checked
    def __init__(
        self, *, num_clients: Count, classes_per_client: Count, num_bins: Count = 10, target: Size | None = None
    ) -> None:
        super().__init__(num_clients=num_clients, num_bins=num_bins, target=target)
        self.classes_per_client = classes_per_client

    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        return pathological_shares(labels, self.num_clients, self.classes_per_client, seed, num_classes=num_classes)


class LabelTypes(_ByShares):
    """Label shift between types of clients: each type holds given shares of the classes, split among its clients.

    Client i is of type ``i // clients_per_type``. Samples beyond a class's shares stay unused.

    Args:
        shares: for every type the share of every class's samples; a class's shares sum to at most 1. Real targets are
            put into as many bins between quantiles as there are classes.
        clients_per_type: clients of each type.
        target: the column of several targets [n, T] to use.

    Example:
        >>> two_types = LabelTypes(shares=[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], clients_per_type=3)
        >>> two_types.num_clients
        6
    """

    @checked
    def __init__(
        self, *, shares: list[list[Fraction]], clients_per_type: Count = 5, target: Size | None = None
    ) -> None:
        check_type_shares(shares)
        super().__init__(num_clients=len(shares) * clients_per_type, num_bins=len(shares[0]), target=target)
        self.shares = shares
        self.clients_per_type = clients_per_type

    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        shares = type_shares(self.shares, self.clients_per_type)
        wanted = (shares > 0).any(1)
        held = torch.zeros(max(num_classes, len(shares)), dtype=torch.bool)
        held[labels.unique()] = True
        missing = [label for label in range(len(shares)) if wanted[label] and not held[label]]
        if num_classes > len(shares) or missing:
            fault = f"none of class {missing[0]}" if missing else f"labels up to {num_classes - 1}"
            raise DataError(
                f"{type(self).__name__} has shares for the classes 0..{len(shares) - 1}, the data have {fault}: give"
                f" shares for the classes of the data."
            )
        return shares


class FedCollabLabelShift(LabelTypes):
    """Label shift of FedCollab: four types of clients over ten classes.

    Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning" (FedCollab), ICML 2023,
    https://arxiv.org/abs/2306.06508, section 5.1 and figure 3. Type 0 holds a quarter of class 0 and half of the
    classes 1-3, type 1 half of the classes 1-3 and a quarter of class 4; types 2 and 3 are the same with the classes
    5-9. So the first two types are similar, as are the last two, and the two pairs share no class.

    On the 70,000 images of Fashion-MNIST (training and test data pooled) each of twenty clients holds 2,450.

    Args:
        clients_per_type: clients of each of the four types.
        target: the column of several targets [n, T] to use.
    """

    def __init__(self, *, clients_per_type: Count = 5, target: Size | None = None) -> None:
        super().__init__(shares=_FEDCOLLAB_SHARES, clients_per_type=clients_per_type, target=target)


class OneClassShards(_ByLabel):
    """Label and quantity shift: shards of one class each, dealt at random to clients in half-normal numbers.

    The CIFAR-10 setting of "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo
    Federated Learning" (HCCT), section 7.1: 100 shards, 10 clients. The paper leaves the scale of the distribution and
    the rounding open; see :func:`~lightning_fl.data.partition.half_normal_counts` for the choice made here.

    Separate validation and test data are dealt in the same class shares, in shards as large as they allow.

    Args:
        num_clients: number of clients, at most ``num_shards``.
        num_shards: number of shards.
        scale: standard deviation of the normal distribution, in shards: small for nearly equal clients, large for a
            few big ones; ``None`` for the scale with mean ``num_shards / num_clients``.
        shard_size: training samples in a shard, other samples stay unused; ``None`` for as many as the classes allow.
            95 gives the paper's 950 samples per client on average.
        num_bins: bins between quantiles for real targets.
        target: the column of several targets [n, T] to use.
    """

    @checked
    def __init__(
        self,
        *,
        num_clients: Count = 10,
        num_shards: Count = 100,
        scale: Positive | None = None,
        shard_size: Count | None = None,
        num_bins: Count = 10,
        target: Size | None = None,
    ) -> None:
        super().__init__(num_clients=num_clients, num_bins=num_bins, target=target)
        check_shards(num_shards, num_clients)
        self.num_shards = num_shards
        self.scale = scale
        self.shard_size = shard_size

    def _partition(self, labels: Mapping[Split, Tensor], num_classes: int, seed: int) -> dict[Split, list[Tensor]]:
        holdings = shard_holdings(
            next(iter(labels.values())),
            self.num_clients,
            self.num_shards,
            seed,
            scale=self.scale,
            shard_size=self.shard_size,
            num_classes=num_classes,
        )
        parts = {}
        for number, (split, part) in enumerate(labels.items()):
            with name_split(split):
                parts[split] = by_shards(part, holdings, seed, shard_size=self.shard_size if number == 0 else None)
        return parts
