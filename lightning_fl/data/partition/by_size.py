"""Base class of partitions into random parts of given sizes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import generator
from lightning_fl.data.partition.classes import check_labels, read_classes
from lightning_fl.data.partition.partitioner import Partitioner
from lightning_fl.data.partition.stratified import stratified_parts
from lightning_fl.data.sizes import apportion

__all__ = ["SizePartitioner"]

#: Bins for stratifying by real targets.
_NUM_BINS = 10


class SizePartitioner(Partitioner):
    """Base class of partitions into random parts of given sizes; samples beyond their sum stay unused."""

    #: Whether every client gets the classes in proportion.
    stratified: bool

    def _by_sizes(self, dataset: Any, sizes: Sequence[int], seed: int) -> list[Tensor]:
        """Parts of these sizes."""
        if sum(sizes) > len(dataset):
            raise DataError(
                f"sizes={list(sizes)}: need {sum(sizes)} samples together, there are {len(dataset)}. Use fewer or"
                " smaller clients."
            )
        if not self.stratified:
            order = torch.randperm(len(dataset), generator=generator(seed, "partition", "quantity"))
            return [part.sort().values for part in order[: sum(sizes)].split(list(sizes))]
        remedy = "set stratified to false, or give one class per sample"
        labels = check_labels(read_classes({"train": dataset}, num_bins=_NUM_BINS, remedy=remedy)["train"])
        return stratified_parts(labels, sizes, generator(seed, "partition", "stratified"))

    def _by_ratios(self, dataset: Dataset, ratios: Sequence[float], seed: int) -> list[Tensor]:
        """Parts in these ratios, of all samples; only the proportions count."""
        num_samples = len(dataset)  # type: ignore[arg-type]
        if len(ratios) > num_samples:
            raise DataError(f"{num_samples} samples for {len(ratios)} clients: use at most {num_samples} clients.")
        sizes = apportion(num_samples, ratios)
        if 0 in sizes:
            raise DataError(
                f"ratios={list(ratios)} leave client {sizes.index(0)} without any of the {num_samples} samples: give"
                " it a larger ratio or use fewer clients."
            )
        return self._by_sizes(dataset, sizes, seed)
