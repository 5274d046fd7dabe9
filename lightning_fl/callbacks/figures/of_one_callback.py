"""Figures drawn from the data of one other callback: collaboration, contributions, gains, graph."""

from functools import partial

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_fl.callbacks.collaboration.collaboration_graph import CollaborationGraph
from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.coalitions import draw_gains
from lightning_fl.callbacks.figures.plots.graph import draw_graph
from lightning_fl.callbacks.figures.plots.run import draw_contributions, draw_matrix
from lightning_fl.callbacks.personal.local_reference import LocalReference
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics, metric_name
from lightning_fl.core.validation import Count, checked
from lightning_fl.data.module import Split
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CollaborationFigure", "ContributionFigure", "GainFigure", "GraphFigure"]


class CollaborationFigure(FigureCallback):
    """Draws ``P A`` [N, N] as a heat map at the end of the fit, in TensorBoard and as ``figures/collaboration.png``.

    Row i shows the share of each client's update in client i's model. Not drawn if all clients use the same average.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end only.
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

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end only.

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

    Drawn for the last validation of a fit (``gain_val.png``) and every test (``gain_test.png``).

    Args:
        metric: name without the split ("acc", "rmse"); ``None`` for the first that is not a loss, else the first.

    Raises:
        ConfigurationError: at the start of a run, ``LocalReference`` does not precede this callback; at an evaluation,
            the metric is not logged.
    """

    needs = (LocalReference,)

    def __init__(self, *, metric: str | None = None) -> None:
        super().__init__()
        self.metric = metric

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
        chosen = self.metric or next((short for short in names if "loss" not in short), next(iter(names)))
        if chosen not in names:
            raise ConfigurationError(
                f"GainFigure.metric={chosen!r} is not logged in {split}. Logged are: {', '.join(names)}."
            )
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

    Args:
        panels: number of rounds shown, from the first to the last.

    Raises:
        ConfigurationError: at the start of a run, ``CollaborationGraph`` does not precede this callback.
    """

    needs = (CollaborationGraph,)

    @checked
    def __init__(self, *, panels: Count = 6) -> None:
        super().__init__()
        self.panels = panels

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The choices of all rounds."""
        graph = trainer.callback(CollaborationGraph)
        if graph is not None and graph.chosen:
            data = (graph.rounds, graph.chosen, graph.candidates, trainer.client_names)
            yield "graph", partial(draw_graph, *data, panels=self.panels)


def _cumulated(values: list[dict[int, float]], num_clients: int) -> Tensor:
    """Cumulated values [R, N], float64; NaN before a client's first value."""
    table = torch.tensor(
        [[of_round.get(client, torch.nan) for client in range(num_clients)] for of_round in values],
        dtype=torch.float64,
    )
    begun = table.isfinite().cummax(0).values
    return table.nan_to_num(nan=0.0).cumsum(0).where(begun, torch.nan)
