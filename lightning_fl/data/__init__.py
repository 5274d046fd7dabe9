"""Federated data: the contract, ready data sets, partitioners. Loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Dirichlet": "partitioners",
    "DrugOOD": "molecule_module",
    "FederatedDataModule": "module",
    "GroupBy": "partitioners",
    "IID": "partitioners",
    "MoleculeCSV": "molecule_module",
    "MoleculeNet": "molecule_module",
    "Partitioned": "partitioned",
    "Partitioner": "partitioners",
    "Pathological": "partitioners",
    "Quantity": "partitioners",
    "Scaffold": "partitioners",
    "Silos": "silos",
}

__all__ = [
    "IID",
    "Dirichlet",
    "DrugOOD",
    "FederatedDataModule",
    "GroupBy",
    "MoleculeCSV",
    "MoleculeNet",
    "Partitioned",
    "Partitioner",
    "Pathological",
    "Quantity",
    "Scaffold",
    "Silos",
]

if TYPE_CHECKING:
    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.data.molecule_module import DrugOOD, MoleculeCSV, MoleculeNet
    from lightning_fl.data.partitioned import Partitioned
    from lightning_fl.data.partitioners import IID, Dirichlet, GroupBy, Partitioner, Pathological, Quantity, Scaffold
    from lightning_fl.data.silos import Silos


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"lightning_fl.data.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'lightning_fl.data' has no attribute {name!r}")
