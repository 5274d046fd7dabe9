"""Partitioners by quantity: equal parts, parts in given ratios, parts of given sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.module import Split
from lightning_fl.data.partition.labels import by_sizes_stratified
from lightning_fl.data.partition.partitioner import Partitioner, class_labels, faults_of
from lightning_fl.data.partition.sizes import by_sizes, check_ratios, check_sizes, dirichlet_ratios, quantity_sizes

__all__ = ["IID", "Quantity", "Sizes"]

#: Bins by which real targets are stratified.
_NUM_BINS = 10


class _BySize(Partitioner):
    """Parts of sizes that follow from the number of samples, at random or stratified.

    Args:
        stratified: every client gets the classes in the proportions of the whole.
    """

    def __init__(self, *, stratified: bool) -> None:
        self.stratified = stratified

    def _parts(self, dataset: Dataset, sizes: Sequence[int], seed: int) -> list[Tensor]:
        """Parts of these sizes."""
        if not self.stratified:
            return by_sizes(_length(dataset), sizes, seed)
        labels = class_labels(
            {"train": dataset}, num_bins=_NUM_BINS, mend="set stratified to false, or give one class per sample"
        )
        return by_sizes_stratified(labels["train"], sizes, seed)


class IID(_BySize):
    """Random parts of equal size.

    Args:
        num_clients: number of clients.
        stratified: every client also gets the classes in the proportions of the whole, as nearly as integers allow
            (real targets are put into ten bins between quantiles).
    """

    def __init__(self, *, num_clients: int, stratified: bool = False) -> None:
        super().__init__(stratified=stratified)
        check_counts(self, num_clients=num_clients)
        self.num_clients: int = num_clients

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """See :func:`lightning_fl.data.partition.iid`."""
        return self._parts(dataset, quantity_sizes(_length(dataset), [1.0] * self.num_clients), seed)


class Quantity(_BySize):
    """Random parts of unequal size: in given ratios, or in ratios drawn from a Dirichlet distribution (FedGraphNN).

    Args:
        ratios: one positive number per client, such as ``[7, 2, 1]``; instead of ``num_clients`` and ``alpha``.
        stratified: every client gets the classes in the proportions of the whole, as for :class:`IID`.
        num_clients: number of clients whose ratios are drawn; with ``alpha``.
        alpha: concentration > 0 of the distribution: small values give one client nearly everything.
        min_samples: least number of (training) samples of a client whose ratio is drawn; ``None`` for 10.

    Example:
        >>> Quantity(num_clients=4, alpha=0.5).num_clients
        4
    """

    def __init__(
        self,
        *,
        ratios: list[float] | None = None,
        stratified: bool = False,
        num_clients: int | None = None,
        alpha: float | None = None,
        min_samples: int | None = None,
    ) -> None:
        super().__init__(stratified=stratified)
        check_numbers(self, ratios=ratios, above=0)
        check_counts(self, num_clients=num_clients, min_samples=min_samples)
        check_numbers(self, alpha=alpha, above=0)
        drawn = [value is not None for value in (num_clients, alpha)]
        if not all(drawn) and (ratios is None or any(drawn) or min_samples is not None):
            raise ConfigurationError(
                f"Quantity.ratios={ratios} with num_clients={num_clients}, alpha={alpha}, min_samples={min_samples}:"
                " give ratios alone, or num_clients and alpha to draw them."
            )
        if ratios is not None and all(drawn):
            raise ConfigurationError(
                f"Quantity.ratios={ratios} and alpha={alpha}: give one of them, the ratios or how they are drawn."
            )
        if ratios is not None:
            check_ratios(ratios)
        self.num_clients: int = len(ratios or []) if num_clients is None else num_clients
        self.ratios = ratios
        self.alpha = alpha
        self.min_samples = min_samples

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """See :func:`lightning_fl.data.partition.quantity`."""
        return self._parts(dataset, quantity_sizes(_length(dataset), self._ratios_for(dataset, seed)), seed)

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """The same ratios in all splits; where they are drawn, for the training data."""
        parts = {}
        ratios: list[float] = []
        for split, dataset in datasets.items():
            with faults_of(split):
                ratios = ratios or self._ratios_for(dataset, seed)
                parts[split] = self._parts(dataset, quantity_sizes(_length(dataset), ratios), seed)
        return parts

    def _ratios_for(self, dataset: Dataset, seed: int) -> list[float]:
        if self.alpha is None:
            assert self.ratios is not None
            return self.ratios
        least = 10 if self.min_samples is None else self.min_samples
        return dirichlet_ratios(_length(dataset), self.num_clients, self.alpha, seed, min_samples=least)

    def describe(self) -> dict[str, Any]:
        """Name and the arguments that are given, for the run's record."""
        told = super().describe()
        drawn = ("alpha", "min_samples")
        return {name: value for name, value in told.items() if name not in drawn or value is not None}


class Sizes(_BySize):
    """Parts of given numbers of training samples; what remains of the training data is nobody's.

    Separate validation and test data are shared out in equal parts. A split without data of its own is cut from these
    parts, so that fewer training samples are left then.

    Args:
        train: samples of the training data for every client, each at least 1, such as ``[2100, 2100, 14]``.
        stratified: every client gets the classes in the proportions of the whole, as for :class:`IID`.
    """

    def __init__(self, *, train: list[int], stratified: bool = True) -> None:
        super().__init__(stratified=stratified)
        check_counts(self, train=train)
        check_sizes(train)
        self.num_clients = len(train)
        self.train = train

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """See :func:`lightning_fl.data.partition.by_sizes` and ``by_sizes_stratified`` there."""
        return self._parts(dataset, self.train, seed)

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """The sizes for the training data, equal parts of the others."""
        equal = IID(num_clients=len(self.train), stratified=self.stratified)
        parts = {}
        for split, dataset in datasets.items():
            with faults_of(split):
                parts[split] = self(dataset, seed) if split == "train" else equal(dataset, seed)
        return parts


def _length(dataset: Any) -> int:
    return len(dataset)
