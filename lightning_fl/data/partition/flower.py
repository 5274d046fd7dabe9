"""Adapter for the partitioners of Flower's flwr-datasets (the extra ``lightning-fl[flower]``)."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError, expect_extra
from lightning_fl.data.module import Split
from lightning_fl.data.partition.classes import read_classes
from lightning_fl.data.partition.partitioner import Partitioner, read_column

_INDEX = "lightning_fl_index"


class FromFlower(Partitioner):
    """Adapter for a partitioner of ``flwr_datasets.partitioner``, with the same partition as there.

    ``partition_by: label`` uses the classes of the samples, any other name a column of the data set. A random
    partitioner without a ``seed`` uses the run's.

    Args:
        partitioner: the class, such as ``DirichletPartitioner``.
        arguments: of its constructor, such as ``{num_partitions: 10, partition_by: label, alpha: 0.5}``.
    """

    def __init__(self, *, partitioner: str, arguments: dict[str, Any] | None = None) -> None:
        expect_extra("flwr_datasets", "flower", "FromFlower")
        self.partitioner = partitioner
        self.arguments = dict(arguments or {})
        by = self.arguments.get("partition_by")
        self.column = None if by == "label" else by
        self._make(0)
        count = self.arguments.get("num_partitions")
        sizes = self.arguments.get("partition_sizes")
        self.num_clients = len(sizes) if count is None and sizes is not None else count

    def _make(self, seed: int) -> Any:
        from flwr_datasets import partitioner as flower

        kinds = [name for name in flower.__all__ if name != "Partitioner" and not name.startswith("Vertical")]
        if self.partitioner not in kinds:
            raise ConfigurationError(f"FromFlower.partitioner={self.partitioner!r}: must be one of {', '.join(kinds)}.")
        kind = getattr(flower, self.partitioner)
        own = {"seed": seed % 2**32} if "seed" in inspect.signature(kind).parameters else {}
        try:
            return kind(**(own | self.arguments))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"FromFlower.arguments do not fit {self.partitioner}: {error}") from error

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        from datasets import Dataset as Table

        flower = self._make(seed)
        columns: dict[str, Any] = {_INDEX: list(range(len(dataset)))}  # type: ignore[arg-type]
        if self.column is not None:
            columns[self.column] = list(read_column(dataset, self.column, "FromFlower"))
        elif self.arguments.get("partition_by") is not None:
            columns["label"] = read_classes({"train": dataset}, num_bins=10)["train"].tolist()
        flower.dataset = Table.from_dict(columns)
        try:
            parts = [flower.load_partition(client)[_INDEX] for client in range(flower.num_partitions)]
        except (ValueError, IndexError, KeyError) as error:
            raise DataError(f"{self.partitioner} of flwr-datasets cannot partition the data: {error}") from error
        if names := getattr(flower, "partition_id_to_natural_id", None):
            self.names = [str(names[client]) for client in range(len(parts))]
        return [torch.tensor(list(part), dtype=torch.long).sort().values for part in parts]

    def partition_splits(self, datasets: Any, seed: int) -> Mapping[Split, Sequence[Tensor]]:
        if len(datasets) > 1:
            raise DataError(f"FromFlower partitions one data set, not {', '.join(datasets)}: set pooled: true.")
        return super().partition_splits(datasets, seed)

    def describe(self) -> dict[str, Any]:
        return {"name": "FromFlower", "partitioner": self.partitioner, "arguments": self.arguments}
