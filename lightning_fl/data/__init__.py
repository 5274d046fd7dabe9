"""Federated data: the contract, ready data sets, partitioners. Loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "BoundaryNoise": "tables.boundary_noise",
    "ColumnDivision": "division",
    "Dirichlet": "partition",
    "Division": "division",
    "DrugOOD": "molecules.module",
    "FedCollabConceptShift": "shifts",
    "FedCollabLabelShift": "partition",
    "FederatedDataModule": "module",
    "FromFile": "partition",
    "FromFlower": "partition",
    "GroupBy": "partition",
    "GroupDivision": "division",
    "HFDataset": "hugging_face",
    "HashDivision": "division",
    "IID": "partition",
    "ImageData": "images.module",
    "ImageDomains": "images.domains",
    "ImageFolders": "images.silos",
    "Inversion": "shifts",
    "LabelPermutation": "shifts",
    "LabelTypes": "partition",
    "ListDivision": "division",
    "Mixture": "partition",
    "MoleculeCSV": "molecules.module",
    "MoleculeNet": "molecules.module",
    "OneClassShards": "partition",
    "OrderDivision": "division",
    "Partitioned": "partitioned",
    "Partitioner": "partition",
    "Pathological": "partition",
    "PrivateTargets": "molecules.laboratories",
    "Quantity": "partition",
    "RandomDivision": "division",
    "Rotation": "shifts",
    "Scaffold": "partition",
    "ScaffoldDivision": "division",
    "ScaffoldLDA": "partition",
    "Shift": "shifts",
    "Silos": "silos",
    "Sizes": "partition",
    "SyntheticMixture": "tables.synthetic_mixture",
    "TableData": "tables.module",
}

__all__ = [
    "IID",
    "BoundaryNoise",
    "ColumnDivision",
    "Dirichlet",
    "Division",
    "DrugOOD",
    "FedCollabConceptShift",
    "FedCollabLabelShift",
    "FederatedDataModule",
    "FromFile",
    "FromFlower",
    "GroupBy",
    "GroupDivision",
    "HFDataset",
    "HashDivision",
    "ImageData",
    "ImageDomains",
    "ImageFolders",
    "Inversion",
    "LabelPermutation",
    "LabelTypes",
    "ListDivision",
    "Mixture",
    "MoleculeCSV",
    "MoleculeNet",
    "OneClassShards",
    "OrderDivision",
    "Partitioned",
    "Partitioner",
    "Pathological",
    "PrivateTargets",
    "Quantity",
    "RandomDivision",
    "Rotation",
    "Scaffold",
    "ScaffoldDivision",
    "ScaffoldLDA",
    "Shift",
    "Silos",
    "Sizes",
    "SyntheticMixture",
    "TableData",
]

if TYPE_CHECKING:
    from lightning_fl.data.division import (
        ColumnDivision,
        Division,
        GroupDivision,
        HashDivision,
        ListDivision,
        OrderDivision,
        RandomDivision,
        ScaffoldDivision,
    )
    from lightning_fl.data.hugging_face import HFDataset
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
        FromFile,
        FromFlower,
        GroupBy,
        LabelTypes,
        Mixture,
        OneClassShards,
        Partitioner,
        Pathological,
        Quantity,
        Scaffold,
        ScaffoldLDA,
        Sizes,
    )
    from lightning_fl.data.partitioned import Partitioned
    from lightning_fl.data.shifts import FedCollabConceptShift, Inversion, LabelPermutation, Rotation, Shift
    from lightning_fl.data.silos import Silos
    from lightning_fl.data.tables.boundary_noise import BoundaryNoise
    from lightning_fl.data.tables.module import TableData
    from lightning_fl.data.tables.synthetic_mixture import SyntheticMixture


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"lightning_fl.data.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'lightning_fl.data' has no attribute {name!r}")
