"""FedSoft's mathematics: how much of a client's data each model explains, and who is drawn to make a model.

Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022,
https://arxiv.org/abs/2112.06053, equations 4 to 6 and algorithm 1.

==========================  ==========================================  ======
paper                       here                                        shape
==========================  ==========================================  ======
n_ks / n_k                  ``shares``                                  [N, S]
σ                           ``sigma``
u_ks                        :func:`floored_importance`                  [N, S]
n_k                         ``num_samples``                             [N]
v_sk                        :func:`contribution_weights`                [S, N]
Sel_s, K clients            :func:`draw_contributors`                   <= K
==========================  ==========================================  ======

Differs from the paper: nothing here. As in the authors' code, u is not normalised after σ took the place of zeros.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts as check_whole
from lightning_fl.core.validation import check_numbers
from lightning_fl.functional.gram import check_counts

__all__ = ["contribution_weights", "draw_contributors", "floored_importance"]


def floored_importance(shares: Tensor, sigma: float) -> Tensor:
    """``u_ks``: the share of client k's samples that model s explains best, sigma where there are none.

    Args:
        shares: at least 0, floating, any shape.
        sigma: σ, from 0 to 1.

    Returns:
        float64, the same shape; rows sum to 1 or, with zeros, to slightly more.
    """
    check_numbers("", at_least=0, at_most=1, sigma=sigma)
    exact = shares.double()
    return torch.where(exact > 0, exact, torch.full_like(exact, sigma))


def contribution_weights(importance: Tensor, num_samples: Sequence[int] | Tensor) -> Tensor:
    """``v_sk = u_ks n_k / Σ_k' u_k's n_k'``: how much client k counts in model s.

    Args:
        importance: u, at least 0, shape [N, S].
        num_samples: n, positive, length N.

    Returns:
        float64, shape [S, N], rows sum to 1; a model of no use to anybody weighs clients by their samples.
    """
    counts = torch.from_numpy(check_counts(num_samples, len(importance)))
    weights = importance.double().T * counts
    weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, counts)
    return weights / weights.sum(1, keepdim=True)


def draw_contributors(weights: Tensor, number: int, generator: torch.Generator) -> list[int]:
    """Who makes a model in a round: clients without replacement, one after another with p in proportion to weights.

    Args:
        weights: at least 0, not all 0, shape [n].
        number: K, at least 1; all of positive weight where there are no more.
        generator: on the CPU.

    Returns:
        Positions in ``weights``, ascending.
    """
    check_whole("", number=number)
    if weights.ndim != 1 or not bool((weights.isfinite() & (weights >= 0)).all()) or not float(weights.sum()) > 0:
        raise ConfigurationError(
            f"weights of shape {list(weights.shape)}: give a vector of finite numbers of at least 0, not all 0."
        )
    possible = weights.nonzero().flatten()
    if len(possible) <= number:
        return [int(place) for place in possible]
    drawn = torch.multinomial(weights.double(), number, replacement=False, generator=generator)
    return sorted(int(place) for place in drawn)
