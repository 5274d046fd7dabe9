"""Partitions of one data set among clients.

Every partition is a list with one int64 tensor per client: disjoint, ascending indices. They cover all samples unless
the class says otherwise. The same arguments and seed give the same partition in every process. Arguments out of range
raise ``ConfigurationError``; data that cannot be partitioned raise ``DataError``.
"""

from typing import TYPE_CHECKING

from lightning_fl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from lightning_fl.data.partition.by_size import IID as IID
    from lightning_fl.data.partition.by_size import Quantity as Quantity
    from lightning_fl.data.partition.by_size import Sizes as Sizes
    from lightning_fl.data.partition.flower import FromFlower as FromFlower
    from lightning_fl.data.partition.from_file import FromFile as FromFile
    from lightning_fl.data.partition.groups import GroupBy as GroupBy
    from lightning_fl.data.partition.groups import Scaffold as Scaffold
    from lightning_fl.data.partition.groups import ScaffoldLDA as ScaffoldLDA
    from lightning_fl.data.partition.groups import murcko_scaffolds as murcko_scaffolds
    from lightning_fl.data.partition.labels import Dirichlet as Dirichlet
    from lightning_fl.data.partition.labels import FedCollabLabelShift as FedCollabLabelShift
    from lightning_fl.data.partition.labels import LabelTypes as LabelTypes
    from lightning_fl.data.partition.labels import OneClassShards as OneClassShards
    from lightning_fl.data.partition.labels import Pathological as Pathological
    from lightning_fl.data.partition.mixtures import Mixture as Mixture
    from lightning_fl.data.partition.mixtures import mixture_counts as mixture_counts
    from lightning_fl.data.partition.mixtures import mixture_shares as mixture_shares
    from lightning_fl.data.partition.partitioner import Partitioner as Partitioner
    from lightning_fl.data.sizes import apportion as apportion
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
