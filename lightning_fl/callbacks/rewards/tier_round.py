"""Record of a PI-FL round, and the tables and figures of a run."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from lightning_fl.callbacks.callback import Drawings
from lightning_fl.callbacks.rewards.tokens import Ledger
from lightning_fl.core.metrics import ClientMetrics, metric_name
from lightning_fl.functional.tokens import UNITS_PER_TOKEN
from lightning_fl.runtime.surface import TrainerSurface

TIER_COLUMNS = ("round", "client", "tier", "importance", "share", "bid", "unaffordable", "role")


@dataclass
class TierRound:
    """One round of PI-FL; λ is a client's share of a tier's new model, υ the score of a tier on a client's data."""

    number: int  #: the round, counted from 1
    bids: dict[int, list[int]]  #: client -> tiers in order of preference, only clients that bid
    cohorts: dict[int, dict[str, list[int]]]  #: tier -> "best" and "random" -> clients
    shares: dict[int, dict[int, float]]  #: tier -> client whose update arrived -> λ
    importance: Tensor  #: υ of the models after the round, float64 [N, K]; NaN for absent clients
    accuracies: list[float]  #: mean υ of each tier's new model over its participants; NaN without any
    personalisation: Tensor  #: P after the round, float64 [N, K]
    balances: dict[int, int]  #: client -> units of tokens after the round; empty without tokens
    #: client -> tiers of bids that it could not pay, only clients with any
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
    cohorts = [(tier, clients) for one in rounds for tier, of in one.cohorts.items() for clients in of.values()]
    turns = Counter((client, tier) for tier, clients in cohorts for client in clients)
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


def tier_figures(trainer: TrainerSurface, rounds: Sequence[TierRound], ledger: Ledger | None) -> Drawings:
    """Who trained which tier, how well tiers fit clients' data, tokens, and the clients' validation results."""
    from lightning_fl.callbacks.figures.plots import tiers as plots

    numbers, last, names = [one.number for one in rounds], rounds[-1], trainer.client_names
    cohorts, title = [one.cohorts for one in rounds], "Who trained which tier"
    yield "tier_membership", partial(plots.draw_tier_membership, numbers, cohorts, names, title=title)
    series = {"best tier of each client": last.importance.amax(1).tolist()}
    series |= {f"tier {tier}": last.importance[:, tier].tolist() for tier in range(len(last.accuracies))}
    title = f"How well tiers fit clients' data, round {last.number}"
    yield "tier_importance", partial(plots.draw_cdf, series, quantity="importance weight υ", title=title)
    if ledger is not None:
        balances = [{client: units / UNITS_PER_TOKEN for client, units in one.balances.items()} for one in rounds]
        yield "token_balances", partial(plots.draw_balances, numbers, balances, names, title="Balances of tokens")
        if payments := [one for one in ledger.transactions if one.tier is not None]:
            yield "token_payments", partial(plots.draw_payments, payments, title="Payments by tier and round")
    metrics = trainer.federation.metrics.get("val", ClientMetrics())
    own = [name for name in metrics if not name.startswith("val/local/")]
    # An accuracy rather than a loss, as in the paper.
    for leading in sorted(own, key=lambda name: not metrics[name].higher_is_better)[:1]:
        short = metric_name(leading, "val")
        compared = {"personal": leading, "local training": f"val/local/{short}"}
        series = {label: list(metrics[name].clients.values()) for label, name in compared.items() if name in metrics}
        title = f"Clients' own models after round {trainer.federation.current_round}"
        if any(map(math.isfinite, itertools.chain(*series.values()))):
            yield f"personal_{short}", partial(plots.draw_cdf, series, quantity=f"{short} (validation)", title=title)
