"""Figure of learning curves over rounds."""

from collections.abc import Mapping
from typing import Any

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.figures.plots.run import Curve, draw_learning_curves
from lightning_fl.callbacks.progress import displayed_metric
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import MetricSummary, curve_name
from lightning_fl.runtime.drawing import drawing
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["LearningCurves"]


class LearningCurves(Callback):
    """Draws the training loss and a validation metric over rounds: every client, their mean and the worst client.

    Drawn at the end of the fit, in TensorBoard and as ``figures/learning_curves.png``.

    Args:
        monitor: validation metric; ``None`` for the first loss, else the first metric.

    Raises:
        ConfigurationError: at the first validation, ``monitor`` is not logged.
    """

    only_shows = True

    def __init__(self, *, monitor: str | None = None) -> None:
        self.monitor = monitor
        #: Metric -> round -> [mean, worst] and client -> value.
        self.history: dict[str, dict[int, dict[str, Any]]] = {}

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Clear the history."""
        if stage == "fit":
            self.history = {}

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Keep the round's values."""
        train: Mapping[str, MetricSummary] = trainer.federation.metrics.get("train", {})
        name = displayed_metric(train)
        if name is not None:
            self._record(trainer.federation.current_round, name, train[name])
        validation: Mapping[str, MetricSummary] = (
            trainer.federation.metrics.get("val", {}) if trainer.round.evaluated else {}
        )
        if not validation:
            return
        name = displayed_metric(validation, self.monitor)
        assert name is not None
        if self.monitor is not None and curve_name(validation, self.monitor) != name:
            raise ConfigurationError(
                f"LearningCurves.monitor={self.monitor!r} is not logged in validation. Logged are:"
                f" {', '.join(validation)}."
            )
        self._record(trainer.federation.current_round, name, validation[name])

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Draw the whole history."""
        if not trainer.is_global_zero or not self.history:
            return
        with drawing("learning_curves"):
            figure = draw_learning_curves(
                {name: self._client_curves(name) for name in self.history},
                {name: self._curve(name, "mean") for name in self.history},
                {name: self._curve(name, "worst") for name in self.history},
                trainer.datamodule.source,
            )
            trainer.run_log.log_figure("learning_curves", figure, trainer.federation.current_round)

    def state_dict(self) -> dict[str, Any]:
        """The history."""
        return {"history": {name: dict(rounds) for name, rounds in self.history.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the history."""
        self.history = {name: dict(rounds) for name, rounds in state["history"].items()}

    def _record(self, done: int, name: str, metric: MetricSummary) -> None:
        values = {"mean": metric.mean, "worst": metric.worst, "clients": dict(metric.clients)}
        self.history.setdefault(name, {})[done] = values

    def _curve(self, name: str, part: str) -> Curve:
        rounds = self.history[name]
        return list(rounds), [values[part] for values in rounds.values()]

    def _client_curves(self, name: str) -> dict[int, Curve]:
        """Curve of each client over its rounds."""
        curves: dict[int, tuple[list[int], list[float]]] = {}
        for done, values in self.history[name].items():
            for client, value in values["clients"].items():
                rounds, points = curves.setdefault(client, ([], []))
                rounds.append(done)
                points.append(value)
        return dict(curves)
