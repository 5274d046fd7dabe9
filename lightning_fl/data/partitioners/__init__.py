"""Partitioners for recipes: thin classes over :mod:`lightning_fl.data.partition`."""

from lightning_fl.data.partitioners.base import Partitioner
from lightning_fl.data.partitioners.groups import GroupBy, Scaffold
from lightning_fl.data.partitioners.labels import (
    Dirichlet,
    FedCollabLabelShift,
    LabelTypes,
    OneClassShards,
    Pathological,
)
from lightning_fl.data.partitioners.mixtures import Mixture
from lightning_fl.data.partitioners.sizes import IID, Quantity, Sizes

__all__ = [
    "IID",
    "Dirichlet",
    "FedCollabLabelShift",
    "GroupBy",
    "LabelTypes",
    "Mixture",
    "OneClassShards",
    "Partitioner",
    "Pathological",
    "Quantity",
    "Scaffold",
    "Sizes",
]
