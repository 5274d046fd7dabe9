"""Figures of tiers, tokens and contributions."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.tiers import (
    draw_balances,
    draw_cdf,
    draw_payments,
    draw_tier_contributions,
    draw_tier_membership,
)
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.callbacks.rewards.tier_bidding import TierBidding
from lightning_fl.core.metrics import ClientMetrics, metric_name
from lightning_fl.functional.tokens import UNITS_PER_TOKEN
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["TierFigures"]


class TierFigures(FigureCallback):
    """Draws a run of PI-FL at the end of the fit, in TensorBoard and ``figures/``.

    For ``TierBidding``: ``tier_membership.png`` (tiers trained by each client over rounds), ``tier_importance.png``
    (scores of the tiers' models on the clients' data), and with tokens ``token_balances.png`` and
    ``token_payments.png``. For ``ShapleyRewards``: ``tier_contributions.png``. Always ``personal_METRIC.png``, the
    distribution of the clients' validation results, and of their local models with ``LocalReference``.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end only.

    Raises:
        ConfigurationError: at the start of a run, ``TierBidding`` and ``ShapleyRewards`` are missing, or one follows
            this callback.
    """

    needs = (TierBidding, ShapleyRewards)

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The whole history."""
        tiers, rewards = trainer.callback(TierBidding), trainer.callback(ShapleyRewards)
        if tiers is not None and tiers.rounds:
            yield from _of_tiers(tiers, trainer.client_names)
        if rewards is not None and any(rewards.by_model):
            yield (
                "tier_contributions",
                partial(
                    draw_tier_contributions,
                    _cumulated(rewards.by_model, trainer.num_clients),
                    trainer.client_names,
                    title=f"Contributions up to round {trainer.federation.current_round}",
                    label="cumulated Shapley value (units of the loss)",
                ),
            )
        yield from _of_validation(trainer)


def _of_tiers(tiers: TierBidding, names: Sequence[str]) -> Drawings:
    numbers, last = [one.number for one in tiers.rounds], tiers.rounds[-1]
    cohorts = [one.cohorts for one in tiers.rounds]
    yield "tier_membership", partial(draw_tier_membership, numbers, cohorts, names, title="Who trained which tier")
    series = {"best tier of each client": last.importance.amax(1).tolist()}
    series |= {f"tier {tier}": last.importance[:, tier].tolist() for tier in range(tiers.num_tiers)}
    title = f"How well tiers fit clients' data, round {last.number}"
    yield "tier_importance", partial(draw_cdf, series, quantity="importance weight υ", title=title)
    if tiers.ledger is None:
        return
    balances = [{client: units / UNITS_PER_TOKEN for client, units in one.balances.items()} for one in tiers.rounds]
    yield "token_balances", partial(draw_balances, numbers, balances, names, title="Balances of tokens")
    payments = [one for one in tiers.ledger.transactions if one.tier is not None]
    if payments:
        yield "token_payments", partial(draw_payments, payments, title="Payments by tier and round")


def _of_validation(trainer: TrainerSurface) -> Drawings:
    """The main metric of the clients' models and of their local training."""
    metrics = trainer.federation.metrics.get("val") or ClientMetrics()
    own = [name for name in metrics if not name.startswith("val/local/")]
    # Prefer accuracy to a loss, as in the paper.
    leading = next((name for name in own if metrics[name].higher_is_better), own[0] if own else None)
    if leading is None:
        return
    short = metric_name(leading, "val")
    series = {"personal": list(metrics[leading].clients.values())}
    if f"val/local/{short}" in metrics:
        series["local training"] = list(metrics[f"val/local/{short}"].clients.values())
    if torch.tensor([value for values in series.values() for value in values]).isfinite().any():
        title = f"Clients' own models after round {trainer.federation.current_round}"
        yield f"personal_{short}", partial(draw_cdf, series, quantity=f"{short} (validation)", title=title)


def _cumulated(by_model: Sequence[Mapping[int, Mapping[int, float]]], num_clients: int) -> Tensor:
    """Contributions of each client to each model, summed over rounds: [N, K], float64, NaN without any."""
    num_models = 1 + max(model for of_round in by_model for model in of_round)
    totals = torch.full((num_clients, num_models), torch.nan, dtype=torch.float64)
    for of_round in by_model:
        for model, clients in of_round.items():
            for client, value in clients.items():
                totals[client, model] = value + totals[client, model].nan_to_num(nan=0.0)
    return totals
