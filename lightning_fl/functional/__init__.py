"""The papers' mathematics as pure functions: tensors in, tensors or plain values out, no training, no global state.

Shapes that do not fit and arguments out of their range raise ``ConfigurationError``; clients' values that are not
finite raise ``DataError``.
"""

from lightning_fl.functional.cfl import Bipartition, UpdateNorms, optimal_bipartition, split_cluster, update_norms
from lightning_fl.functional.conformal import conformal_quantile, conformal_scores, pooled_quantile, score_counts
from lightning_fl.functional.dirichlet import sample_dirichlet
from lightning_fl.functional.discriminative_layer import most_discriminative_layer
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
from lightning_fl.functional.fedsoft import contribution_weights, draw_contributors, floored_importance
from lightning_fl.functional.gram import (
    cosine_similarities,
    gram_matrix,
    join_most_similar,
    remembered_cosines,
    squared_distances,
    with_cosines,
)
from lightning_fl.functional.hcct import (
    Merge,
    Partition,
    hierarchical_partition,
    join_group,
    least_merged_cosine,
    partition_from_gram,
    partition_utility,
)
from lightning_fl.functional.ifca import perturbed
from lightning_fl.functional.kmeans import kmeans_from_gram
from lightning_fl.functional.pfedgraph import (
    centre_terms,
    collaboration_weights,
    mean_cosine,
    placed_rows,
    pull_terms,
    thresholded_cosines,
)
from lightning_fl.functional.pifl import (
    TierCohort,
    choose_bids,
    importance_weights,
    mixture_weights,
    schedule,
    standings,
)
from lightning_fl.functional.probability_calibration import (
    apply_isotonic,
    apply_platt,
    fit_isotonic,
    fit_platt,
    platt_sums,
    probability_counts,
)
from lightning_fl.functional.shapley import (
    FirstOrderShapley,
    ShapleyEstimate,
    shapley_exact,
    shapley_first_order,
    shapley_permutations,
)
from lightning_fl.functional.tokens import (
    UNITS_PER_TOKEN,
    Transaction,
    reimbursement_share,
    reward_ranks,
    settle_round,
    split_units,
    to_units,
)

most_telling_layer = most_discriminative_layer  # its former name

__all__ = [
    "UNITS_PER_TOKEN",
    "Bipartition",
    "FirstOrderShapley",
    "Merge",
    "Partition",
    "ShapleyEstimate",
    "TierCohort",
    "Transaction",
    "UpdateNorms",
    "apply_isotonic",
    "apply_platt",
    "batched_greedy_collaborators",
    "centre_terms",
    "choose_bids",
    "coalition_objective",
    "collaboration_weights",
    "conformal_quantile",
    "conformal_scores",
    "contribution_weights",
    "cosine_similarities",
    "draw_cohort",
    "draw_contributors",
    "draw_subset",
    "fit_isotonic",
    "fit_platt",
    "floored_importance",
    "gram_matrix",
    "greedy_collaborators",
    "hierarchical_partition",
    "importance_weights",
    "join_coalitions",
    "join_group",
    "join_most_similar",
    "kmeans_from_gram",
    "least_merged_cosine",
    "loss_estimate",
    "mean_cosine",
    "mix",
    "mixture_weights",
    "most_discriminative_layer",
    "optimal_bipartition",
    "partition_from_gram",
    "partition_utility",
    "perturbed",
    "placed_rows",
    "platt_sums",
    "pooled_quantile",
    "probability_counts",
    "project_simplex",
    "pull_terms",
    "reimbursement_share",
    "remembered_cosines",
    "reward_ranks",
    "sample_dirichlet",
    "sample_gamma",
    "sampling_weights_update",
    "schedule",
    "score_counts",
    "settle_round",
    "shapley_exact",
    "shapley_first_order",
    "shapley_permutations",
    "solve_coalitions",
    "split_cluster",
    "split_units",
    "squared_distances",
    "standings",
    "thresholded_cosines",
    "to_units",
    "update_norms",
    "with_cosines",
]
