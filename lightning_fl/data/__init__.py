"""Federated data: the contract, ready data sets, partitioners. Loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Dirichlet": "partition",
    "DrugOOD": "molecules.module",
    "FedCollabConceptShift": "shifts",
    "FedCollabLabelShift": "partition",
    "FederatedDataModule": "module",
    "GroupBy": "partition",
    "IID": "partition",
    "ImageData": "images.module",
    "ImageDomains": "images.domains",
    "ImageFolders": "images.silos",
    "Inversion": "shifts",
    "LabelPermutation": "shifts",
    "LabelTypes": "partition",
    "Mixture": "partition",
    "MoleculeCSV": "molecules.module",
    "MoleculeNet": "molecules.module",
    "OneClassShards": "partition",
    "Partitioned": "partitioned",
    "Partitioner": "partition",
    "Pathological": "partition",
    "PrivateTargets": "molecules.laboratories",
    "Quantity": "partition",
    "Rotation": "shifts",
    "Scaffold": "partition",
    "Shift": "shifts",
    "Silos": "silos",
    "Sizes": "partition",
    "SyntheticMixture": "tables.synthetic_mixture",
    "TableData": "tables.module",
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
    "PrivateTargets",
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
    from lightning_fl.data.images.domains import ImageDomains
    from lightning_fl.data.images.module import ImageData
    from lightning_fl.data.images.silos import ImageFolders
    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.data.molecules.laboratories import PrivateTargets
    from lightning_fl.data.molecules.module import DrugOOD, MoleculeCSV, MoleculeNet
    from lightning_fl.data.partition import (
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
    from lightning_fl.data.partitioned import Partitioned
    from lightning_fl.data.shifts import FedCollabConceptShift, Inversion, LabelPermutation, Rotation, Shift
    from lightning_fl.data.silos import Silos
    from lightning_fl.data.tables.module import TableData
    from lightning_fl.data.tables.synthetic_mixture import SyntheticMixture


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"lightning_fl.data.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'lightning_fl.data' has no attribute {name!r}")
