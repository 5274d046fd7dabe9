"""FedSoft's mathematics: the share of a client's data that each model explains, and the draw of its contributors.

Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022,
https://arxiv.org/abs/2112.06053, equations 4 to 6 and algorithm 1. Differs from the paper: nothing here. As in the
authors' code, u is not normalised after σ has replaced zeros.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Fraction, checked
from lightning_fl.functional.gram import sample_counts


@checked
def floored_importance(shares: Tensor, sigma: Fraction) -> Tensor:
    """``u_ks``: the share of client k's samples that model s explains best, sigma where it is 0; float64."""
    exact = shares.double()
    return torch.where(exact > 0, exact, torch.full_like(exact, sigma))


def contribution_weights(importance: Tensor, num_samples: Sequence[int] | Tensor) -> Tensor:
    """``v_sk = u_ks n_k / Σ_k' u_k's n_k'``, float64, [S, N]: the weight of client k in model s; rows sum to 1.

    A model that is of no use to any client weighs clients by their samples.

    Args:
        importance: u, at least 0, shape [N, S].
        num_samples: n, positive, length N.
    """
    counts = torch.from_numpy(sample_counts(num_samples, len(importance)))
    weights = importance.double().T * counts
    weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, counts)
    return weights / weights.sum(1, keepdim=True)


@checked
def draw_contributors(weights: Tensor, number: Count, generator: torch.Generator) -> list[int]:
    """Draw the clients that make a model in a round, without replacement, with p in proportion to weights; ascending.

    Args:
        weights: at least 0, not all 0, shape [n].
        number: K; all clients of positive weight if there are no more.
    """
    if weights.ndim != 1 or not bool((weights.isfinite() & (weights >= 0)).all()) or not float(weights.sum()) > 0:
        raise ConfigurationError(f"weights of shape {list(weights.shape)}: give finite [n] of at least 0, not all 0.")
    possible = weights.nonzero().flatten()
    if len(possible) <= number:
        return [int(place) for place in possible]
    drawn = torch.multinomial(weights.double(), number, replacement=False, generator=generator)
    return sorted(int(place) for place in drawn)
