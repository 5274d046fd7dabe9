"""Random parts: of equal, given or drawn sizes."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Positive, checked_fields
from lightning_fl.data.module import Split
from lightning_fl.data.partition.classes import check_labels, random_parts, read_classes, stratified_parts
from lightning_fl.data.partition.partitioner import Concentration, JointPartitioner, draw_until_enough, name_split
from lightning_fl.data.sizes import apportion
from lightning_fl.functional.drflm import sample_dirichlet

#: Bins for stratifying by real targets.
_NUM_BINS = 10


class SizePartitioner(JointPartitioner):
    """Base class of partitions into random parts of given sizes; samples beyond their sum stay unused."""

    #: Whether every client gets the classes in proportion.
    stratified: bool

    @abstractmethod
    def client_ratios(self, num_samples: int, seed: int) -> Sequence[float]:
        """The clients' ratios of all splits, from the number of training samples; only the proportions count."""

    def client_sizes(self, split: Split, num_samples: int, ratios: Sequence[float]) -> Sequence[int]:
        """The clients' numbers of samples in a split; by default all samples, in these ratios."""
        if len(ratios) > num_samples:
            raise DataError(f"{num_samples} samples for {len(ratios)} clients: use at most {num_samples} clients.")
        sizes = apportion(num_samples, ratios)
        if 0 in sizes:
            raise DataError(f"ratios={list(ratios)} leave client {sizes.index(0)} no sample: raise its ratio.")
        return sizes

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, Sequence[Tensor]]:
        parts: dict[Split, Sequence[Tensor]] = {}
        ratios = None
        for split, dataset in datasets.items():
            with name_split(split):
                num_samples = len(dataset)  # type: ignore[arg-type]
                ratios = ratios or self.client_ratios(num_samples, seed)
                parts[split] = self._draw(dataset, self.client_sizes(split, num_samples, ratios), seed)
        return parts

    def _draw(self, dataset: Any, sizes: Sequence[int], seed: int) -> Sequence[Tensor]:
        if (need := sum(sizes)) > len(dataset):
            raise DataError(f"sizes={list(sizes)} need {need} samples, there are {len(dataset)}: use smaller ones.")
        if not self.stratified:
            return random_parts(len(dataset), sizes, generator(seed, "partition", "quantity"))
        remedy = "set stratified to false, or give one class per sample"
        labels = check_labels(read_classes({"train": dataset}, num_bins=_NUM_BINS, remedy=remedy)["train"])
        return stratified_parts(labels, sizes, generator(seed, "partition", "stratified"))


@checked_fields
class IID(SizePartitioner):
    """Random parts of sizes that differ by at most one.

    Args:
        num_clients: number of clients.
        stratified: every client gets the classes in proportion, as nearly as integers allow (real targets are put into
            ten bins between quantiles).
    """

    num_clients: Count
    stratified: bool = False

    def client_ratios(self, num_samples: int, seed: int) -> list[float]:
        return [1.0] * self.num_clients


@checked_fields
class Sizes(SizePartitioner):
    """Parts of given numbers of training samples; the remaining training samples stay unused.

    Separate validation and test data are divided into equal parts. A split without data of its own is cut from these
    parts, which leaves fewer training samples.

    Args:
        train: training samples of every client, such as ``[2100, 2100, 14]``.
        stratified: every client gets the classes in proportion, as for :class:`IID`.
    """

    train: list[Count]
    stratified: bool = True

    def __post_init__(self) -> None:
        if not self.train:
            raise ConfigurationError("Sizes.train=[]: must have one number per client.")
        self.num_clients = len(self.train)

    def client_ratios(self, num_samples: int, seed: int) -> list[float]:
        return [1.0] * len(self.train)

    def client_sizes(self, split: Split, num_samples: int, ratios: Sequence[float]) -> Sequence[int]:
        return self.train if split == "train" else super().client_sizes(split, num_samples, ratios)


@checked_fields
class Quantity(SizePartitioner):
    """Random parts of unequal size: in given ratios, or in ratios drawn from Dir(alpha, ..., alpha).

    He et al., "FedGraphNN", arXiv:2104.07145 (2021): ratios from Dir, redrawn until each client has ``min_samples``.

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

    ratios: list[Positive] | None = None
    stratified: bool = False
    num_clients: Count | None = None
    alpha: Concentration | None = None
    min_samples: Count | None = None

    def __post_init__(self) -> None:
        drawn = (self.num_clients, self.alpha, self.min_samples)
        is_drawn = self.ratios is None and None not in drawn[:2]
        if not is_drawn and not (self.ratios and drawn == (None, None, None)):
            given = f"{self.ratios} with num_clients={drawn[0]}, alpha={drawn[1]}, min_samples={drawn[2]}"
            raise ConfigurationError(f"Quantity.ratios={given}: give ratios alone, or num_clients and alpha.")
        self.num_clients = self.num_clients or len(self.ratios or [])

    def client_ratios(self, num_samples: int, seed: int) -> list[float]:
        num_clients, alpha = self.num_clients or 0, self.alpha
        if alpha is None:
            return self.ratios or []
        rng = generator(seed, "partition", "dirichlet sizes")

        def draw() -> tuple[list[float], int]:
            ratios: list[float] = sample_dirichlet(alpha, num_clients, rng).tolist()
            return ratios, min(apportion(num_samples, ratios))

        return draw_until_enough(draw, num_samples, num_clients, alpha, self.min_samples or 10)

    def describe(self) -> dict[str, Any]:
        """Name and options, for the run's record; without ``alpha`` and ``min_samples`` where they are not set."""
        unset = {name for name in ("alpha", "min_samples") if getattr(self, name) is None}
        return {name: value for name, value in super().describe().items() if name not in unset}
