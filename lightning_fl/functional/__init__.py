"""The papers' mathematics as pure functions: tensors in, tensors or plain values out, no training, no global state.

Shapes and numbers found not to fit raise ``ConfigurationError``, updates and gradients not finite ``DataError``.
"""

from typing import TYPE_CHECKING

from lightning_fl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from lightning_fl.functional.cfl import Bipartition as Bipartition
    from lightning_fl.functional.cfl import UpdateNorms as UpdateNorms
    from lightning_fl.functional.cfl import optimal_bipartition as optimal_bipartition
    from lightning_fl.functional.cfl import split_cluster as split_cluster
    from lightning_fl.functional.cfl import update_norms as update_norms
    from lightning_fl.functional.conformal import conformal_quantile as conformal_quantile
    from lightning_fl.functional.conformal import conformal_scores as conformal_scores
    from lightning_fl.functional.conformal import pooled_quantile as pooled_quantile
    from lightning_fl.functional.conformal import score_counts as score_counts
    from lightning_fl.functional.dpfl import batched_greedy_collaborators as batched_greedy_collaborators
    from lightning_fl.functional.dpfl import greedy_collaborators as greedy_collaborators
    from lightning_fl.functional.drflm import draw_cohort as draw_cohort
    from lightning_fl.functional.drflm import draw_subset as draw_subset
    from lightning_fl.functional.drflm import loss_estimate as loss_estimate
    from lightning_fl.functional.drflm import mix as mix
    from lightning_fl.functional.drflm import project_simplex as project_simplex
    from lightning_fl.functional.drflm import sample_dirichlet as sample_dirichlet
    from lightning_fl.functional.drflm import sample_gamma as sample_gamma
    from lightning_fl.functional.drflm import sampling_weights_update as sampling_weights_update
    from lightning_fl.functional.fedcollab import coalition_objective as coalition_objective
    from lightning_fl.functional.fedcollab import join_coalitions as join_coalitions
    from lightning_fl.functional.fedcollab import solve_coalitions as solve_coalitions
    from lightning_fl.functional.fedsoft import contribution_weights as contribution_weights
    from lightning_fl.functional.fedsoft import draw_contributors as draw_contributors
    from lightning_fl.functional.fedsoft import floored_importance as floored_importance
    from lightning_fl.functional.gram import cosine_similarities as cosine_similarities
    from lightning_fl.functional.gram import gram_matrix as gram_matrix
    from lightning_fl.functional.gram import join_most_similar as join_most_similar
    from lightning_fl.functional.gram import kmeans_from_gram as kmeans_from_gram
    from lightning_fl.functional.gram import remembered_cosines as remembered_cosines
    from lightning_fl.functional.gram import squared_distances as squared_distances
    from lightning_fl.functional.gram import with_cosines as with_cosines
    from lightning_fl.functional.hcct import Merge as Merge
    from lightning_fl.functional.hcct import Partition as Partition
    from lightning_fl.functional.hcct import hierarchical_partition as hierarchical_partition
    from lightning_fl.functional.hcct import join_group as join_group
    from lightning_fl.functional.hcct import least_merged_cosine as least_merged_cosine
    from lightning_fl.functional.hcct import most_discriminative_layer as most_discriminative_layer
    from lightning_fl.functional.hcct import most_discriminative_layer as most_telling_layer  # noqa: F401
    from lightning_fl.functional.hcct import partition_from_gram as partition_from_gram
    from lightning_fl.functional.hcct import partition_utility as partition_utility
    from lightning_fl.functional.ifca import perturbed as perturbed
    from lightning_fl.functional.pfedgraph import centre_terms as centre_terms
    from lightning_fl.functional.pfedgraph import collaboration_weights as collaboration_weights
    from lightning_fl.functional.pfedgraph import mean_cosine as mean_cosine
    from lightning_fl.functional.pfedgraph import placed_rows as placed_rows
    from lightning_fl.functional.pfedgraph import pull_terms as pull_terms
    from lightning_fl.functional.pfedgraph import thresholded_cosines as thresholded_cosines
    from lightning_fl.functional.pifl import TierCohort as TierCohort
    from lightning_fl.functional.pifl import choose_bids as choose_bids
    from lightning_fl.functional.pifl import importance_weights as importance_weights
    from lightning_fl.functional.pifl import mixture_weights as mixture_weights
    from lightning_fl.functional.pifl import schedule as schedule
    from lightning_fl.functional.pifl import standings as standings
    from lightning_fl.functional.probability_calibration import apply_isotonic as apply_isotonic
    from lightning_fl.functional.probability_calibration import apply_platt as apply_platt
    from lightning_fl.functional.probability_calibration import fit_isotonic as fit_isotonic
    from lightning_fl.functional.probability_calibration import fit_platt as fit_platt
    from lightning_fl.functional.probability_calibration import platt_sums as platt_sums
    from lightning_fl.functional.probability_calibration import probability_counts as probability_counts
    from lightning_fl.functional.shapley import FirstOrderShapley as FirstOrderShapley
    from lightning_fl.functional.shapley import ShapleyEstimate as ShapleyEstimate
    from lightning_fl.functional.shapley import shapley_exact as shapley_exact
    from lightning_fl.functional.shapley import shapley_first_order as shapley_first_order
    from lightning_fl.functional.shapley import shapley_permutations as shapley_permutations
    from lightning_fl.functional.tokens import UNITS_PER_TOKEN as UNITS_PER_TOKEN
    from lightning_fl.functional.tokens import Transaction as Transaction
    from lightning_fl.functional.tokens import reimbursement_share as reimbursement_share
    from lightning_fl.functional.tokens import reward_ranks as reward_ranks
    from lightning_fl.functional.tokens import settle_round as settle_round
    from lightning_fl.functional.tokens import split_units as split_units
    from lightning_fl.functional.tokens import to_units as to_units
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
