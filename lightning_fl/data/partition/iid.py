"""Random parts of equal size."""

from dataclasses import dataclass, field

from lightning_fl.core.validation import Count
from lightning_fl.data.partition.by_size import SizePartitioner


@dataclass(kw_only=True, eq=False)
class IID(SizePartitioner):
    """Random parts of sizes that differ by at most one.

    Args:
        num_clients: number of clients.
        stratified: every client gets the classes in proportion, as nearly as integers allow (real targets are put into
            ten bins between quantiles).
    """

    num_clients: Count = field()
    stratified: bool = False

    def client_ratios(self, num_samples: int, seed: int) -> list[float]:
        return [1.0] * self.num_clients
