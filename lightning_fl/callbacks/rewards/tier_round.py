"""Record of a PI-FL round, and the tables of a run."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["TIER_COLUMNS", "TierRound", "tier_rows", "tier_summary"]

TIER_COLUMNS = ("round", "client", "tier", "importance", "share", "bid", "unaffordable", "role")


@dataclass
class TierRound:
    """One round of PI-FL.

    Attributes:
        number: the round, counted from 1.
        bids: client -> tiers in order of preference, only clients that bid.
        cohorts: tier -> "best" and "random" -> clients.
        shares: tier -> client whose update arrived -> λ, its share of the tier's new model.
        importance: υ of the models after the round, float64 [N, K]; NaN for absent clients.
        accuracies: mean υ of each tier's new model over its participants; NaN without any.
        personalisation: P after the round, float64 [N, K].
        balances: client -> units of tokens after the round; empty without tokens.
        unaffordable: client -> tiers of bids that it could not pay, only clients with any.
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


def tier_rows(rounds: Sequence[TierRound], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows of ``tiers.csv``; "bid" is the place of the tier among a client's bids, 0 for none."""
    for one in rounds:
        importance, personalisation = one.importance.tolist(), one.personalisation.tolist()
        for client, name in enumerate(names):
            tiers = one.bids.get(client, [])
            for tier, cohort in one.cohorts.items():
                role = next((role for role, clients in cohort.items() if client in clients), "")
                bid = tiers.index(tier) + 1 if tier in tiers else 0
                missed = int(tier in one.unaffordable.get(client, []))
                worth, share = importance[client][tier], personalisation[client][tier]
                yield one.number, name, tier, worth, share, bid, missed, role


def tier_summary(rounds: Sequence[TierRound], names: Sequence[str]) -> dict[str, Any]:
    """Accuracies of each tier; final shares, rounds with bids, and turns per tier of each client."""
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
