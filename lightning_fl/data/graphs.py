"""Type checks for PyG objects that do not import PyG, so that runs without graphs start faster."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from torch_geometric.data import InMemoryDataset
    from torch_geometric.data.data import BaseData
    from torch_geometric.loader.dataloader import Collater


def _is(value: object, module: str, name: str) -> bool:
    """Whether a value is of a class of PyG; false, without the slow import, as long as PyG is not imported."""
    return "torch_geometric" in sys.modules and isinstance(value, getattr(import_module(module), name))


def is_graph(value: object) -> TypeGuard["BaseData"]:
    """Whether a sample or a batch is PyG data."""
    return _is(value, "torch_geometric.data.data", "BaseData")


def is_graph_dataset(value: object) -> TypeGuard["InMemoryDataset"]:
    """Whether a data set is PyG's ``InMemoryDataset``."""
    return _is(value, "torch_geometric.data", "InMemoryDataset")


def is_graph_collater(collate: object) -> TypeGuard["Collater"]:
    """Whether a collation is that of PyG's ``DataLoader``."""
    return f"{type(collate).__module__}.{type(collate).__name__}" == "torch_geometric.loader.dataloader.Collater"
