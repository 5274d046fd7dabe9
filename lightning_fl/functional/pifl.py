"""The mathematics of PI-FL: which tiers clients bid for, who trains them, and how clients mix them.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithms 1 and 3, equations 3 and 4. Contributions are in ``functional/shapley.py``, payments in
``functional/tokens.py``.

=================================  ==================================================  ===============
paper                              here                                                shape
=================================  ==================================================  ===============
υ_ck, importance weight            :func:`importance_weights`                          [K]
P_c (equation 4)                   :func:`mixture_weights`                             [K]
T_h                                ``threshold`` of the importance weight              number in [0, 1]
ψ_ki                               ``contributions``, :func:`standings`                numbers
θ_i, S_c                           ``bidders``, client -> place of the tier            [n]
N_p, N_r                           ``num_best``, ``num_random``                        counts
=================================  ==================================================  ===============

Differs from the paper:

- Equation 3 divides n_ck, the samples of client c that tier model k predicts correctly, by n_k, a count of the tier;
  its range [0, 1] and the weighted average of equation 4 need a division by the client's samples (importance weights,
  which the threshold is about) and weights that sum to 1 over the tiers (mixture weights).
- The paper does not say in which order a client prefers its tiers, nor how ties are broken; both are stated below.
- A contribution shrinks with the loss, so that one of an early round would outrank all of later ones; and it is known
  only of rounds in which a client trained. Contributions are therefore compared within a round, and fade
  (:func:`standings`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import shuffled

__all__ = ["TierCohort", "choose_bids", "importance_weights", "mixture_weights", "schedule", "standings"]


#: A mean over batches of a share that is 1 in each may be off in its last digit.
_ROUNDING = 1e-6


class TierCohort(NamedTuple):
    """Who trains a tier model in a round; nobody twice."""

    best: list[int]
    """Bidders by preference and contribution, the first one first."""
    random: list[int]
    """Clients drawn at random, ascending."""

    @property
    def clients(self) -> list[int]:
        """All of them, ascending."""
        return sorted(self.best + self.random)


def importance_weights(name: str, values: Tensor, higher_is_better: bool) -> Tensor:
    """How well each tier model does on one client's data, υ: a share as it is, a loss as exp(-loss) (equation 3).

    The latter depends on the units of the loss: let a loss of 1 be a large one (standardise the targets).

    Args:
        name: the metric's, for messages.
        values: of each tier model, float64, shape [K]; NaN, of a model that diverged, is the worst.
        higher_is_better: then they are shares in [0, 1], such as accuracies; else losses >= 0.

    Returns:
        Scores in [0, 1], float64, shape [K].

    Example:
        >>> importance_weights("acc", torch.tensor([0.375, 0.125, 0.0]), higher_is_better=True).tolist()
        [0.375, 0.125, 0.0]
    """
    known = values[~values.isnan()]
    if (known < 0).any() or (higher_is_better and (known > 1 + _ROUNDING).any()):
        raise ConfigurationError(
            f"{name} is {', '.join(f'{value:.6g}' for value in values.tolist())}, and cannot be made a score from 0 to"
            " 1: set monitor to a share, such as an accuracy, or to a loss of at least 0."
        )
    scores = values.clamp(max=1.0) if higher_is_better else (-values).exp()
    return scores.nan_to_num(0.0)


def mixture_weights(values: Tensor, higher_is_better: bool) -> Tensor:
    """What a client averages the tier models with: their importance weights over the sum of these (equation 4).

    Losses too large for a score that differs from 0 still tell tiers apart. A client for whom all tiers are worthless
    takes the same of each, 1/K.

    Args:
        values: as in :func:`importance_weights`.
        higher_is_better: as there.

    Returns:
        The client's row of P, float64, shape [K], sums to 1.

    Example:
        >>> mixture_weights(torch.tensor([0.375, 0.125, 0.0]), higher_is_better=True).tolist()
        [0.75, 0.25, 0.0]
    """
    if higher_is_better:
        scores = values.nan_to_num(0.0).clamp(max=1.0)
        worthless, weights = not scores.any(), scores / scores.sum()
    else:
        losses = values.masked_fill(values.isnan(), math.inf)
        worthless, weights = bool(losses.isinf().all()), (-losses).softmax(0)
    return torch.full_like(values, 1 / len(values)) if worthless else weights


def choose_bids(importance: Sequence[float], past_rewards: Sequence[float], threshold: float) -> list[int]:
    """The tiers that are worth a client's bid (algorithm 1), in order of preference.

    Where it was rewarded best before comes first; of equals (in the first rounds nobody was rewarded) the tier with the
    larger importance weight, then the one with the smaller number.

    Args:
        importance: υ of each tier, length K.
        past_rewards: what each tier brought the client so far, length K, in any one unit, larger is better; 0 for
            tiers that it never joined. With the price taken off, a tier that cost more than it brought comes after
            those never tried.
        threshold: T_h in [0, 1]; a tier needs a larger υ.

    Returns:
        Distinct tiers; empty if no υ is above the threshold.

    Example:
        >>> choose_bids([0.9, 0.1, 0.6], [0.0, 50.0, 20.0], threshold=0.5)
        [2, 0]
    """
    if len(importance) != len(past_rewards) or not all(map(math.isfinite, [*importance, *past_rewards])):
        raise ConfigurationError(
            f"importance={list(importance)}, past_rewards={list(past_rewards)}: give one finite number per tier in"
            " both."
        )
    wanted = [tier for tier, value in enumerate(importance) if value > threshold]
    return sorted(wanted, key=lambda tier: (-past_rewards[tier], -importance[tier], tier))


def standings(history: Sequence[tuple[int, Mapping[int, float]]], now: int, decay: float) -> dict[int, float]:
    """Where each client stands in a tier by its contributions, whichever rounds it trained in.

    In a round with n providers the one with the largest contribution gets 1, the one with the least -1, and those
    between them values at equal distances; of equal ones each the mean of theirs; who trained alone gets 0. A client
    has the value of its last round times ``decay`` for every round since, so that good and bad ones are forgotten.

    Args:
        history: rounds, counted from 1, ascending, each with client -> ψ of those whose updates arrived.
        now: the round that is to come.
        decay: in [0, 1]; 1 forgets nothing.

    Returns:
        Client -> standing in [-1, 1]. Who never trained is not named; :func:`schedule` counts it as 0.

    Example:
        >>> standings([(1, {0: 5.0, 1: 9.0}), (2, {1: 0.1, 2: 0.3, 3: 0.2})], now=3, decay=0.5)
        {0: -0.5, 1: -1.0, 2: 1.0, 3: 0.0}
    """
    if not 0 <= decay <= 1:
        raise ConfigurationError(f"decay={decay}: give a number from 0 to 1.")
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


def schedule(
    bidders: Mapping[int, int],
    contributions: Mapping[int, float],
    num_best: int,
    num_random: int,
    generator: torch.Generator,
    *,
    available: Sequence[int] | None = None,
) -> TierCohort:
    """Who trains a tier (algorithm 3): N_p bidders by preference and contribution, and N_r clients at random.

    ``S_c = sort(θ_i, ψ_ki)``: bidders that prefer the tier to all others come first, then those for whom it is the
    second choice, and so on; among those with the same preference the larger contribution counts. Equal ones are put in
    a random order, so that no client is favoured for its number. The result depends on the generator, not on the order
    in which clients are given. Without contributions and with ``num_best=0`` this is FedAvg's sampling, as in the first
    round.

    Args:
        bidders: client that bids for the tier -> the tier's place among its bids, 1 for the one it prefers.
        contributions: ψ of clients in this tier, or their :func:`standings`, larger is better; a client without one
            counts as 0, which is the average of both.
        num_best: N_p >= 0; all bidders if there are fewer.
        num_random: N_r >= 0; as many as there are left if they are fewer.
        generator: of ties and of the draw, on the CPU.
        available: ζ_a, whom the random ones are drawn from besides the bidders. ``None`` for nobody: then everybody
            chosen has bid, which equation 7 takes for granted when N_p + N_r clients pay.
    """
    if num_best < 0 or num_random < 0:
        raise ConfigurationError(f"num_best={num_best}, num_random={num_random}: give numbers of at least 0.")
    if len(set(available or ())) != len(available or ()):
        raise ConfigurationError(f"available={list(available or ())}: name each client once.")
    psi = {client: contributions.get(client, 0.0) for client in bidders}
    if any(map(math.isnan, psi.values())):
        raise ConfigurationError(f"contributions={psi}: leave out clients whose contribution is not known.")
    order = shuffled(list(bidders), generator)
    best = sorted(order, key=lambda client: (bidders[client], -psi[client]))[:num_best]
    others = {*bidders, *(available or ())}.difference(best)
    return TierCohort(best, sorted(shuffled(list(others), generator)[:num_random]))
