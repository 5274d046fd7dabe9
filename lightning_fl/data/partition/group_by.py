"""Whole groups by a column of the data set."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Size
from lightning_fl.data.partition.groups import WholeGroups
from lightning_fl.data.partition.partitioner import read_column


@dataclass(kw_only=True, eq=False)
class GroupBy(WholeGroups):
    """Whole groups by a column of the data set, such as the assay or the writer.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        num_clients: number of clients to deal the groups to; ``None``: each group is a client with its name.
        ratios: the clients' shares of the samples, one per client; ``None`` for equal ones.
        num_groups: number of groups to use, drawn at random; ``None`` for all.
        min_samples: least number of (training) samples of a group; smaller groups stay unused.

    Example:
        >>> hundred_writers = GroupBy(column="writer", num_groups=100, min_samples=20)
    """

    column: str
    num_groups: Count | None = None
    min_samples: Size = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_groups is not None and self.num_groups < (self.num_clients or 1):
            raise ConfigurationError(
                f"GroupBy.num_groups={self.num_groups} with num_clients={self.num_clients}: must be no less, or null."
            )

    def keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return read_column(dataset, self.column, "GroupBy")

    def _choose(self, groups: list[Any], train: Mapping[Any, int], seed: int) -> list[Any]:
        large = [group for group in groups if train[group] >= self.min_samples]
        if len(large) < (self.num_groups or 1):
            raise DataError(
                f"{len(large)} of {len(groups)} groups have min_samples={self.min_samples} samples for training, but"
                f" {self.num_groups or 1} are needed: lower num_groups or min_samples."
            )
        if self.num_groups is None:
            return large
        drawn = torch.randperm(len(large), generator=generator(seed, "partition", "chosen groups"))[: self.num_groups]
        return [large[index] for index in drawn.sort().values.tolist()]
