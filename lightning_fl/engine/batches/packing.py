"""Choice of the pack for a data set."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset, TensorDataset

from lightning_fl.data.graphs import is_graph, is_graph_dataset
from lightning_fl.engine.batches.packs import Pack, TensorPack

__all__ = ["pack_dataset"]


def pack_dataset(dataset: Dataset | Sequence[Any]) -> Pack | None:
    """Pack a ``TensorDataset``, a list of PyG ``Data`` or an ``InMemoryDataset`` without transform.

    Returns:
        ``None`` if samples must be fetched one by one.
    """
    if type(dataset) is TensorDataset:
        return TensorPack(dataset.tensors)
    if is_graph_dataset(dataset) or (isinstance(dataset, list) and dataset and is_graph(dataset[0])):
        from lightning_fl.engine.batches.graph_packs import pack_graphs  # imports PyG

        return pack_graphs(dataset)
    return None
