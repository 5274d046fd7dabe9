"""Partitioners by label: who holds which share of which class, in all splits alike."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.module import Split
from lightning_fl.data.partition.labels import (
    by_shares,
    check_type_shares,
    dirichlet_shares,
    pathological_shares,
    type_shares,
)
from lightning_fl.data.partition.partitioner import Partitioner, class_labels, faults_of
from lightning_fl.data.partition.shards import by_shards, check_shards, shard_holdings

__all__ = ["Dirichlet", "FedCollabLabelShift", "LabelTypes", "OneClassShards", "Pathological"]

#: FedCollab's four types of clients: the share of every class's samples that a type holds, over ten classes.
_FEDCOLLAB_SHARES = [
    [0.25, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.0, 0.5, 0.5, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 0.5, 0.5, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.25],
]


class _ByLabel(Partitioner):
    """Goes by the classes of all splits; real targets are put into bins, the same for all splits.

    Args:
        num_clients: number of clients.
        num_bins: bins between quantiles, used where targets are floating.
        target: which of several targets [n, T] to go by.
    """

    def __init__(self, *, num_clients: int, num_bins: int, target: int | None) -> None:
        check_counts(self, num_clients=num_clients, num_bins=num_bins)
        check_counts(self, target=target, at_least=0)
        self.num_clients: int = num_clients
        self.num_bins = num_bins
        self.target = target

    @abstractmethod
    def _partition(self, labels: Mapping[Split, Tensor], num_classes: int, seed: int) -> dict[Split, list[Tensor]]:
        """Partition all splits from their classes [n], the training data's first, integers in ``0..num_classes-1``."""

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Share out every class; see the functions in :mod:`lightning_fl.data.partition`."""
        return self.partition_splits({"train": dataset}, seed)["train"]

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """What clients hold of every class is drawn for the training data and applied to all splits."""
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
        check_numbers(self, alpha=alpha, above=0, mend=" (0.1 very uneven, 100 nearly alike)")
        check_counts(self, min_samples=min_samples)
        self.alpha = alpha
        self.min_samples = min_samples

    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        return dirichlet_shares(
            labels, self.num_clients, self.alpha, seed, num_classes=num_classes, min_samples=self.min_samples
        )


class Pathological(_ByShares):
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
        check_counts(self, classes_per_client=classes_per_client)
        self.classes_per_client = classes_per_client

    def _shares(self, labels: Tensor, num_classes: int, seed: int) -> Tensor:
        return pathological_shares(labels, self.num_clients, self.classes_per_client, seed, num_classes=num_classes)


class LabelTypes(_ByShares):
    """Label shift between types of clients: each type holds given shares of the classes, split among its clients.

    Client i is of type ``i // clients_per_type``. What the shares of a class leave over is nobody's.

    Args:
        shares: for every type the share of every class's samples; a class's shares sum to 1 at most. Real targets are
            put into as many bins between quantiles as there are classes.
        clients_per_type: clients of each type.
        target: which of several targets [n, T] to go by.

    Example:
        >>> two_types = LabelTypes(shares=[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], clients_per_type=3)
        >>> two_types.num_clients
        6
    """

    def __init__(self, *, shares: list[list[float]], clients_per_type: int = 5, target: int | None = None) -> None:
        check_type_shares(shares, clients_per_type, self)
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
                f"{type(self).__name__} shares out the classes 0..{len(shares) - 1}, the data have {fault}: take"
                f" shares for the classes that the data have."
            )
        return shares


class FedCollabLabelShift(LabelTypes):
    """The label shift of FedCollab: four types of clients over ten classes.

    Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning" (FedCollab), ICML 2023,
    https://arxiv.org/abs/2306.06508, section 5.1 and figure 3. Type 0 holds a quarter of class 0 and half of the
    classes 1-3, type 1 half of the classes 1-3 and a quarter of class 4; types 2 and 3 are the same with the classes
    5-9. So the first two types are near each other, the last two likewise, and the two pairs share no class.

    On the 70,000 images of Fashion-MNIST (training and test data pooled) every one of twenty clients holds 2,450.

    Args:
        clients_per_type: clients of each of the four types.
        target: which of several targets [n, T] to go by.
    """

    def __init__(self, *, clients_per_type: int = 5, target: int | None = None) -> None:
        super().__init__(shares=_FEDCOLLAB_SHARES, clients_per_type=clients_per_type, target=target)


class OneClassShards(_ByLabel):
    """Label and quantity shift: shards of one class each, dealt at random to clients in half-normal numbers.

    The CIFAR-10 setting of "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo
    Federated Learning" (HCCT), section 7.1: 100 shards, 10 clients. Every client draws ``|z|``, ``z ~ N(0, scale²)``,
    rounded; one whole number is added to (or taken from) all draws so that with at least one shard each they sum to
    ``num_shards``, the few left over going to random clients, one each. The paper leaves the scale and the rounding
    open.

    Separate validation and test data are dealt in the same shares of classes, in shards as large as they allow.

    Args:
        num_clients: number of clients, at most ``num_shards``.
        num_shards: number of shards.
        scale: the standard deviation of z, in shards: small for nearly equal clients, large for a few big ones;
            ``None`` for the one whose mean draw is ``num_shards / num_clients``.
        shard_size: training samples in a shard, the other samples being nobody's; ``None`` for as many as the classes
            allow. 95 give the paper's 950 samples per client on average.
        num_bins: bins between quantiles, used where targets are floating.
        target: which of several targets [n, T] to go by.
    """

    def __init__(
        self,
        *,
        num_clients: int = 10,
        num_shards: int = 100,
        scale: float | None = None,
        shard_size: int | None = None,
        num_bins: int = 10,
        target: int | None = None,
    ) -> None:
        super().__init__(num_clients=num_clients, num_bins=num_bins, target=target)
        check_shards(num_shards, num_clients, scale=scale, shard_size=shard_size, owner=self)
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
            with faults_of(split):
                parts[split] = by_shards(part, holdings, seed, shard_size=self.shard_size if number == 0 else None)
        return parts
