"""Type checks for PyG objects that do not import PyG, so that runs without graphs start faster."""

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from torch_geometric.data import InMemoryDataset
    from torch_geometric.data.data import BaseData
    from torch_geometric.loader.dataloader import Collater


def _pyg_is_imported() -> bool:
    """Whether PyG objects can exist; importing PyG takes a second."""
    return "torch_geometric" in sys.modules


def is_graph(value: object) -> TypeGuard["BaseData"]:
    """Whether a sample or a batch is PyG data."""
    if not _pyg_is_imported():
        return False
    from torch_geometric.data.data import BaseData

    return isinstance(value, BaseData)


def is_graph_dataset(value: object) -> TypeGuard["InMemoryDataset"]:
    """Whether a data set is PyG's ``InMemoryDataset``."""
    if not _pyg_is_imported():
        return False
    from torch_geometric.data import InMemoryDataset

    return isinstance(value, InMemoryDataset)


def is_graph_collater(collate: object) -> TypeGuard["Collater"]:
    """Whether a collation is that of PyG's ``DataLoader``."""
    if not _pyg_is_imported():
        return False
    from torch_geometric.loader.dataloader import Collater

    return type(collate) is Collater
