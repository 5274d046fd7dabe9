"""Figures of a comparison. A row has the same colour in all of them. Imports neither pyplot nor torch."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lightning_fl.data.source import STAND_IN, STAND_IN_LABEL
from lightning_fl.runtime.drawing import PALETTE
from lightning_fl.study.comparison_table import known_direction
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.table_columns import direction_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_client_distribution", "draw_client_values", "draw_comparison_curves"]

#: Further rows repeat the colours with another dash.
ROW_COLORS = PALETTE
_LABEL_WIDTH = 28


def draw_comparison_curves(
    groups: Mapping[str, Sequence[FinishedRun]], metric: str, split: str = "val"
) -> "Figure | None":
    """Draw a metric over rounds and, if counted, over the megabytes sent and received by all clients.

    Solid lines show the mean over clients, dashed lines the worst client, both averaged over seeds for the rounds that
    all seeds have. Bands show one standard deviation over seeds.

    Args:
        groups: label -> runs.
        metric: name without the split.
        split: of the curves.

    Returns:
        ``None`` if no run logged the metric by round.
    """
    curves = {
        label: [curve for run in runs if len(curve := run.curve(metric, split))] for label, runs in groups.items()
    }
    if not any(curves.values()):
        return None
    counted = any(curve["megabytes"].notna().any() for found in curves.values() for curve in found)
    sources = list(dict.fromkeys(run.data_source for runs in groups.values() for run in runs))
    figure = _figure(f"{split} {metric} during training", sources, (12.0 if counted else 8.5, 5.0))
    panels = figure.subplots(1, 2 if counted else 1, squeeze=False, sharey=True)[0]
    several = any(len(found) > 1 for found in curves.values())
    for number, (label, found) in enumerate(curves.items()):
        if found:
            style = _style(number)
            _draw_curve(panels[0], found, "round", style, label)
            if counted:
                _draw_curve(panels[1], [curve.dropna(subset="megabytes") for curve in found], "megabytes", style, None)
    panels[0].set_xlabel("round")
    panels[0].set_ylabel(_with_direction(metric, _direction(groups, metric)))
    panels[0].xaxis.get_major_locator().set_params(integer=True)
    if counted:
        panels[1].set_xlabel("sent and received by all clients, MB")
    panels[0].plot([], [], color="0.3", label="mean over clients")
    panels[0].plot([], [], color="0.3", linewidth=1.0, linestyle="--", label="worst client")
    if several:
        panels[0].fill_between([], [], [], color="0.3", alpha=0.2, linewidth=0, label="± std over seeds")
    _legend(figure, panels[0])
    return figure


def draw_client_values(clients: pd.DataFrame, *, gain_over: str | None = None) -> "Figure":
    """Draw a dot per client and seed, a row per group, with marks for the mean and the worst dot.

    Args:
        clients: rows of one metric of :func:`~lightning_fl.study.comparison_table.client_comparison`.
        gain_over: draw gains over this reference instead of values; dots of harmed clients are hollow.
    """
    gains = gain_over is not None
    shown = "gain" if gains else "value"
    order = {label: number for number, label in enumerate(dict.fromkeys(clients["label"]))}
    clients = clients[np.isfinite(clients[shown])]
    labels = list(dict.fromkeys(clients["label"]))
    metric, split = clients["metric"].iloc[0], clients["split"].iloc[0]
    higher = clients["higher_is_better"].iloc[0]
    if gains:
        title = f"Every client's gain in {split} {metric}"
        axis = f"gain in {metric} over {gain_over}, positive is better"
    else:
        title, axis = f"Every client's {split} {metric}", _with_direction(metric, higher)
    height = 1.8 + 0.55 * len(labels)
    figure = _figure(title, list(dict.fromkeys(clients["source"])), (8.5, max(height, 3.2)))
    axes = figure.add_subplot()
    if gains:
        axes.axvline(0, color="black", linewidth=0.8)
    for place, label in enumerate(labels):
        values = clients.loc[clients["label"] == label, shown].to_numpy(dtype=float)
        values = np.sort(values)
        color = _style(order[label])[0]
        spread = _spread(len(values))
        harmed = values < 0 if gains else np.zeros(len(values), dtype=bool)
        size = 22 if len(values) <= 40 else 12
        axes.scatter(values[~harmed], place + spread[~harmed], s=size, color=color, alpha=0.75, linewidths=0)
        axes.scatter(
            values[harmed], place + spread[harmed], s=size, facecolors="none", edgecolors=color, linewidths=0.9
        )
        axes.plot([values.mean()] * 2, [place - 0.36, place + 0.36], color="black", linewidth=1.8, zorder=3)
        if gains or higher is not None:
            worst = values[0] if gains or higher else values[-1]
            axes.scatter([worst], [place + 0.42], marker="^", s=30, color="black", zorder=3, linewidths=0)
    axes.set_yticks(range(len(labels)), [_wrapped(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel(axis)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.plot([], [], color="black", linewidth=1.8, label="mean")
    if gains or higher is not None:
        axes.scatter([], [], marker="^", s=30, color="black", linewidths=0, label="worst dot")
    if gains:
        axes.scatter([], [], s=22, facecolors="none", edgecolors="0.3", linewidths=0.9, label="harmed")
    _legend(figure, axes)
    return figure


def draw_client_distribution(clients: pd.DataFrame) -> "Figure":
    """Draw the cumulative distribution over the clients of all seeds, a curve per group.

    Args:
        clients: rows of one metric of :func:`~lightning_fl.study.comparison_table.client_comparison`.
    """
    metric, split = clients["metric"].iloc[0], clients["split"].iloc[0]
    higher = clients["higher_is_better"].iloc[0]
    sources = list(dict.fromkeys(clients["source"]))
    figure = _figure(f"Distribution of {split} {metric} over clients", sources, (8.5, 4.8))
    axes = figure.add_subplot()
    for number, label in enumerate(dict.fromkeys(clients["label"])):
        values = clients.loc[clients["label"] == label, "value"].to_numpy(dtype=float)
        values = values[np.isfinite(values)]
        if len(values):
            color, dash = _style(number)
            axes.ecdf(values, color=color, linestyle=dash, linewidth=1.6, label=_wrapped(label))
    axes.set_xlabel(_with_direction(metric, higher))
    axes.set_ylabel("share of clients with at most this value")
    axes.set_ylim(0, 1.02)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    _legend(figure, axes)
    return figure


def _draw_curve(
    axes: "Axes", curves: Sequence[pd.DataFrame], along: str, style: tuple[str, str], label: str | None
) -> None:
    """Draw means over seeds for the rounds that all seeds have."""
    rounds = set.intersection(*(set(curve["round"]) for curve in curves))
    table = pd.concat([curve[curve["round"].isin(rounds)] for curve in curves])
    if table.empty:
        return
    by_round = table.groupby("round")
    mean, worst = by_round["mean"].mean(), by_round["worst"].mean()
    x = mean.index.to_numpy() if along == "round" else by_round[along].mean().to_numpy()
    color, dash = style
    marker = "." if len(x) == 1 else ""
    name = None if label is None else _wrapped(label)
    axes.plot(x, mean, color=color, linestyle=dash, marker=marker, linewidth=1.6, label=name)
    axes.plot(x, worst, color=color, marker=marker, linewidth=1.0, linestyle="--", alpha=0.8)
    if len(curves) > 1:
        deviation = by_round["mean"].std(ddof=1)
        axes.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)


def _style(number: int) -> tuple[str, str]:
    return ROW_COLORS[number % len(ROW_COLORS)], "-" if number < len(ROW_COLORS) else "-."


def _spread(count: int) -> np.ndarray:
    """Vertical offsets that separate dots: multiples of the golden ratio modulo 1."""
    return (np.arange(1, count + 1) * (math.sqrt(5) - 1) / 2 % 1 - 0.5) * 0.56


def _direction(groups: Mapping[str, Sequence[FinishedRun]], metric: str) -> bool | None:
    for runs in groups.values():
        for run in runs:
            for split in run.splits():
                if metric in run.metric_names(split):
                    return known_direction(run.metric(metric, split))
    return None


def _with_direction(metric: str, higher_is_better: bool | None) -> str:
    return ", ".join(filter(None, [metric, direction_text(higher_is_better)]))


def _figure(title: str, sources: Sequence[str], size: tuple[float, float]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    standin = STAND_IN in sources
    others = [source for source in sources if source != STAND_IN]
    note = (
        f"{STAND_IN_LABEL}{' and ' + ', '.join(others) if others else ''}" if standin else f"data: {', '.join(sources)}"
    )
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(note, fontsize=9, color="red" if standin else "0.4", weight="bold" if standin else "normal")
    return figure


def _legend(figure: "Figure", axes: "Axes") -> None:
    """Add a legend next to the panels and fit the figure's height to it."""
    handles, labels = axes.get_legend_handles_labels()
    width, height = figure.get_size_inches()
    lines = sum(label.count("\n") + 1 for label in labels)
    figure.set_size_inches(width, max(height, 0.8 + 0.16 * lines + 0.05 * len(labels)))
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)


def _wrapped(label: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(label, _LABEL_WIDTH))
