"""Figures of a run's history, which the callbacks keep: learning curves, sampling weights, coalitions."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_fl.callbacks.collaboration.coalition_tracking import coalition_of
from lightning_fl.callbacks.collaboration.hcct import HCCT
from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.coalitions import draw_distances, draw_merge_tree, draw_partition
from lightning_fl.callbacks.figures.plots.run import draw_client_curves, draw_learning_curves
from lightning_fl.callbacks.progress import displayed_metric
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics
from lightning_fl.data.module import Split
from lightning_fl.functional.labels import in_order
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CoalitionFigure", "LearningCurves", "SamplingWeightsFigure"]


class LearningCurves(FigureCallback):
    """Draws the training loss and a validation metric over rounds: every client, their mean and the worst client.

    The metric is the first loss, else the first. Drawn at the end of the fit, in TensorBoard and as
    ``figures/learning_curves.png``. ``lightning-fl show`` draws further metrics.
    """

    saved = ("history",)

    def __init__(self) -> None:
        #: Metric -> round -> [mean, worst] and client -> value.
        self.history: dict[str, dict[int, dict[str, Any]]] = {}

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Clear the history."""
        if stage == "fit":
            self.history = {}

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Keep the round's values."""
        splits: tuple[Split, ...] = ("train", "val") if trainer.round.evaluated else ("train",)
        for split in splits:
            metrics = trainer.federation.metrics.get(split) or ClientMetrics()
            if (name := displayed_metric(metrics)) is not None:
                found = metrics[name]
                values = {"mean": found.mean, "worst": found.worst, "clients": dict(found.clients)}
                self.history.setdefault(name, {})[trainer.federation.current_round] = values

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The whole history."""
        if self.history:
            yield "learning_curves", partial(draw_learning_curves, self.history)


class SamplingWeightsFigure(FigureCallback):
    """Draws the sampling weights lambda [N] over rounds, a line per client.

    The weights are those of a callback for the participation, such as ``DROClientSampling``. Drawn at the end of the
    fit, in TensorBoard and as ``figures/sampling_weights.png``. Checkpoints contain 8 bytes per round and client.

    Raises:
        ConfigurationError: at the start of a run, no callback has sampling weights.
    """

    saved = ("rounds", "history")

    def __init__(self) -> None:
        #: Rounds done when each row of :attr:`history` was read.
        self.rounds: list[int] = []
        #: Weights, shape [R, N]; the first row is of the start.
        self.history = torch.empty(0, dtype=torch.float64)

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse a run without sampling weights; clear the history."""
        _sampling_weights(trainer)
        if stage == "fit":
            self.rounds, self.history = [], torch.empty(0, dtype=torch.float64)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Keep the initial weights."""
        if not self.rounds:
            self.on_round_end(trainer)

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Keep the round's weights."""
        self.rounds.append(trainer.federation.current_round)
        row = _sampling_weights(trainer).detach().to("cpu", torch.float64)
        self.history = torch.cat([self.history, row[None]])

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The whole history."""
        if self.rounds:
            yield (
                "sampling_weights",
                partial(
                    draw_client_curves,
                    self.rounds,
                    self.history,
                    trainer.client_names,
                    title=f"Sampling weights up to round {trainer.federation.current_round}",
                    ylabel="sampling weight λ",
                    reference=("uniform", 1 / trainer.num_clients),
                ),
            )


class CoalitionFigure(FigureCallback):
    """Draws coalitions at the end of the fit, in TensorBoard and ``figures/``.

    ``distances.png`` shows distances between clients, ordered by coalition (``FedCollab``); ``merge_tree.png`` the last
    hierarchical partition (``HCCT``); ``partition.png`` every client's coalition over rounds.

    Raises:
        ConfigurationError: at the start of a fit, no callback forms coalitions.
    """

    saved = ("rounds", "assignments")

    def __init__(self) -> None:
        #: Rounds done, and every client's coalition after each.
        self.rounds: list[int] = []
        self.assignments: list[list[int]] = []

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse a fit without coalitions; clear the history."""
        if stage == "fit":
            self.rounds, self.assignments = [], []
            if not any(callback.role == "collaboration" for callback in trainer.callbacks):
                raise ConfigurationError(
                    "CoalitionFigure: no callback of this run forms coalitions. Add one, such as FedCollab or HCCT, to"
                    " trainer.callbacks, or remove CoalitionFigure."
                )

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Keep the round's coalitions."""
        self.rounds.append(trainer.federation.current_round)
        self.assignments.append([coalition_of(trainer, client) for client in range(trainer.num_clients)])

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """Distances, merge tree and partition."""
        if not self.rounds:
            return
        names, present, hcct = trainer.client_names, trainer.present_clients, trainer.callback(HCCT)
        found = next((callback for callback in trainer.callbacks if callback.role == "collaboration"), None)
        distances = getattr(found, "distances", None)
        if distances is not None and len(distances) == trainer.num_clients:  # else not measured yet
            labels = [coalition_of(trainer, client) for client in present]
            shown, title = [names[client] for client in present], "Distances between clients, by coalition"
            yield "distances", partial(draw_distances, distances[present][:, present], labels, shown, title)
        if hcct is not None and hcct.merged_clients:
            merged = [names[client] for client in hcct.merged_clients]
            title = f"Hierarchical partition, round {hcct.partition_round}"
            yield "merge_tree", partial(draw_merge_tree, hcct.merges, _final_labels(hcct), merged, title)
        title = f"Coalitions up to round {trainer.federation.current_round}"
        yield "partition", partial(draw_partition, self.rounds, self.assignments, names, title)


def _sampling_weights(trainer: TrainerSurface) -> Tensor:
    for callback in trainer.callbacks:
        weights = getattr(callback, "weights", None)
        if callback.role == "participation" and isinstance(weights, Tensor):
            return weights
    raise ConfigurationError(
        "SamplingWeightsFigure needs a callback with sampling weights: add DROClientSampling to trainer.callbacks, or"
        " remove SamplingWeightsFigure."
    )


def _final_labels(hcct: HCCT) -> Sequence[int]:
    """Groups after the last merge, as positions among the merged clients."""
    groups = {position: position for position in range(len(hcct.merged_clients))}
    for merge in hcct.merges:
        for position in (*merge.first, *merge.second):
            groups[position] = min(merge.first + merge.second)
    return in_order(groups.values())
