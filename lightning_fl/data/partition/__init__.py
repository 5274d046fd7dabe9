"""Partitions of one data set among clients: pure functions, and thin classes of them for recipes.

The functions map labels or keys to indices. Every partition is a list with one int64 tensor per client: disjoint,
ascending indices. They cover all samples unless the function says otherwise. The same arguments and seed give the same
partition in every process. Arguments out of range raise ``ConfigurationError``; data that cannot be partitioned raise
``DataError``.
"""

from lightning_fl.data.partition.from_file import FromFile
from lightning_fl.data.partition.from_flower import FromFlower
from lightning_fl.data.partition.group_partitioners import GroupBy, Scaffold
from lightning_fl.data.partition.groups import (
    by_group,
    choose_groups,
    deal_groups,
    indices_of_clients,
    murcko_scaffolds,
    scaffold,
    sorted_groups,
)
from lightning_fl.data.partition.label_partitioners import (
    Dirichlet,
    FedCollabLabelShift,
    LabelTypes,
    OneClassShards,
    Pathological,
)
from lightning_fl.data.partition.labels import (
    bin_targets,
    by_counts,
    by_shares,
    by_sizes_stratified,
    dirichlet,
    dirichlet_shares,
    pathological,
    pathological_shares,
    type_shares,
)
from lightning_fl.data.partition.lda import ScaffoldLDA, group_lda
from lightning_fl.data.partition.mixture_partitioners import Mixture
from lightning_fl.data.partition.mixtures import by_mixture, largest_mixture, mixture_counts, mixture_shares
from lightning_fl.data.partition.partitioner import Partitioner
from lightning_fl.data.partition.shards import by_shards, half_normal_counts, one_class_shards, shard_holdings
from lightning_fl.data.partition.size_partitioners import IID, Quantity, Sizes
from lightning_fl.data.partition.sizes import (
    apportion,
    by_sizes,
    dirichlet_ratios,
    iid,
    quantity,
    quantity_sizes,
    split_indices,
)
from lightning_fl.data.partition.stratified import split_stratified, stratified_parts

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
    "bin_targets",
    "by_counts",
    "by_group",
    "by_mixture",
    "by_shards",
    "by_shares",
    "by_sizes",
    "by_sizes_stratified",
    "choose_groups",
    "deal_groups",
    "dirichlet",
    "dirichlet_ratios",
    "dirichlet_shares",
    "group_lda",
    "half_normal_counts",
    "iid",
    "indices_of_clients",
    "largest_mixture",
    "mixture_counts",
    "mixture_shares",
    "murcko_scaffolds",
    "one_class_shards",
    "pathological",
    "pathological_shares",
    "quantity",
    "quantity_sizes",
    "scaffold",
    "shard_holdings",
    "sorted_groups",
    "split_indices",
    "split_stratified",
    "stratified_parts",
    "type_shares",
]
