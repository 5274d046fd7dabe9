"""Figure of each client's gain over training alone."""

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.figures.plots.coalitions import draw_gains
from lightning_fl.callbacks.personal.local_reference import LocalReference
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics, metric_name
from lightning_fl.data.module import Split
from lightning_fl.runtime.drawing import drawing
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["GainFigure"]


class GainFigure(Callback):
    """Draws each client's metric, that of its local model, and the difference, in TensorBoard and ``figures/``.

    Drawn for the last validation of a fit (``gain_val.png``) and every test (``gain_test.png``).

    Args:
        metric: name without the split ("acc", "rmse"); ``None`` for the first that is not a loss, else the first.

    Raises:
        ConfigurationError: at the start of a run, ``LocalReference`` does not precede this callback; at an evaluation,
            the metric is not logged.
    """

    only_shows = True

    def __init__(self, *, metric: str | None = None) -> None:
        self.metric = metric

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse a run without ``LocalReference``."""
        before = trainer.callbacks[: trainer.callbacks.index(self)]
        if not any(isinstance(callback, LocalReference) for callback in before):
            raise ConfigurationError(
                "GainFigure needs LocalReference: put it before GainFigure in trainer.callbacks, or remove GainFigure."
            )

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        """Draw a test."""
        if split == "test":
            self._draw(trainer, split, metrics)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Draw the last validation."""
        if trainer.federation.metrics.get("val"):
            self._draw(trainer, "val", trainer.federation.metrics["val"])

    def _draw(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        names = {metric_name(name, split): name for name in trainer.federation.gains.get(split, {})}
        if not names:  # a checkpoint without local models, about which LocalReference has warned
            return
        chosen = self.metric or next((short for short in names if "loss" not in short), next(iter(names)))
        if chosen not in names:
            raise ConfigurationError(
                f"GainFigure.metric={chosen!r} is not logged in {split}. Logged are: {', '.join(names)}."
            )
        if not trainer.is_global_zero:
            return
        metric = metrics[names[chosen]]
        with drawing(f"gain_{split}"):
            figure = draw_gains(
                metric.clients,
                metrics[f"{split}/local/{chosen}"].clients,
                trainer.datamodule.client_names(),
                metric=chosen,
                higher_is_better=metric.higher_is_better,
                title=f"Gain over local training, {split}, round {trainer.federation.current_round}",
                source=trainer.datamodule.source,
                labels=trainer.federation.collaboration.personalisation.argmax(1).tolist()
                if trainer.federation.collaboration.num_models > 1
                else None,
            )
            trainer.run_log.log_figure(f"gain_{split}", figure, trainer.federation.current_round)
