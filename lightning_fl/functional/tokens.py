"""The mathematics of PI-FL's tokens: what the pool of a tier is paid out as, in whole units.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
section 3.2, equations 6 to 14. Accounts are in ``callbacks/rewards/tokens.py``.

=================================  ==================================================  ===============
paper                              here                                                shape
=================================  ==================================================  ===============
τ_p                                ``price`` of a bid                                  units of tokens
τ_ar, the pool                     what ``payers`` paid, ``price`` each                units of tokens
θ, δ_util (equations 8 and 9)      :func:`reimbursement_share`                         number in [0, η]
η, γ                               ``eta``, ``gamma``                                  numbers in [0, 1]
Acc_kr, Acc_kmax                   ``accuracy``, ``best_accuracy``                     numbers in [0, 1]
ψ_ki                               ``contributions``, client -> Shapley value          numbers
Ω_ki                               ``participations``, client -> rounds in the tier    counts
α (equations 12 to 14)             :func:`reward_ranks`                                counts
=================================  ==================================================  ===============

Amounts are whole units, a million to the token, so that sums are exact and no token is ever lost or made.

Differs from the paper:

- The pool is one per tier, so that no tier pays for another, and is empty after every round.
- In section 3.2's text the willing clients pay, in equation 7 the selected ones; the payers are what the caller names,
  the selected bidders in PI-FL.
- Equation 10 bounds θ by γ; equation 9 by η. It is η here. Equation 11 subtracts the reimbursement from the client's
  tokens; it is added.
- N_r is the number of clients drawn at random in equation 7 and the number of providers in equation 13; β here is
  n (n + 1) / 2 with n providers, so that the shares sum to 1. Equation 14 rewards out of what the reimbursement has
  left, as the text says, though its symbol is that of the whole pool.
- If no update arrives, every payer gets back what it paid. A payer that failed in a tier that others trained is no
  provider, but is reimbursed like the others: it can use the tier's model like the others.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from lightning_fl.core.errors import ConfigurationError

__all__ = [
    "UNITS_PER_TOKEN",
    "Transaction",
    "reimbursement_share",
    "reward_ranks",
    "settle_round",
    "split_units",
    "to_units",
]

UNITS_PER_TOKEN = 1_000_000


class Transaction(NamedTuple):
    """One movement of tokens."""

    round: int
    kind: Literal["open", "bid", "reimbursement", "reward", "refund"]
    tier: int | None
    """Whose pool; ``None`` for opening an account."""
    sender: int | Literal["pool", "issued"]
    """A client's number, the pool of the tier, or where tokens come from."""
    recipient: int | Literal["pool"]
    amount: int
    """Units of tokens, > 0."""


def to_units(tokens: float) -> int:
    """Tokens in units, to the nearest one."""
    return round(tokens * UNITS_PER_TOKEN)


def reimbursement_share(accuracy: float, best_accuracy: float, eta: float, gamma: float) -> float:
    """The share of the pool that goes back to the payers, ``θ = η (γ - min(γ, δ)) / γ`` (equation 9).

    ``δ = max(0, (accuracy - best) / best)`` is the improvement (equation 8), relative to the best of past rounds. From
    nothing (best 0, as before the first round) to something it is infinite, the limit; from nothing to nothing none.
    Without improvement the payers get η back, with an improvement of γ or more nothing.

    Args:
        accuracy: of the tier model, mean over its clients' data, >= 0; or another score of which more is better.
        best_accuracy: the largest of the rounds before, >= 0.
        eta: η in [0, 1], the most that is paid back.
        gamma: γ in (0, 1], the improvement from which on nothing is paid back.

    Returns:
        θ in [0, η].

    Example:
        >>> reimbursement_share(0.75, 0.5, eta=0.8, gamma=1.0)  # δ = 0.5
        0.4
    """
    if not (0 <= accuracy < math.inf and 0 <= best_accuracy < math.inf):
        raise ConfigurationError(
            f"accuracy={accuracy}, best_accuracy={best_accuracy}: give finite scores of at least 0, larger is better."
        )
    if best_accuracy == 0:
        improvement = math.inf if accuracy > 0 else 0.0
    else:
        improvement = max(0.0, (accuracy - best_accuracy) / best_accuracy)
    return eta * (1 - min(gamma, improvement) / gamma)


def reward_ranks(contributions: Mapping[int, float], participations: Mapping[int, int]) -> dict[int, int]:
    """Each provider's rank, from 1 to n; of the reward it gets its rank over β = n (n + 1) / 2 (equations 12 to 14).

    The provider with the largest contribution has rank n. Of equal contributions the one that took part more often
    ranks higher, then the one with the smaller number.

    Args:
        contributions: ψ of each of the n providers.
        participations: Ω, in how many rounds a client has trained the tier; 0 for those not named.

    Returns:
        Ranks by client, ascending in rank.

    Example:
        >>> reward_ranks({4: 0.1, 7: -0.2}, {})
        {7: 1, 4: 2}
    """
    if any(map(math.isnan, contributions.values())):
        raise ConfigurationError(f"contributions={dict(contributions)}: leave out providers whose updates failed.")
    order = sorted(contributions, key=lambda i: (contributions[i], participations.get(i, 0), -i))
    return {client: rank for rank, client in enumerate(order, start=1)}


def split_units(amount: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Divide whole units in given proportions, exactly, by largest remainder; of equal ones the smaller number first.

    Args:
        amount: >= 0, 0 if there is nobody.
        weights: client -> weight > 0.

    Returns:
        Units by client, ascending; they sum to the amount.

    Example:
        >>> split_units(100, {0: 1, 1: 1, 2: 1})
        {0: 34, 1: 33, 2: 33}
    """
    total = sum(weights.values())
    parts, remainders = {}, {}
    for client in sorted(weights):
        parts[client], remainders[client] = divmod(amount * weights[client], total)
    rest = amount - sum(parts.values())
    for client in sorted(remainders, key=lambda client: (-remainders[client], client))[:rest]:
        parts[client] += 1
    return parts


def settle_round(
    payers: Sequence[int],
    price: int,
    contributions: Mapping[int, float],
    participations: Mapping[int, int],
    accuracy: float,
    best_accuracy: float,
    eta: float,
    gamma: float,
) -> dict[Literal["reimbursement", "reward", "refund"], dict[int, int]]:
    """What becomes of a tier's pool after a round: reimbursements and rewards (equations 8 to 14), or all back.

    Args:
        payers: distinct clients that paid the price of a bid.
        price: units of tokens.
        contributions: ψ of each provider, a client that trained and whose update arrived.
        participations: Ω, in how many rounds before a client has trained the tier.
        accuracy: see :func:`reimbursement_share`; not read where there is no provider.
        best_accuracy: see there.
        eta: see there.
        gamma: see there.

    Returns:
        kind of payment -> client -> units; all together what the payers paid.
    """
    if not contributions:
        return {"refund": dict.fromkeys(sorted(payers), price)}
    pool = price * len(payers)
    share = reimbursement_share(accuracy, best_accuracy, eta, gamma)
    reimbursed = split_units(math.floor(pool * share), dict.fromkeys(payers, 1))
    rewarded = split_units(pool - sum(reimbursed.values()), reward_ranks(contributions, participations))
    return {"reimbursement": reimbursed, "reward": rewarded}
