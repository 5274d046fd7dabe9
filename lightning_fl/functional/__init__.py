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
from lightning_fl.functional.pifl import (
    ImportanceWeights,
    TierCohort,
    choose_bids,
    importance_weights,
    importance_weights_from_losses,
    improvement,
    initial_tiers,
    rank_shares,
    reimbursement_share,
    schedule,
)
from lightning_fl.functional.settlement import Settlement, collect_bids, settle_round
from lightning_fl.functional.shapley import (
    FirstOrderShapley,
    ShapleyEstimate,
    shapley_exact,
    shapley_first_order,
    shapley_permutations,
)
from lightning_fl.functional.tokens import (
    UNITS_PER_TOKEN,
    Ledger,
    Transaction,
    replay,
    split_units,
    to_units,
)

__all__ = [
    "UNITS_PER_TOKEN",
    "FirstOrderShapley",
    "ImportanceWeights",
    "Ledger",
    "Merge",
    "Partition",
    "Settlement",
    "ShapleyEstimate",
    "TierCohort",
    "Transaction",
    "batched_greedy_collaborators",
    "choose_bids",
    "coalition_objective",
    "collect_bids",
    "draw_cohort",
    "draw_subset",
    "gram_matrix",
    "greedy_collaborators",
    "hierarchical_partition",
    "importance_weights",
    "importance_weights_from_losses",
    "improvement",
    "initial_tiers",
    "join_coalitions",
    "join_group",
    "loss_estimate",
    "mix",
    "most_telling_layer",
    "partition_from_gram",
    "project_simplex",
    "rank_shares",
    "reimbursement_share",
    "replay",
    "sample_dirichlet",
    "sample_gamma",
    "sampling_weights_update",
    "schedule",
    "settle_round",
    "shapley_exact",
    "shapley_first_order",
    "shapley_permutations",
    "solve_coalitions",
    "split_units",
    "to_units",
]
