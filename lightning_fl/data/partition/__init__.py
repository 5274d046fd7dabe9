"""How the samples of one data set are shared out among clients: pure functions from labels or keys to indices.

Every partition is a list with one int64 tensor per client: disjoint, ascending indices that cover all samples. The
same arguments and seed give the same partition in every process.
"""

from lightning_fl.data.partition.groups import (
    by_group,
    deal_groups,
    indices_of_clients,
    murcko_scaffolds,
    scaffold,
    sorted_groups,
)
from lightning_fl.data.partition.labels import (
    bin_targets,
    by_shares,
    dirichlet,
    dirichlet_shares,
    pathological,
    pathological_shares,
)
from lightning_fl.data.partition.sizes import apportion, iid, quantity, split_indices

__all__ = [
    "apportion",
    "bin_targets",
    "by_group",
    "by_shares",
    "deal_groups",
    "dirichlet",
    "dirichlet_shares",
    "iid",
    "indices_of_clients",
    "murcko_scaffolds",
    "pathological",
    "pathological_shares",
    "quantity",
    "scaffold",
    "sorted_groups",
    "split_indices",
]
