"""Figure of learning curves over rounds."""

from functools import partial
from typing import Any

from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.run import Curve, draw_learning_curves
from lightning_fl.callbacks.progress import displayed_metric
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import curve_name
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["LearningCurves"]


class LearningCurves(FigureCallback):
    """Draws the training loss and a validation metric over rounds: every client, their mean and the worst client.

    Drawn at the end of the fit, in TensorBoard and as ``figures/learning_curves.png``.

    Args:
        monitor: validation metric; ``None`` for the first loss, else the first metric.

    Raises:
        ConfigurationError: at the first validation, ``monitor`` is not logged.
    """

    saved = ("history",)

    def __init__(self, *, monitor: str | None = None) -> None:
        super().__init__()
        self.monitor = monitor
        #: Metric -> round -> [mean, worst] and client -> value.
        self.history: dict[str, dict[int, dict[str, Any]]] = {}

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Clear the history."""
        if stage == "fit":
            self.history = {}

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Keep the round's values."""
        measured = trainer.federation.metrics
        validation = measured.get("val") if trainer.round.evaluated else None
        for metrics, wanted in ((measured.get("train"), None), (validation, self.monitor)):
            name = displayed_metric(metrics or {}, wanted)
            if not metrics or name is None:
                continue
            if wanted is not None and curve_name(metrics, wanted) != name:
                raise ConfigurationError(
                    f"LearningCurves.monitor={wanted!r} is not logged in validation. Logged are: {', '.join(metrics)}."
                )
            values = {"mean": metrics[name].mean, "worst": metrics[name].worst, "clients": dict(metrics[name].clients)}
            self.history.setdefault(name, {})[trainer.federation.current_round] = values

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The whole history."""
        if self.history:
            curves = ({name: self._curve(name, part) for name in self.history} for part in ("mean", "worst"))
            clients = {name: self._client_curves(name) for name in self.history}
            yield "learning_curves", partial(draw_learning_curves, clients, *curves)

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
