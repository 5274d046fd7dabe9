"""Partitioners by quantity: equal parts, parts in given ratios, parts of given sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Positive, checked
from lightning_fl.data.module import Split
from lightning_fl.data.partition.labels import by_sizes_stratified
from lightning_fl.data.partition.partitioner import Partitioner, class_labels, name_split
from lightning_fl.data.partition.sizes import Concentration, by_sizes, check_sizes, dirichlet_ratios, quantity_sizes

__all__ = ["IID", "Quantity", "Sizes"]

#: Bins for stratifying by real targets.
_NUM_BINS = 10


class _BySize(Partitioner):
    """Partitioner into parts of sizes that depend on the number of samples; random or stratified."""

    stratified: bool

    def _parts(self, dataset: Dataset, sizes: Sequence[int], seed: int) -> list[Tensor]:
        """Parts of these sizes."""
        if not self.stratified:
            return by_sizes(_length(dataset), sizes, seed)
        labels = class_labels(
            {"train": dataset}, num_bins=_NUM_BINS, remedy="set stratified to false, or give one class per sample"
        )
        return by_sizes_stratified(labels["train"], sizes, seed)


class IID(_BySize):
    """Random parts of equal size.

    Args:
        num_clients: number of clients.
        stratified: every client gets the classes in proportion, as nearly as integers allow (real targets are put into
            ten bins between quantiles).
    """

    @checked
    def __init__(self, *, num_clients: Count, stratified: bool = False) -> None:
        self.stratified = stratified
        self.num_clients: int = num_clients

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Partition one data set; see :func:`lightning_fl.data.partition.iid`."""
        return self._parts(dataset, quantity_sizes(_length(dataset), [1.0] * self.num_clients), seed)


class Quantity(_BySize):
    """Random parts of unequal size: in given ratios, or in ratios drawn from a Dirichlet distribution (FedGraphNN).

    See :func:`~lightning_fl.data.partition.dirichlet_ratios`.

    Args:
        ratios: one number per client, such as ``[7, 2, 1]``; instead of ``num_clients`` and ``alpha``.
        stratified: every client gets the classes in proportion, as for :class:`IID`.
        num_clients: number of clients with drawn ratios; with ``alpha``.
        alpha: concentration of the distribution: small values give one client nearly everything.
        min_samples: least number of (training) samples of a client with drawn ratios; ``None`` for 10.

    Example:
        >>> Quantity(num_clients=4, alpha=0.5).num_clients
        4
    """

    @checked
    def __init__(
        self,
        *,
        ratios: list[Positive] | None = None,
        stratified: bool = False,
        num_clients: Count | None = None,
        alpha: Concentration | None = None,
        min_samples: Count | None = None,
    ) -> None:
        is_given = ratios and num_clients is None and alpha is None and min_samples is None
        is_drawn = ratios is None and num_clients is not None and alpha is not None
        if not (is_given or is_drawn):
            raise ConfigurationError(
                f"Quantity.ratios={ratios} with num_clients={num_clients}, alpha={alpha}, min_samples={min_samples}:"
                " give ratios alone, or num_clients and alpha to draw them."
            )
        self.stratified = stratified
        self.num_clients: int = len(ratios or []) if num_clients is None else num_clients
        self.ratios = ratios
        self.alpha = alpha
        self.min_samples = min_samples

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Partition one data set; see :func:`lightning_fl.data.partition.quantity`."""
        return self.partition_splits({"train": dataset}, seed)["train"]

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Apply the same ratios to all splits; where they are drawn, they are drawn for the training data."""
        parts = {}
        ratios = self.ratios
        for split, dataset in datasets.items():
            with name_split(split):
                if ratios is None:
                    ratios = self._draw_ratios(_length(dataset), seed)
                parts[split] = self._parts(dataset, quantity_sizes(_length(dataset), ratios), seed)
        return parts

    def _draw_ratios(self, num_samples: int, seed: int) -> list[float]:
        assert self.alpha is not None  # given where there are no ratios
        return dirichlet_ratios(num_samples, self.num_clients, self.alpha, seed, min_samples=self.min_samples or 10)

    def describe(self) -> dict[str, Any]:
        """Name and arguments, for the run's record; without ``alpha`` and ``min_samples`` where they are not set."""
        return {
            name: value
            for name, value in super().describe().items()
            if name not in ("alpha", "min_samples") or value is not None
        }


class Sizes(_BySize):
    """Parts of given numbers of training samples; the remaining training samples stay unused.

    Separate validation and test data are divided into equal parts. A split without data of its own is cut from these
    parts, which leaves fewer training samples.

    Args:
        train: training samples of every client, such as ``[2100, 2100, 14]``.
        stratified: every client gets the classes in proportion, as for :class:`IID`.
    """

    @checked
    def __init__(self, *, train: list[Count], stratified: bool = True) -> None:
        check_sizes(train)
        self.stratified = stratified
        self.num_clients = len(train)
        self.train = train

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Partition one data set; see :func:`lightning_fl.data.partition.by_sizes` and ``by_sizes_stratified``."""
        return self._parts(dataset, self.train, seed)

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Use the sizes for the training data and equal parts for the others."""
        equal = IID(num_clients=len(self.train), stratified=self.stratified)
        parts = {}
        for split, dataset in datasets.items():
            with name_split(split):
                parts[split] = self(dataset, seed) if split == "train" else equal(dataset, seed)
        return parts


def _length(dataset: Any) -> int:
    return len(dataset)
