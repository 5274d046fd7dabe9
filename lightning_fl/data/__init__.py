"""Federated data: the contract, ready data sets, partitioners. Loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Dirichlet": "partitioners",
    "DrugOOD": "molecule_module",
    "FedCollabConceptShift": "shifts",
    "FedCollabLabelShift": "partitioners",
    "FederatedDataModule": "module",
    "GroupBy": "partitioners",
    "IID": "partitioners",
    "ImageData": "image_module",
    "ImageDomains": "image_domains",
    "ImageFolders": "image_silos",
    "Inversion": "shifts",
    "LabelPermutation": "shifts",
    "LabelTypes": "partitioners",
    "Mixture": "partitioners",
    "MoleculeCSV": "molecule_module",
    "MoleculeNet": "molecule_module",
    "OneClassShards": "partitioners",
    "Partitioned": "partitioned",
    "Partitioner": "partitioners",
    "Pathological": "partitioners",
    "Quantity": "partitioners",
    "Rotation": "shifts",
    "Scaffold": "partitioners",
    "Shift": "shifts",
    "Silos": "silos",
    "Sizes": "partitioners",
    "SyntheticMixture": "synthetic_mixture",
    "TableData": "table_module",
}

__all__ = [
    "IID",
    "Dirichlet",
    "DrugOOD",
    "FedCollabConceptShift",
    "FedCollabLabelShift",
    "FederatedDataModule",
    "GroupBy",
    "ImageData",
    "ImageDomains",
    "ImageFolders",
    "Inversion",
    "LabelPermutation",
    "LabelTypes",
    "Mixture",
    "MoleculeCSV",
    "MoleculeNet",
    "OneClassShards",
    "Partitioned",
    "Partitioner",
    "Pathological",
    "Quantity",
    "Rotation",
    "Scaffold",
    "Shift",
    "Silos",
    "Sizes",
    "SyntheticMixture",
    "TableData",
]

if TYPE_CHECKING:
    from lightning_fl.data.image_domains import ImageDomains
    from lightning_fl.data.image_module import ImageData
    from lightning_fl.data.image_silos import ImageFolders
    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.data.molecule_module import DrugOOD, MoleculeCSV, MoleculeNet
    from lightning_fl.data.partitioned import Partitioned
    from lightning_fl.data.partitioners import (
        IID,
        Dirichlet,
        FedCollabLabelShift,
        GroupBy,
        LabelTypes,
        Mixture,
        OneClassShards,
        Partitioner,
        Pathological,
        Quantity,
        Scaffold,
        Sizes,
    )
    from lightning_fl.data.shifts import FedCollabConceptShift, Inversion, LabelPermutation, Rotation, Shift
    from lightning_fl.data.silos import Silos
    from lightning_fl.data.synthetic_mixture import SyntheticMixture
    from lightning_fl.data.table_module import TableData


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"lightning_fl.data.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'lightning_fl.data' has no attribute {name!r}")
