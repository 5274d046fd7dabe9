"""Curves of classifications, see ``run.py`` for common arguments."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lightning_fl.callbacks.figures.plots import canvas
from lightning_fl.callbacks.predictions import Pairs
from lightning_fl.core.errors import DataError, listed

CurveKind = Literal["roc", "precision_recall", "calibration"]

_BINS = 10
_TITLES: dict[CurveKind, str] = {"roc": "ROC", "precision_recall": "precision and recall", "calibration": "calibration"}
_AXES: dict[CurveKind, tuple[str, str]] = {
    "roc": ("false positive rate", "true positive rate"),
    "precision_recall": ("recall", "precision"),
    "calibration": ("mean probability", "share of positives"),
}


def classification_curve(kind: CurveKind, probability: Tensor, label: Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """x, y, and AUROC, average precision or calibration error, of probabilities and both labels [n]."""
    from sklearn import metrics  # type: ignore[import-untyped]
    from sklearn.calibration import calibration_curve  # type: ignore[import-untyped]

    scores, labels = probability.numpy(), label.numpy()
    if kind == "roc":
        x, y, _ = metrics.roc_curve(labels, scores)
        return x, y, float(metrics.roc_auc_score(labels, scores))
    if kind == "precision_recall":
        y, x, _ = metrics.precision_recall_curve(labels, scores)
        return x, y, float(metrics.average_precision_score(labels, scores))
    y, x = calibration_curve(labels, scores, n_bins=_BINS)
    bins = np.clip((scores * _BINS).astype(int), 0, _BINS - 1)
    gaps = [abs(float((scores[bins == one] - labels[bins == one]).sum())) for one in np.unique(bins)]
    return x, y, sum(gaps) / len(labels)


def draw_classification(kind: CurveKind, panels: Mapping[str, Pairs], names: Sequence[str]) -> Figure:
    """Draw a panel per target, of client -> probabilities and labels; all clients together are thick and black.

    Raises:
        DataError: no target has both classes.
    """
    drawn = {target: points for target, points in panels.items() if _has_both(list(points.values()))}
    if not drawn:
        raise DataError("no target has samples of both classes.")
    shown = dict(list(drawn.items())[: canvas.MOST_PANELS])
    missing = [target for target in panels if target not in drawn]
    title = _TITLES[kind]
    if len(shown) < len(drawn):
        title += f", the first {len(shown)} of {len(drawn)} targets"
    if missing:
        title += f"; one class only: {listed(missing, 3)}"
    if len(shown) == 1:
        figure = canvas.make_figure(title, (7.2, 5.0))
        ((target, points),) = shown.items()
        _draw_panel(figure.add_subplot(), kind, points, names, target if len(panels) > 1 else "", single=True)
        return figure
    figure, all_axes = canvas.panels_of(len(shown), title, 3.1)
    for axes, (target, points) in zip(all_axes, shown.items(), strict=True):
        _draw_panel(axes, kind, points, names, target, single=False)
    return figure


def _draw_panel(axes: Axes, kind: CurveKind, points: Pairs, names: Sequence[str], target: str, *, single: bool) -> None:
    curves = {client: classification_curve(kind, *pair) for client, pair in points.items() if _has_both([pair])}
    worst_first = sorted(curves, key=lambda client: curves[client][2], reverse=kind == "calibration")
    named = sorted(worst_first[: canvas.MOST_NAMES]) if single else []
    for client, (x, y, _) in curves.items():
        if client not in named:
            axes.plot(x, y, color=canvas.GREY, linewidth=0.7, zorder=1)
    for client, color in zip(named, canvas.PALETTE, strict=False):
        x, y, value = curves[client]
        axes.plot(x, y, color=color, linewidth=1.0, alpha=0.8, label=f"{names[client]} ({value:.3f})", zorder=2)
    probability, label = (torch.cat(parts) for parts in zip(*points.values(), strict=True))
    x, y, value = classification_curve(kind, probability, label)
    marker = "o" if kind == "calibration" else None
    axes.plot(x, y, color="black", linewidth=1.6, marker=marker, markersize=3, label=f"all ({value:.3f})", zorder=3)
    if kind == "precision_recall":
        axes.axhline(float(label.mean()), color="black", linewidth=0.8, linestyle="--")
    else:
        axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.set_xlabel(_AXES[kind][0], fontsize=None if single else 7)
    axes.set_ylabel(_AXES[kind][1], fontsize=None if single else 7)
    if single:
        if alone := [names[client] for client in points if client not in curves]:
            axes.plot([], [], " ", label=f"one class only:\n{listed(alone, 3)}")
        axes.set_title(target, fontsize=9)
        canvas.legend_beside(axes)
    else:
        axes.set_title(f"{target}\n{value:.3f}", fontsize=7)
        axes.tick_params(labelsize=6)


def _has_both(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    return 0 < sum(int(labels.sum()) for _, labels in pairs) < sum(len(labels) for _, labels in pairs)
