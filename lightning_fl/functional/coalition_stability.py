"""Stability of FedCollab's coalitions under errors of the distances: a parametric bootstrap."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.seeding import derive_seed, generator
from lightning_fl.functional.fedcollab import solve_coalitions
from lightning_fl.functional.labels import in_order

__all__ = ["same_coalitions_share"]


def same_coalitions_share(
    assignment: Sequence[int],
    distances: Tensor,
    standard_errors: Tensor,
    num_samples: Sequence[int] | Tensor,
    capacity: float,
    *,
    num_draws: int = 40,
    num_restarts: int = 5,
    seed: int = 0,
) -> float:
    """The share of draws of all distances in which the best coalitions are the same.

    A draw adds to every distance an independent normal error of its standard error. The estimates already have an
    error, so the share is rather low.

    Args:
        assignment: coalitions, length N.
        distances: D, symmetric, zero on the diagonal, shape [N, N].
        standard_errors: of the distances, shape [N, N]; 0 for known ones.
        num_samples: m, positive, length N.
        capacity: C >= 0.
        num_draws: number of draws.
        num_restarts: starts of the search in each draw.
        seed: of the draws.
    """
    own = in_order(list(assignment))
    same = 0
    for draw in range(num_draws):
        noise = torch.randn(distances.shape, generator=generator(seed, draw), dtype=torch.float64)
        errors = (noise * standard_errors).triu(1)
        found = solve_coalitions(
            distances + errors + errors.T, num_samples, capacity, num_restarts, derive_seed(seed, draw, "search")
        )
        same += found == own
    return same / num_draws
