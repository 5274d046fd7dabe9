"""Figures of held-out data: parity plots, and ROC, precision-recall and calibration curves."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from lightning_fl.callbacks.callback import Drawings
from lightning_fl.callbacks.figures.figures import FigureCallback
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.callbacks.predictions import Pair, Pairs, pair_outputs
from lightning_fl.core.errors import ConfigurationError, DataError, did_you_mean, listed
from lightning_fl.core.validation import Size, checked_fields
from lightning_fl.engine.probes.on_hosts import beside_targets
from lightning_fl.runtime.surface import TrainerSurface

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@checked_fields
class HeldOutFigure(FigureCallback):
    """Figure of predictions against held-out targets, each client's own model on its own data.

    Drawn after ``test`` (for ``split="val"`` after ``fit`` and ``validate``) as ``figures/NAME_SPLIT.png``, for another
    ``target`` than the default ``NAME_SPLIT_NUMBER.png`` or ``NAME_SPLIT_all.png``, and in TensorBoard. Missing targets
    (NaN) and bounds are ignored. If ``predict_step`` does not fit the targets, it warns and draws nothing.

    Sends every client's held-out targets and predictions to all ranks: do not use it if they must not leave a silo.

    Args:
        split: of the data.
        target: number from 0 or name of a target; ``None`` for a panel of each.
    """

    several = True  # one for each split and target
    #: File name.
    picture: ClassVar[str]

    split: Literal["test", "val"] = "test"
    target: Size | str | None = None

    def drawn(self, trainer: TrainerSurface, stage: Literal["fit", "val", "test"]) -> Drawings:
        if self.split != ("val" if stage == "fit" else stage):
            return
        checkpoint = trainer.callback(ModelCheckpoint) if stage == "fit" else None
        kept = None if checkpoint is None else checkpoint.kept(trainer, trainer.federation.client_stores)
        own: dict[int, Pair | str | None] = {}
        for client in trainer.hosted_clients:
            predict = partial(trainer.predict_client, client, self.split, kept)
            own[client] = beside_targets(trainer.loop, client, self.split, predict, self._pair)
        collected, data = trainer.strategy.exchange(own), trainer.datamodule
        count = next((found[1].shape[1] for found in collected.values() if isinstance(found, tuple)), 1)
        # Optional attributes of data modules.
        known, units = getattr(data, "target_names", None), getattr(data, "target_units", None)
        named = list(known) if known else ["target"] if count == 1 else [f"target {number}" for number in range(count)]
        number = named.index(self.target) if self.target in named else self.target
        shown = "all" if number is None else number
        of_target = dict(zip(named, ["" if unit == "not given" else unit for unit in units or []], strict=False))
        yield (
            f"{self.picture}_{self.split}" + ("" if count == 1 or number == type(self).target else f"_{shown}"),
            partial(self._draw, collected, named, of_target, trainer.client_names, data.source),
        )

    def _plot(self, panels: Mapping[str, Pairs], units: Mapping[str, str], names: list[str], source: str) -> "Figure":
        """Draw targets: of each its clients' predictions and measured values, and its unit ("" if unknown)."""
        raise NotImplementedError

    def _draw(
        self, collected: dict[int, Any], named: list[str], units: dict[str, str], names: list[str], source: str
    ) -> "Figure":
        if (problem := next((found for found in collected.values() if isinstance(found, str)), None)) is not None:
            raise DataError(problem)
        points = {client: found for client, found in collected.items() if found is not None}
        panels = {named[number]: present(points, number) for number in self._chosen(named)}
        panels = {name: pairs for name, pairs in panels.items() if pairs}
        if not panels:
            raise DataError(f"no client has {self.split} data with a measured value.")
        return self._plot(panels, units, names, source)

    def _chosen(self, named: list[str]) -> list[int]:
        if self.target is None:
            return list(range(len(named)))
        if isinstance(self.target, str):
            if self.target not in named:
                hint = did_you_mean(self.target, named)
                raise ConfigurationError(f"target={self.target!r}: unknown{hint}; the targets are {listed(named)}.")
            return [named.index(self.target)]
        if self.target >= len(named):
            raise ConfigurationError(f"target={self.target}: there are {len(named)} targets, counted from 0.")
        return [self.target]

    def _pair(self, outputs: list[Any], targets: Tensor) -> Pair:
        """Predictions [n, T] or [n, T, C] and targets [n, T]."""
        return pair_outputs(outputs, targets)


@checked_fields
class ParityFigure(HeldOutFigure):
    """Parity plot of held-out values, coloured by client; arguments and privacy: see :class:`HeldOutFigure`."""

    picture = "parity"

    target: Size | str | None = 0

    def _plot(self, panels: Mapping[str, Pairs], units: Mapping[str, str], names: list[str], source: str) -> "Figure":
        from lightning_fl.callbacks.figures.plots.run import draw_parities, draw_parity

        truth = "computed" if source == "stand-in" else "measured"
        if self.target is None and len(panels) > 1:
            return draw_parities(panels, units, truth=truth)
        ((name, points),) = panels.items()
        return draw_parity(points, names, quantity=name, unit=units.get(name, ""), truth=truth)


class ROCFigure(HeldOutFigure):
    """ROC curves of every client and of all together, with AUROC.

    Predictions are probabilities: of class 1 [n] or [n, T], or of all classes [n, C] or [n, T, C]. There is a panel for
    each target, or for each class of a target against the others. Clients with a single class have no curve; panels
    without curves are left out. Arguments and privacy: see :class:`HeldOutFigure`.
    """

    picture: ClassVar[Literal["roc", "precision_recall", "calibration"]] = "roc"

    def _pair(self, outputs: list[Any], targets: Tensor) -> Pair:
        predictions, labels = pair_outputs(outputs, targets, classes=True)
        if len(predictions) and not (float(predictions.min()) >= 0 and float(predictions.max()) <= 1):
            raise DataError("predict_step returned values outside [0, 1]; return probabilities.")
        most = predictions.shape[2] if predictions.ndim == 3 else 2
        measured = labels[~labels.isnan()]
        if not bool(((measured == measured.round()) & (measured >= 0) & (measured < most)).all()):
            raise DataError(f"the targets are not classes from 0 to {most - 1}.")
        return predictions, labels

    def _plot(self, panels: Mapping[str, Pairs], units: Mapping[str, str], names: list[str], source: str) -> "Figure":
        from lightning_fl.callbacks.figures.plots.classification import draw_classification

        binary: dict[str, Pairs] = {}
        for target, points in panels.items():
            classes = next(iter(points.values()))[0]
            if classes.ndim == 1:
                binary[target] = points
                continue
            for number in range(classes.shape[1]):
                binary[f"{target} = {number}"] = {
                    client: (predictions[:, number], (labels == number).double())
                    for client, (predictions, labels) in points.items()
                }
        return draw_classification(self.picture, binary, names)


class PrecisionRecallFigure(ROCFigure):
    """Precision-recall curves as in :class:`ROCFigure`, with average precision and the chance rate (dashed)."""

    picture = "precision_recall"


class CalibrationFigure(ROCFigure):
    """Calibration curves as in :class:`ROCFigure`, with ten bins of equal width."""

    picture = "calibration"


def present(points: Pairs, number: int) -> dict[int, Pair]:
    """Predictions and measured values of one target, for clients with any."""
    found = {}
    for client, (predictions, targets) in points.items():
        measured = ~targets[:, number].isnan()
        if bool(measured.any()):
            found[client] = (predictions[measured, number], targets[measured, number])
    return found
