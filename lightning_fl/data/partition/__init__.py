"""Partitions of one data set among clients, one scheme per file.

Every partition is a list with one int64 tensor per client: disjoint, ascending indices. They cover all samples unless
the class says otherwise. The same arguments and seed give the same partition in every process. Arguments out of range
raise ``ConfigurationError``; data that cannot be partitioned raise ``DataError``.
"""

from lightning_fl.data.partition.dirichlet import Dirichlet
from lightning_fl.data.partition.flower import FromFlower
from lightning_fl.data.partition.from_file import FromFile
from lightning_fl.data.partition.given_sizes import Sizes
from lightning_fl.data.partition.group_by import GroupBy
from lightning_fl.data.partition.iid import IID
from lightning_fl.data.partition.label_types import FedCollabLabelShift, LabelTypes
from lightning_fl.data.partition.lda import ScaffoldLDA
from lightning_fl.data.partition.mixtures import Mixture, mixture_counts, mixture_shares
from lightning_fl.data.partition.partitioner import Partitioner
from lightning_fl.data.partition.pathological import Pathological
from lightning_fl.data.partition.quantity import Quantity
from lightning_fl.data.partition.scaffold import Scaffold, murcko_scaffolds
from lightning_fl.data.partition.shards import OneClassShards
from lightning_fl.data.partition.sizes import apportion, split_indices

__all__ = [
    "IID",
    "Dirichlet",
    "FedCollabLabelShift",
    "FromFile",
    "FromFlower",
    "GroupBy",
    "LabelTypes",
    "Mixture",
    "OneClassShards",
    "Partitioner",
    "Pathological",
    "Quantity",
    "Scaffold",
    "ScaffoldLDA",
    "Sizes",
    "apportion",
    "mixture_counts",
    "mixture_shares",
    "murcko_scaffolds",
    "split_indices",
]
