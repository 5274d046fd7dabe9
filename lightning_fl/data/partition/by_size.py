"""Base class of partitions into random parts of given sizes."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import generator
from lightning_fl.data.module import Split
from lightning_fl.data.partition.classes import check_labels, read_classes, stratified_parts
from lightning_fl.data.partition.partitioner import JointPartitioner, name_split
from lightning_fl.data.sizes import apportion

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
            raise DataError(
                f"ratios={list(ratios)} leave client {sizes.index(0)} no sample of {num_samples}: give it a"
                " larger ratio, or use fewer clients."
            )
        return sizes

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        parts, ratios = {}, None
        for split, dataset in datasets.items():
            with name_split(split):
                num_samples = len(dataset)  # type: ignore[arg-type]
                ratios = ratios or self.client_ratios(num_samples, seed)
                parts[split] = self._draw(dataset, self.client_sizes(split, num_samples, ratios), seed)
        return parts

    def _draw(self, dataset: Any, sizes: Sequence[int], seed: int) -> list[Tensor]:
        if sum(sizes) > len(dataset):
            raise DataError(
                f"sizes={list(sizes)} need {sum(sizes)} samples, there are {len(dataset)}: use fewer or smaller ones."
            )
        if not self.stratified:
            order = torch.randperm(len(dataset), generator=generator(seed, "partition", "quantity"))
            return [part.sort().values for part in order[: sum(sizes)].split(list(sizes))]
        remedy = "set stratified to false, or give one class per sample"
        labels = check_labels(read_classes({"train": dataset}, num_bins=_NUM_BINS, remedy=remedy)["train"])
        return stratified_parts(labels, sizes, generator(seed, "partition", "stratified"))
