"""The papers' mathematics as pure functions: tensors in, tensors or plain values out, no training, no global state."""

from lightning_fl.functional.dirichlet import sample_dirichlet
from lightning_fl.functional.drflm import (
    draw_cohort,
    draw_subset,
    loss_estimate,
    mix,
    project_simplex,
    sample_gamma,
    sampling_weights_update,
)

__all__ = [
    "draw_cohort",
    "draw_subset",
    "loss_estimate",
    "mix",
    "project_simplex",
    "sample_dirichlet",
    "sample_gamma",
    "sampling_weights_update",
]
