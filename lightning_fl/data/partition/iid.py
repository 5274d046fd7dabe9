"""Random parts of equal size."""

from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.validation import Count, checked
from lightning_fl.data.partition.by_size import SizePartitioner

__all__ = ["IID"]


class IID(SizePartitioner):
    """Random parts of sizes that differ by at most one.

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
        """Partition one data set."""
        return self._by_ratios(dataset, [1.0] * self.num_clients, seed)
