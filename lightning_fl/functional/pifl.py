"""The mathematics of PI-FL: bids for tiers, selection of their clients, and mixtures of tiers.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithms 1 and 3, equations 3 and 4. Contributions are in ``functional/shapley.py``, payments in
``functional/tokens.py``.

Differs from the paper:

- Equation 3 divides n_ck, the samples of client c that tier model k predicts correctly, by n_k, which it does not
  define. Its range [0, 1] needs a division by the client's samples (importance weights, compared with the threshold);
  equation 4 needs weights that sum to 1 over the tiers (mixture weights).
- The paper does not define the order in which a client prefers its tiers, nor ties; both are defined below.
- Contributions shrink with the loss, so early rounds would outrank later ones, and they are known only of rounds in
  which a client trained. They are therefore compared within a round, and decay (:func:`standings`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import shuffled
from lightning_fl.core.validation import Fraction, Size, checked

#: Rounding error of a mean over batches.
_ROUNDING = 1e-6


class TierCohort(NamedTuple):
    """Clients that train a tier model in a round, each once."""

    best: list[int]
    """Bidders by preference and contribution, the best first."""
    random: list[int]
    """Clients drawn at random, ascending."""

    @property
    def clients(self) -> list[int]:
        """All of them, ascending."""
        return sorted(self.best + self.random)


def importance_weights(name: str, values: Tensor, higher_is_better: bool) -> Tensor:
    """Scores υ in [0, 1] of the tier models on one client's data: a share itself, or exp(-loss) (equation 3).

    The latter depends on the units of the loss: standardise the targets, so that a loss of 1 is large.

    Args:
        values: each tier model's of the metric ``name``, float64, shape [K]; NaN, of a diverged model, is the worst.
        higher_is_better: the values are shares in [0, 1], such as accuracies; otherwise losses >= 0.
    """
    known = values[~values.isnan()]
    if (known < 0).any() or (higher_is_better and (known > 1 + _ROUNDING).any()):
        shown = ", ".join(f"{value:.6g}" for value in values.tolist())
        raise ConfigurationError(f"{name} is {shown}: set monitor to a share from 0 to 1, or to a loss of at least 0.")
    scores = values.clamp(max=1.0) if higher_is_better else (-values).exp()
    return scores.nan_to_num(0.0)


def mixture_weights(values: Tensor, higher_is_better: bool) -> Tensor:
    """A client's row of P, [K]: the tier models' importance weights over their sum (equation 4).

    Losses are compared even where their scores underflow. If all tiers are worthless, each has 1/K.
    """
    if higher_is_better:
        scores = values.nan_to_num(0.0).clamp(max=1.0)
        worthless, weights = not scores.any(), scores / scores.sum()
    else:
        losses = values.masked_fill(values.isnan(), math.inf)
        worthless, weights = bool(losses.isinf().all()), (-losses).softmax(0)
    return torch.full_like(values, 1 / len(values)) if worthless else weights


def choose_bids(importance: Sequence[float], past_rewards: Sequence[float], threshold: float) -> list[int]:
    """Choose the tiers to bid for, in order of preference (algorithm 1); none if no υ is above the threshold.

    The tier with the largest past reward comes first; of equal ones that with the larger importance weight, then that
    with the smaller number.

    Args:
        importance: υ of each tier, length K.
        past_rewards: the client's rewards from each tier so far, length K, in one unit; 0 for tiers that it never
            joined. If prices are subtracted, a tier that cost more than it paid comes after tiers never tried.
        threshold: T_h in [0, 1]; a tier needs a larger υ.
    """
    if len(importance) != len(past_rewards) or not all(map(math.isfinite, [*importance, *past_rewards])):
        given = f"importance={list(importance)}, past_rewards={list(past_rewards)}"
        raise ConfigurationError(f"{given}: give a finite number per tier in both.")
    wanted = [tier for tier, value in enumerate(importance) if value > threshold]
    return sorted(wanted, key=lambda tier: (-past_rewards[tier], -importance[tier], tier))


@checked
def standings(history: Sequence[tuple[int, Mapping[int, float]]], now: int, decay: Fraction) -> dict[int, float]:
    """Rank clients of a tier by their contributions, comparable between rounds: standings in [-1, 1].

    In a round the largest contribution gets 1, the least -1, and those between equally spaced values; equal
    contributions get the mean of theirs, and a client that trained alone gets 0. A client's standing is its value of
    the last round times ``decay`` for every round since; clients that never trained have none.

    Args:
        history: rounds, counted from 1, ascending, each with client -> ψ of those whose updates arrived.

    Example:
        >>> standings([(1, {0: 5.0, 1: 9.0}), (2, {1: 0.1, 2: 0.3, 3: 0.2})], now=3, decay=0.5)
        {0: -0.5, 1: -1.0, 2: 1.0, 3: 0.0}
    """
    from scipy.stats import rankdata  # takes long to import

    found: dict[int, float] = {}
    for round, contributions in history:
        if any(map(math.isnan, contributions.values())):
            raise ConfigurationError(f"contributions={dict(contributions)}: leave out providers whose updates failed.")
        ranks = rankdata(list(contributions.values())).tolist()
        most = len(ranks) - 1
        for client, rank in zip(contributions, ranks, strict=True):
            found[client] = (2 * (rank - 1) / most - 1 if most else 0.0) * decay ** (now - round - 1)
    return dict(sorted(found.items()))


@checked
def schedule(
    bidders: Mapping[int, int],
    contributions: Mapping[int, float],
    num_best: Size,
    num_random: Size,
    generator: torch.Generator,
    *,
    available: Sequence[int] | None = None,
) -> TierCohort:
    """Select the clients of a tier (algorithm 3): N_p bidders by preference and contribution, and N_r at random.

    ``S_c = sort(θ_i, ψ_ki)``: bidders for which the tier is the first choice come first, then those for which it is the
    second, and so on; for the same choice the larger contribution counts. Ties are in random order. The result does not
    depend on the order of the clients. With ``num_best=0`` this is FedAvg's sampling, as in the first round.

    Args:
        bidders: client that bids for the tier -> the tier's place among its bids, 1 for its first choice.
        contributions: ψ of clients in this tier, or their :func:`standings`, larger is better; a client without one
            counts as 0, the average of both.
        num_best: N_p; all bidders if there are fewer.
        num_random: N_r; all remaining clients if there are fewer.
        available: ζ_a, clients to draw at random in addition to the bidders. With ``None`` all selected clients have
            bid, as equation 7 assumes, where N_p + N_r clients pay.
    """
    if len(set(available or ())) != len(available or ()):
        raise ConfigurationError(f"available={list(available or ())}: name each client once.")
    psi = {client: contributions.get(client, 0.0) for client in bidders}
    if any(map(math.isnan, psi.values())):
        raise ConfigurationError(f"contributions={psi}: leave out clients whose contribution is not known.")
    order = shuffled(list(bidders), generator)
    best = sorted(order, key=lambda client: (bidders[client], -psi[client]))[:num_best]
    others = {*bidders, *(available or ())}.difference(best)
    return TierCohort(best, sorted(shuffled(list(others), generator)[:num_random]))
