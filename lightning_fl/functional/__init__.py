"""The papers' mathematics as pure functions: tensors in, tensors or plain values out, no training, no global state."""

from lightning_fl.functional.dirichlet import sample_dirichlet
from lightning_fl.functional.dpfl import batched_greedy_collaborators, greedy_collaborators
from lightning_fl.functional.drflm import (
    draw_cohort,
    draw_subset,
    loss_estimate,
    mix,
    project_simplex,
    sample_gamma,
    sampling_weights_update,
)
from lightning_fl.functional.fedcollab import coalition_objective, join_coalitions, solve_coalitions
from lightning_fl.functional.hcct import (
    Merge,
    Partition,
    gram_matrix,
    hierarchical_partition,
    join_group,
    most_telling_layer,
    partition_from_gram,
)

__all__ = [
    "Merge",
    "Partition",
    "batched_greedy_collaborators",
    "coalition_objective",
    "draw_cohort",
    "draw_subset",
    "gram_matrix",
    "greedy_collaborators",
    "hierarchical_partition",
    "join_coalitions",
    "join_group",
    "loss_estimate",
    "mix",
    "most_telling_layer",
    "partition_from_gram",
    "project_simplex",
    "sample_dirichlet",
    "sample_gamma",
    "sampling_weights_update",
    "solve_coalitions",
]
