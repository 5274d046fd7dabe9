"""The mathematics of PI-FL's tokens: payments from a tier's pool, in whole units.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
section 3.2, equations 6 to 14. Accounts are in ``callbacks/rewards/tokens.py``. Amounts are whole units, a million per
token, so that sums are exact.

Differs from the paper:

- Every tier has its own pool, which is empty after every round.
- In the text of section 3.2 the willing clients pay, in equation 7 the selected ones. The caller gives the payers: the
  selected bidders in PI-FL.
- Equation 10 bounds θ by γ, equation 9 by η: here η. Equation 11 subtracts the reimbursement; here it is added.
- N_r is the number of clients drawn at random in equation 7 and the number of providers in equation 13. Here β is
  n (n + 1) / 2 with n providers, so that the shares sum to 1. Equation 14 rewards from the rest after reimbursement, as
  in the text, though its symbol is that of the whole pool.
- If no update arrives, every payer gets its price back. A payer that failed while others trained is not a provider, but
  is reimbursed, as it can use the tier's model.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from lightning_fl.core.errors import ConfigurationError

UNITS_PER_TOKEN = 1_000_000


class Transaction(NamedTuple):
    """One movement of tokens."""

    round: int
    kind: Literal["open", "bid", "reimbursement", "reward", "refund"]
    tier: int | None
    """Tier of the pool; ``None`` for opening an account."""
    sender: int | Literal["pool", "issued"]
    """A client's number, the pool of the tier, or "issued" for new tokens."""
    recipient: int | Literal["pool"]
    amount: int
    """Units of tokens, > 0."""


def to_units(tokens: float) -> int:
    """Convert tokens to the nearest number of units."""
    return round(tokens * UNITS_PER_TOKEN)


def reimbursement_share(accuracy: float, best_accuracy: float, eta: float, gamma: float) -> float:
    """The reimbursed share of the pool, ``θ = η (γ - min(γ, δ)) / γ`` (equation 9), in [0, η].

    ``δ = max(0, (accuracy - best) / best)`` is the improvement over the best past round (equation 8); with a best of 0,
    as before the first round, it is infinite for an accuracy above 0, else 0.

    Args:
        accuracy: of the tier model, mean over its clients' data, >= 0; or another score, larger is better.
        eta: η in [0, 1], the share without improvement.
        gamma: γ in (0, 1], the improvement from which on the share is 0.
    """
    if not (0 <= accuracy < math.inf and 0 <= best_accuracy < math.inf):
        raise ConfigurationError(f"accuracy={accuracy}, best_accuracy={best_accuracy}: must be finite and at least 0.")
    if best_accuracy == 0:
        improvement = math.inf if accuracy > 0 else 0.0
    else:
        improvement = max(0.0, (accuracy - best_accuracy) / best_accuracy)
    return eta * (1 - min(gamma, improvement) / gamma)


def reward_ranks(contributions: Mapping[int, float], participations: Mapping[int, int]) -> dict[int, int]:
    """Ranks of the n providers; a provider's share of the reward is its rank over β = n (n + 1) / 2 (eq. 12 to 14).

    The largest contribution ψ has rank n. Of equal contributions the client with more rounds Ω in which it trained the
    tier ranks higher, then the one with the smaller number.
    """
    if any(map(math.isnan, contributions.values())):
        raise ConfigurationError(f"contributions={dict(contributions)}: leave out providers whose updates failed.")
    order = sorted(contributions, key=lambda i: (contributions[i], participations.get(i, 0), -i))
    return {client: rank for rank, client in enumerate(order, start=1)}


def split_units(amount: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Divide whole units in proportion to weights > 0 by largest remainder; of equal ones the smaller number first.

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
    """Pay out a tier's pool after a round: reimbursements and rewards (equations 8 to 14), or refunds.

    They are kind of payment -> client -> units, and sum to what the payers paid.

    Args:
        payers: distinct clients that paid ``price`` units each for a bid (see :func:`to_units`).
        contributions: ψ of the providers, clients that trained and whose update arrived.
        participations: Ω, client -> earlier rounds in which it trained the tier.

    The others are those of :func:`reimbursement_share`; accuracies are not read without providers.
    """
    if not contributions:
        return {"refund": dict.fromkeys(sorted(payers), price)}
    pool = price * len(payers)
    share = reimbursement_share(accuracy, best_accuracy, eta, gamma)
    reimbursed = split_units(math.floor(pool * share), dict.fromkeys(payers, 1))
    rewarded = split_units(pool - sum(reimbursed.values()), reward_ranks(contributions, participations))
    return {"reimbursement": reimbursed, "reward": rewarded}
