"""Figures drawn from what other callbacks keep: collaboration, contributions, gains, graph, tiers."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_fl.callbacks.collaboration.collaboration_graph import CollaborationGraph
from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.coalitions import draw_gains
from lightning_fl.callbacks.figures.plots.run import draw_contributions, draw_graph, draw_matrix
from lightning_fl.callbacks.figures.plots.tiers import (
    draw_balances,
    draw_cdf,
    draw_payments,
    draw_tier_contributions,
    draw_tier_membership,
)
from lightning_fl.callbacks.personal.local_reference import LocalReference
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.callbacks.rewards.tier_bidding import TierBidding
from lightning_fl.core.metrics import ClientMetrics, metric_name
from lightning_fl.data.module import Split
from lightning_fl.functional.tokens import UNITS_PER_TOKEN
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CollaborationFigure", "ContributionFigure", "GainFigure", "GraphFigure", "TierFigures"]


class CollaborationFigure(FigureCallback):
    """Draws ``P A`` [N, N] as a heat map at the end of the fit, in TensorBoard and as ``figures/collaboration.png``.

    Row i shows the share of each client's update in client i's model. Not drawn if all clients use the same average.
    """

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The current collaboration."""
        matrix = trainer.federation.collaboration.matrix
        if torch.allclose(matrix, matrix[:1].expand_as(matrix)):
            rank_zero_info("CollaborationFigure draws nothing: all clients use the same average")
            return
        title = f"Collaboration after round {trainer.federation.current_round}"
        yield "collaboration", partial(draw_matrix, matrix, trainer.client_names, title)


class ContributionFigure(FigureCallback):
    """Draws cumulated values of ``ShapleyRewards`` over rounds and as sorted bars.

    Drawn at the end of the fit, in TensorBoard and as ``figures/contributions.png``.

    Raises:
        ConfigurationError: at the start of a run, ``ShapleyRewards`` is missing.
    """

    needs = (ShapleyRewards,)
    in_any_order = True

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The whole history."""
        rewards = trainer.callback(ShapleyRewards)
        if rewards is not None and rewards.rounds:
            method = f"{rewards.method.replace('_', ' ')}{', normalised' if rewards.normalized else ''}"
            yield (
                "contributions",
                partial(
                    draw_contributions,
                    rewards.rounds,
                    _cumulated(rewards.values, trainer.num_clients),
                    trainer.client_names,
                    title=f"Contributions up to round {trainer.federation.current_round}: Shapley values, {method}",
                    ylabel="cumulated contribution (units of the loss)",
                ),
            )


class GainFigure(FigureCallback):
    """Draws each client's metric, that of its local model, and the difference, in TensorBoard and ``figures/``.

    Drawn for the last validation of a fit (``gain_val.png``) and every test (``gain_test.png``), for the first metric
    that is not a loss, else the first. ``lightning-fl compare --metric`` draws others.

    Raises:
        ConfigurationError: at the start of a run, ``LocalReference`` does not precede this callback.
    """

    needs = (LocalReference,)

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        """Draw a test."""
        if split == "test":
            self.draw(trainer, self._figure(trainer, split, metrics))

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The last validation."""
        return self._figure(trainer, "val", trainer.federation.metrics.get("val") or ClientMetrics())

    def _figure(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> Drawings:
        names = {metric_name(name, split): name for name in trainer.federation.gains.get(split, {})}
        if not metrics or not names:  # a checkpoint without local models, about which LocalReference has warned
            return
        chosen = next((short for short in names if "loss" not in short), next(iter(names)))
        metric, collaboration = metrics[names[chosen]], trainer.federation.collaboration
        yield (
            f"gain_{split}",
            partial(
                draw_gains,
                metric.clients,
                metrics[f"{split}/local/{chosen}"].clients,
                trainer.client_names,
                metric=chosen,
                higher_is_better=metric.higher_is_better,
                title=f"Gain over local training, {split}, round {trainer.federation.current_round}",
                labels=collaboration.personalisation.argmax(1).tolist() if collaboration.num_models > 1 else None,
            ),
        )


class GraphFigure(FigureCallback):
    """Draws the choices of ``CollaborationGraph`` at the end of the fit, in TensorBoard and as ``figures/graph.png``.

    Up to six rounds are shown, from the first to the last.

    Raises:
        ConfigurationError: at the start of a run, ``CollaborationGraph`` does not precede this callback.
    """

    needs = (CollaborationGraph,)

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The choices of all rounds."""
        graph = trainer.callback(CollaborationGraph)
        if graph is not None and graph.chosen:
            data = (graph.rounds, graph.chosen, graph.candidates, trainer.client_names)
            yield "graph", partial(draw_graph, *data)


class TierFigures(FigureCallback):
    """Draws a run of PI-FL at the end of the fit, in TensorBoard and ``figures/``.

    For ``TierBidding``: ``tier_membership.png`` (tiers trained by each client over rounds), ``tier_importance.png``
    (scores of the tiers' models on the clients' data), and with tokens ``token_balances.png`` and
    ``token_payments.png``. For ``ShapleyRewards``: ``tier_contributions.png``. Always ``personal_METRIC.png``, the
    distribution of the clients' validation results, and of their local models with ``LocalReference``.

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
                    _by_model(rewards.by_model, trainer.num_clients),
                    trainer.client_names,
                    title=f"Contributions up to round {trainer.federation.current_round}",
                    label="cumulated Shapley value (units of the loss)",
                ),
            )
        yield from _of_validation(trainer)


def _cumulated(values: list[dict[int, float]], num_clients: int) -> Tensor:
    """Cumulated values [R, N], float64; NaN before a client's first value."""
    table = torch.tensor(
        [[of_round.get(client, torch.nan) for client in range(num_clients)] for of_round in values],
        dtype=torch.float64,
    )
    begun = table.isfinite().cummax(0).values
    return table.nan_to_num(nan=0.0).cumsum(0).where(begun, torch.nan)


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


def _by_model(by_model: Sequence[Mapping[int, Mapping[int, float]]], num_clients: int) -> Tensor:
    """Contributions of each client to each model, summed over rounds: [N, K], float64, NaN without any."""
    num_models = 1 + max(model for of_round in by_model for model in of_round)
    totals = torch.full((num_clients, num_models), torch.nan, dtype=torch.float64)
    for of_round in by_model:
        for model, clients in of_round.items():
            for client, value in clients.items():
                totals[client, model] = value + totals[client, model].nan_to_num(nan=0.0)
    return totals
