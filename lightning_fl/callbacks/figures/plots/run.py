"""Figures of a run, drawn without pyplot and display.

All functions take ``names`` of the N clients, the figure's ``title``, and the ``source`` of the data.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.runtime.drawing import BAD, GOOD, PALETTE, marked

__all__ = [
    "Curve",
    "draw_client_curves",
    "draw_contributions",
    "draw_learning_curves",
    "draw_matrix",
    "draw_parities",
    "draw_parity",
    "hide_spines",
    "make_figure",
]

#: Clients with a colour and a legend entry; the others are grey.
MOST_NAMES = 12
#: Panels of a figure.
MOST_PANELS = 30
#: Largest matrix with written values.
MOST_VALUES = 12
_MOST_TICKS = 60
GREY = "0.75"
COLORS = PALETTE

#: Rounds and values of a curve.
Curve = tuple[Sequence[int], Sequence[float]]


def draw_matrix(matrix: Tensor, names: Sequence[str], title: str, source: str) -> Figure:
    """Draw a matrix [N, N] as a heat map; row i has the share of each client's update in client i's model."""
    values = matrix.detach().cpu().numpy()
    count = len(names)
    side = min(5.0 + 0.2 * count, 10.0)
    figure = make_figure(title, source, (side + 1.0, side))
    axes = figure.add_subplot()
    highest = float(values.max())
    image = axes.imshow(values, cmap="viridis", vmin=0.0, vmax=highest)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    ticks = list(range(0, count, -(-count // _MOST_TICKS)))
    fontsize = 9 if len(ticks) <= 20 else 6
    axes.set_xticks(ticks, [names[i] for i in ticks], rotation=90, fontsize=fontsize)
    axes.set_yticks(ticks, [names[i] for i in ticks], fontsize=fontsize)
    axes.set_xlabel("client whose update is used")
    axes.set_ylabel("client that uses it")
    if count <= MOST_VALUES:
        for row in range(count):
            for column in range(count):
                value = float(values[row, column])
                color = "white" if value < 0.5 * highest else "black"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize=8)
    return figure


def draw_client_curves(
    rounds: Sequence[int],
    values: Tensor,
    names: Sequence[str],
    *,
    title: str,
    ylabel: str,
    source: str,
    reference: tuple[str, float] | None = None,
) -> Figure:
    """Draw a line per client over rounds; of more than 12 clients the highest on average are coloured and named.

    Args:
        rounds: R round numbers.
        values: [R, N].
        ylabel: the quantity and its unit.
        reference: name and height of a dotted line.
    """
    table = values.detach().cpu().numpy()
    figure = make_figure(title, source, (7.5, 4.5))
    axes = figure.add_subplot()
    named = sorted(np.argsort(-table.mean(0), kind="stable")[:MOST_NAMES].tolist())
    for number, client in enumerate(named):
        axes.plot(rounds, table[:, client], linewidth=1.5, label=names[client], zorder=2, **marked(number, len(rounds)))
    others = [client for client in range(len(names)) if client not in named]
    for client in others:
        axes.plot(rounds, table[:, client], color=GREY, linewidth=0.7, zorder=1)
    if others:
        axes.plot([], [], color=GREY, linewidth=0.7, label=f"{len(others)} more")
    if reference is not None:
        axes.axhline(reference[1], color="black", linewidth=0.8, linestyle=":", label=reference[0])
    axes.set_xlabel("round")
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)
    return figure


def draw_contributions(
    rounds: Sequence[int], cumulated: Tensor, names: Sequence[str], *, title: str, ylabel: str, source: str
) -> Figure:
    """Draw cumulated contributions over rounds, and the totals as sorted bars.

    Of more than 12 clients the six with the largest and the six with the smallest totals are coloured and named.

    Args:
        rounds: R round numbers.
        cumulated: [R, N]; NaN before a client's first value.
        ylabel: the quantity and its unit.
    """
    table = cumulated.detach().cpu().numpy()
    clients = [client for client in range(len(names)) if np.isfinite(table[-1, client])]
    order = sorted(clients, key=lambda client: (-table[-1, client], client))
    half = MOST_NAMES // 2
    named = order if len(order) <= MOST_NAMES else [*order[:half], *order[-half:]]
    numbers = {client: number for number, client in enumerate(sorted(named))}
    colors = {client: COLORS[number] for client, number in numbers.items()}
    height = min(max(4.5, 1.5 + 0.22 * len(order)), 14.0)
    figure = make_figure(title, source, (10.0, height))
    lines, bars = figure.subplots(1, 2, width_ratios=[1.6, 1])
    for client in order:
        if client in numbers:
            style = marked(numbers[client], len(rounds)) | {"linewidth": 1.5, "label": names[client], "zorder": 2}
        else:
            style = {"color": GREY, "linewidth": 0.7, "marker": "." if len(rounds) == 1 else "", "zorder": 1}
        lines.plot(rounds, table[:, client], **style)
    if len(named) < len(order):
        lines.plot([], [], color=GREY, linewidth=0.7, label=f"{len(order) - len(named)} more")
    lines.axhline(0, color="black", linewidth=0.8, linestyle=":")
    lines.set_xlabel("round")
    lines.set_ylabel(ylabel)
    lines.xaxis.set_major_locator(MaxNLocator(integer=True))
    lines.legend(frameon=False, fontsize=8)
    places = list(range(len(order)))
    bars.barh(places, [table[-1, client] for client in order], color=[colors.get(i, GREY) for i in order])
    bars.axvline(0, color="black", linewidth=0.8)
    ticks = places[:: -(-len(order) // _MOST_TICKS) or 1]
    bars.set_yticks(ticks, [names[order[place]] for place in ticks], fontsize=9 if len(ticks) <= 20 else 6)
    bars.set_ylim(len(order) - 0.4, -0.6)
    bars.set_xlabel(f"total after round {rounds[-1]}")
    return figure


def draw_learning_curves(
    panels: Mapping[str, Mapping[int, Curve]], averages: Mapping[str, Curve], worst: Mapping[str, Curve], source: str
) -> Figure:
    """Draw a panel per metric over rounds: every client thin, mean and worst client thick.

    Args:
        panels: metric -> client -> curve.
        averages: metric -> mean over clients.
        worst: metric -> worst client.
    """
    figure = make_figure("Learning curves", source, (5.5 * max(len(panels), 1), 4.2))
    for position, (metric, clients) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), position)
        for curve in clients.values():
            axes.plot(*curve, color=GREY, linewidth=0.7, zorder=1)
        axes.plot([], [], color=GREY, linewidth=0.7, label="each client")
        axes.plot(*worst[metric], color=BAD, linewidth=1.8, linestyle="--", label="worst client")
        axes.plot(*averages[metric], color=GOOD, linewidth=1.8, label="average")
        axes.set_xlabel("round")
        axes.set_ylabel(metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8)
    return figure


def draw_parity(
    points: Mapping[int, tuple[Tensor, Tensor]], names: Sequence[str], *, quantity: str, unit: str, source: str
) -> Figure:
    """Draw predicted over measured values, with the RMSE over all samples in the title.

    Args:
        points: client -> (predictions [n], targets [n]), without missing values.
        quantity: predicted quantity.
        unit: of the quantity; "" if unknown.
    """
    errors = {client: _rmse(*pair) for client, pair in points.items()}
    predictions = np.concatenate([prediction.numpy() for prediction, _ in points.values()])
    targets = np.concatenate([target.numpy() for _, target in points.values()])
    overall = float(np.sqrt(np.mean((predictions - targets) ** 2)))
    suffix = f" {unit}" if unit else ""
    truth = "computed" if source == "stand-in" else "measured"
    figure = make_figure(f"{quantity}: RMSE {overall:.3g}{suffix} over all {len(targets)} samples", source, (6.8, 5.4))
    axes = figure.add_subplot()
    # The worst clients are named.
    named = sorted(sorted(points, key=lambda client: -errors[client])[:MOST_NAMES])
    others = [client for client in points if client not in named]
    style: dict[str, Any] = {"s": 14, "linewidths": 0, "rasterized": len(targets) > 2000}
    for client, color in zip(named, COLORS, strict=False):
        prediction, target = points[client]
        label = f"{names[client]} (RMSE {errors[client]:.3g})"
        axes.scatter(target.numpy(), prediction.numpy(), color=color, alpha=0.7, label=label, zorder=2, **style)
    if others:
        x = np.concatenate([points[client][1].numpy() for client in others])
        y = np.concatenate([points[client][0].numpy() for client in others])
        axes.scatter(x, y, color=GREY, alpha=0.6, label=f"{len(others)} more", zorder=1, **style)
    finite = np.concatenate([targets, predictions])
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.5
    limits = (low - margin, high + margin)
    axes.plot(limits, limits, color="black", linewidth=0.8, linestyle="--", label=f"predicted = {truth}")
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_aspect("equal")
    per_unit = f" / {unit}" if unit else ""
    axes.set_xlabel(f"{truth}{per_unit}")
    axes.set_ylabel(f"predicted{per_unit}")
    _legend(axes)
    return figure


def draw_parities(
    panels: Mapping[str, Mapping[int, tuple[Tensor, Tensor]]], units: Mapping[str, str], *, source: str
) -> Figure:
    """Draw a small panel per target with predicted over measured values of all clients and their RMSE.

    Args:
        panels: target -> client -> (predictions [n], targets [n]), without missing values.
        units: target -> unit; "" if unknown.
    """
    shown = dict(list(panels.items())[:MOST_PANELS])
    title = "predicted over " + ("computed" if source == "stand-in" else "measured")
    if len(shown) < len(panels):
        title += f", the first {len(shown)} of {len(panels)} targets"
    columns = math.ceil(math.sqrt(len(shown)))
    rows = math.ceil(len(shown) / columns)
    figure = make_figure(title, source, (2.9 * columns, 2.9 * rows + 0.6))
    for position, (target, points) in enumerate(shown.items(), start=1):
        axes = figure.add_subplot(rows, columns, position)
        predictions = torch.cat([prediction for prediction, _ in points.values()])
        targets = torch.cat([measured for _, measured in points.values()])
        axes.scatter(targets.numpy(), predictions.numpy(), s=5, linewidths=0, alpha=0.6, color=GOOD)
        both = torch.cat([predictions, targets])
        both = both[both.isfinite()]
        limits = (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)
        axes.plot(limits, limits, color="black", linewidth=0.8, linestyle="--")
        unit = f" {units[target]}" if units.get(target) else ""
        axes.set_title(f"{target}\nRMSE {_rmse(predictions, targets):.3g}{unit}", fontsize=7)
        axes.tick_params(labelsize=6)
    return figure


def make_figure(title: str, source: str, size: tuple[float, float]) -> Figure:
    """Create an empty figure with the source of its data."""
    figure = Figure(figsize=size, layout="constrained")
    standin = source == "stand-in"
    note = STAND_IN_LABEL if standin else f"data: {source}"
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(note, fontsize=9, color="red" if standin else "0.4", weight="bold" if standin else "normal")
    return figure


def hide_spines(*panels: Axes, sides: Sequence[str] = ("top", "right")) -> None:
    """Hide sides of the frame."""
    for axes in panels:
        for side in sides:
            axes.spines[side].set_visible(False)


def _legend(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)


def _rmse(predictions: Tensor, targets: Tensor) -> float:
    return float((predictions - targets).square().mean().sqrt())
