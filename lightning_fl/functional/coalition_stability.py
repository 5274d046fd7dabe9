"""How firm FedCollab's coalitions are, given that distances are estimates: a parametric bootstrap."""

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

    A draw adds to every distance a normal error of its standard error, independently of the other pairs. The estimates
    have an error already, so that the share is on the low side.

    Args:
        assignment: the coalitions in question, length N.
        distances: D, symmetric, zero on the diagonal, shape [N, N].
        standard_errors: theirs, shape [N, N]; 0 for those that are known.
        num_samples: m, positive, length N.
        capacity: C >= 0.
        num_draws: how many.
        num_restarts: starts of the search in each.
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
