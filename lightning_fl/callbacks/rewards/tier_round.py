"""What happened to the tiers in a round, and what a run's rounds are written as."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["TierRound", "tier_rows", "tier_summary"]


@dataclass
class TierRound:
    """One round of PI-FL.

    Attributes:
        number: rounds done after it.
        bids: client -> tiers, the preferred one first; only clients that bid.
        cohorts: tier -> "best" and "random" -> clients.
        shares: tier -> client whose update arrived -> λ, its share of the tier's new model.
        importance: υ of the models after the round, float64 [N, K]; NaN for clients that are not there.
        accuracies: of each tier's new model, mean υ over those who trained it; NaN where nobody did.
        personalisation: P after the round, float64 [N, K].
        balances: units of tokens of every client with an account, after the round; empty where nothing is paid.
        unaffordable: client -> tiers that it wanted to bid for and could not pay, only clients with any.
    """

    number: int
    bids: dict[int, list[int]]
    cohorts: dict[int, dict[str, list[int]]]
    shares: dict[int, dict[int, float]]
    importance: Tensor
    accuracies: list[float]
    personalisation: Tensor
    balances: dict[int, int]
    unaffordable: dict[int, list[int]] = field(default_factory=dict)


def tier_rows(rounds: Sequence[TierRound], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """``tiers.csv``: round, client, tier, importance, share of the tier in what the client uses, bid, ..., role.

    Before the role, 1 for a tier that the client wanted to bid for and could not pay, else 0.
    """
    rows = []
    for one in rounds:
        importance, personalisation = one.importance.tolist(), one.personalisation.tolist()
        for client, name in enumerate(names):
            tiers = one.bids.get(client, [])
            for tier, cohort in one.cohorts.items():
                role = next((role for role, clients in cohort.items() if client in clients), "")
                bid = tiers.index(tier) + 1 if tier in tiers else 0
                missed = int(tier in one.unaffordable.get(client, []))
                worth, share = importance[client][tier], personalisation[client][tier]
                rows.append((one.number, name, tier, worth, share, bid, missed, role))
    return rows


def tier_summary(rounds: Sequence[TierRound], names: Sequence[str]) -> dict[str, Any]:
    """How each tier did; each client's shares at the end, rounds with bids, and turns in each tier.

    Args:
        rounds: at least one.
        names: N client names.
    """
    tiers = range(len(rounds[-1].accuracies))
    known = {tier: [one.accuracies[tier] for one in rounds if not math.isnan(one.accuracies[tier])] for tier in tiers}
    turns = Counter(
        (client, tier)
        for one in rounds
        for tier, cohort in one.cohorts.items()
        for clients in cohort.values()
        for client in clients
    )
    return {
        "tiers": [
            {
                "rounds_trained": len(known[tier]),
                "last_accuracy": known[tier][-1] if known[tier] else None,
                "best_accuracy": max(known[tier], default=None),
            }
            for tier in tiers
        ],
        "clients": {
            name: {
                "shares": rounds[-1].personalisation[client].tolist(),
                "rounds_with_bids": sum(client in one.bids for one in rounds),
                "turns": [turns[client, tier] for tier in tiers],
            }
            for client, name in enumerate(names)
        },
    }
