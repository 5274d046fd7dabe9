"""Parts of given sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count
from lightning_fl.data.module import Split
from lightning_fl.data.partition.by_size import SizePartitioner


@dataclass(kw_only=True, eq=False)
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
        super().__post_init__()
        if not self.train:
            raise ConfigurationError("Sizes.train=[]: must have one number per client.")
        self.num_clients = len(self.train)

    def client_ratios(self, num_samples: int, seed: int) -> list[float]:
        return [1.0] * len(self.train)

    def client_sizes(self, split: Split, num_samples: int, ratios: Sequence[float]) -> Sequence[int]:
        return self.train if split == "train" else super().client_sizes(split, num_samples, ratios)
