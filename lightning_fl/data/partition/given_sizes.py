"""Parts of given sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count
from lightning_fl.data.module import Split
from lightning_fl.data.partition.by_size import SizePartitioner
from lightning_fl.data.partition.partitioner import name_split

__all__ = ["Sizes"]


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

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Partition one data set, as training data."""
        return self._by_sizes(dataset, self.train, seed)

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        """Use the sizes for the training data and equal parts for the others."""
        parts, equal = {}, [1.0] * len(self.train)
        for split, dataset in datasets.items():
            with name_split(split):
                parts[split] = self(dataset, seed) if split == "train" else self._by_ratios(dataset, equal, seed)
        return parts
