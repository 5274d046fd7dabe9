"""Figures of classifications: ROC, precision-recall and calibration curves."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from lightning_fl.callbacks.figures.held_out import HeldOutFigure
from lightning_fl.callbacks.figures.plots.classification import CurveKind, draw_classification
from lightning_fl.callbacks.figures.plots.run import Pairs
from lightning_fl.callbacks.predictions import pair_outputs
from lightning_fl.core.errors import DataError

__all__ = ["CalibrationFigure", "PrecisionRecallFigure", "ROCFigure"]


class _ClassificationFigure(HeldOutFigure):
    """Base for predicted probabilities: of class 1 [n] or [n, T], or of all classes [n, C] or [n, T, C].

    Draws a panel per target, or per class of a target against the others. Clients with a single class have no curve;
    panels without curves are left out.
    """

    picture: CurveKind

    def _pair(self, outputs: list[Any], targets: Tensor) -> tuple[Tensor, Tensor]:
        predictions, labels = pair_outputs(outputs, targets, classes=True)
        if len(predictions) and not (float(predictions.min()) >= 0 and float(predictions.max()) <= 1):
            raise DataError("predict_step returned values outside [0, 1]; return probabilities.")
        most = predictions.shape[2] if predictions.ndim == 3 else 2
        measured = labels[~labels.isnan()]
        if not bool(((measured == measured.round()) & (measured >= 0) & (measured < most)).all()):
            raise DataError(f"the targets are not classes from 0 to {most - 1}.")
        return predictions, labels

    def _plot(self, panels: Mapping[str, Pairs], units: Mapping[str, str], names: list[str], source: str) -> Figure:
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


class ROCFigure(_ClassificationFigure):
    """ROC curves of every client and of all together, with AUROC.

    Arguments and privacy: see :class:`~lightning_fl.callbacks.figures.held_out.HeldOutFigure`.
    """

    picture = "roc"


class PrecisionRecallFigure(_ClassificationFigure):
    """Precision-recall curves of every client and of all together, with average precision and the chance rate (dashed).

    Arguments and privacy: see :class:`~lightning_fl.callbacks.figures.held_out.HeldOutFigure`.
    """

    picture = "precision_recall"


class CalibrationFigure(_ClassificationFigure):
    """Calibration curves with ten bins of equal width, of every client and of all together.

    Arguments and privacy: see :class:`~lightning_fl.callbacks.figures.held_out.HeldOutFigure`.
    """

    picture = "calibration"
