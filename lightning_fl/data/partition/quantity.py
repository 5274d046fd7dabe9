"""Random parts of unequal size, in given ratios or in ratios drawn from a Dirichlet distribution."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Positive, checked
from lightning_fl.data.module import Split
from lightning_fl.data.partition.by_size import SizePartitioner
from lightning_fl.data.partition.draws import Concentration, draw_until_enough
from lightning_fl.data.partition.partitioner import name_split
from lightning_fl.data.partition.sizes import apportion
from lightning_fl.functional.dirichlet import sample_dirichlet

__all__ = ["Quantity"]


class Quantity(SizePartitioner):
    """Random parts of unequal size: in given ratios, or in ratios drawn from Dir(alpha, ..., alpha).

    He et al., "FedGraphNN", arXiv:2104.07145 (2021): latent Dirichlet allocation over the sizes, redrawn until each
    client has ``min_samples``.

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
        """Partition one data set, as training data."""
        return self.partition_splits({"train": dataset}, seed)["train"]

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Apply the same ratios to all splits; where they are drawn, they are drawn for the training data."""
        parts = {}
        ratios = self.ratios
        for split, dataset in datasets.items():
            with name_split(split):
                ratios = ratios or self.client_ratios(len(dataset), seed)  # type: ignore[arg-type]
                parts[split] = self._by_ratios(dataset, ratios, seed)
        return parts

    def client_ratios(self, num_samples: int, seed: int) -> list[float]:
        """The clients' ratios for so many training samples; with sum 1 where they are drawn."""
        if self.alpha is None:
            return self.ratios or []
        alpha, rng = self.alpha, generator(seed, "partition", "dirichlet sizes")

        def draw() -> tuple[list[float], int]:
            ratios: list[float] = sample_dirichlet(alpha, self.num_clients, rng).tolist()
            return ratios, min(apportion(num_samples, ratios))

        return draw_until_enough(
            draw,
            num_samples=num_samples,
            num_clients=self.num_clients,
            alpha=alpha,
            min_samples=self.min_samples or 10,
        )

    def describe(self) -> dict[str, Any]:
        """Name and arguments, for the run's record; without ``alpha`` and ``min_samples`` where they are not set."""
        return {
            name: value
            for name, value in super().describe().items()
            if name not in ("alpha", "min_samples") or value is not None
        }
