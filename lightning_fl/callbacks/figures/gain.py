"""Figure of each client's gain over training alone."""

from functools import partial

from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.coalitions import draw_gains
from lightning_fl.callbacks.personal.local_reference import LocalReference
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics, metric_name
from lightning_fl.data.module import Split
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["GainFigure"]


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
