"""Figures of a run: collaboration, graph, curves over rounds, contributions, parity plots."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from lightning_fl.callbacks.figures.plots import canvas
from lightning_fl.callbacks.predictions import Pairs
from lightning_fl.runtime.drawing import GOOD, plot_curve

#: Colour -> what it means for two clients of a graph.
_CHOICES = {"white": "", "#f6d55c": "may be chosen", "#20639b": "chosen", "0.6": "itself"}
#: Panels of a graph, and clients whose names fit into one.
_MOST_ROUNDS, _MOST_NAMED = 6, 30


def draw_matrix(matrix: ArrayLike, names: Sequence[str], title: str, unit: str = "weight") -> Figure:
    """Draw a matrix [N, N] as a heat map; row i has the share of each client's update in client i's model."""
    values = np.asarray(matrix)
    side = min(5.0 + 0.2 * len(names), 10.0)
    highest = float(values.max())
    figure, axes = canvas.heat_map(values, title, (side + 1.0, side), unit, cmap="viridis", vmin=0.0, vmax=highest)
    canvas.name_clients(axes, "x", range(len(names)), names)
    canvas.name_clients(axes, "y", range(len(names)), names)
    axes.set(xlabel="client whose update is used", ylabel="client that uses it")
    canvas.write_values(axes, values, values < 0.5 * highest, ".2f")
    return figure


def draw_client_curves(
    rounds: Sequence[int],
    values: ArrayLike,
    names: Sequence[str],
    *,
    title: str,
    ylabel: str,
    reference: tuple[str, float] | None = None,
) -> Figure:
    """Draw a line per client of values [R, N]; of more than 12 the highest on average are coloured and named."""
    table = np.asarray(values)
    figure = canvas.make_figure(title, (7.5, 4.5))
    axes = figure.add_subplot()
    named = sorted(np.argsort(-table.mean(0), kind="stable")[: canvas.MOST_NAMES].tolist())
    others = [client for client in range(len(names)) if client not in named]
    canvas.client_lines(axes, rounds, table, [*named, *others], {c: i for i, c in enumerate(named)}, names, 1.5)
    if reference is not None:
        axes.axhline(reference[1], color="black", linewidth=0.8, linestyle=":", label=reference[0])
    axes.set_ylabel(ylabel)
    canvas.round_axis(axes)
    canvas.legend_beside(axes)
    return figure


def draw_contributions(
    rounds: Sequence[int], cumulated: ArrayLike, names: Sequence[str], *, title: str, ylabel: str
) -> Figure:
    """Draw contributions [R, N], cumulated over rounds (NaN before a client's first), and the totals as sorted bars.

    Of more than 12 clients the six with the largest and the six with the smallest totals are coloured and named.
    """
    table = np.asarray(cumulated)
    clients = [client for client in range(len(names)) if np.isfinite(table[-1, client])]
    order = sorted(clients, key=lambda client: (-table[-1, client], client))
    named = {client: number for number, client in enumerate(sorted(canvas.both_ends(order)))}
    figure = canvas.make_figure(title, (10.0, min(max(4.5, 1.5 + 0.22 * len(order)), 14.0)))
    lines, bars = figure.subplots(1, 2, width_ratios=[1.6, 1])
    canvas.client_lines(lines, rounds, table, order, named, names, 1.5)
    lines.axhline(0, color="black", linewidth=0.8, linestyle=":")
    lines.set_ylabel(ylabel)
    canvas.round_axis(lines)
    lines.legend(frameon=False, fontsize=8)
    colors = [canvas.PALETTE[named[client]] if client in named else canvas.GREY for client in order]
    bars.barh(range(len(order)), [table[-1, client] for client in order], color=colors)
    bars.axvline(0, color="black", linewidth=0.8)
    canvas.name_clients(bars, "y", order, names)
    bars.set(ylim=(len(order) - 0.4, -0.6), xlabel=f"total after round {rounds[-1]}")
    return figure


def draw_learning_curves(history: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Figure:
    """Draw a panel per metric over rounds: every client thin, mean and worst client thick."""
    figure = canvas.make_figure("Learning curves", (5.5 * len(history), 4.2))
    for axes, (metric, rounds) in zip(figure.subplots(1, len(history), squeeze=False)[0], history.items(), strict=True):
        for client in dict.fromkeys(client for values in rounds.values() for client in values["clients"]):
            points = {n: values["clients"][client] for n, values in rounds.items() if client in values["clients"]}
            axes.plot(list(points), list(points.values()), color=canvas.GREY, linewidth=0.7, zorder=1)
        axes.plot([], [], color=canvas.GREY, linewidth=0.7, label="each client")
        mean, worst = ([values[part] for values in rounds.values()] for part in ("mean", "worst"))
        plot_curve(axes, list(rounds), mean, worst, GOOD, label="mean over clients")
        axes.plot([], [], color=GOOD, linewidth=1.0, linestyle="--", label="worst client")
        axes.set_ylabel(metric)
        canvas.round_axis(axes)
        axes.legend(frameon=False, fontsize=8)
    return figure


def draw_graph(
    rounds: Sequence[int],
    chosen: Sequence[Mapping[int, Sequence[int]]],
    candidates: Mapping[int, Sequence[int]],
    names: Sequence[str],
) -> Figure:
    """Draw a matrix for each of up to six rounds: row k has the chosen collaborators and the candidates of client k."""
    shown = np.unique(np.linspace(0, len(rounds) - 1, min(_MOST_ROUNDS, len(rounds))).round().astype(int)).tolist()
    columns = min(len(shown), 3)
    rows, count = -(-len(shown) // columns), len(names)
    title = "Whose models each client averages its own with"
    figure = canvas.make_figure(title, (3.6 * columns + 1.4, 3.5 * rows + 0.8))
    for position, index in enumerate(shown, start=1):
        image = np.zeros((count, count), dtype=int)
        for value, neighbours in ((1, candidates), (2, chosen[index])):
            for k, others in neighbours.items():
                image[k, list(others)] = value
        np.fill_diagonal(image, 3)
        axes = figure.add_subplot(rows, columns, position)
        axes.imshow(image, cmap=ListedColormap(list(_CHOICES)), vmin=0, vmax=3, interpolation="nearest")
        edges = sum(len(others) for others in chosen[index].values())
        axes.set_title(f"round {rounds[index]}: {edges} edges", fontsize=9)
        ticks = list(range(count)) if count <= _MOST_NAMED else []
        axes.set_xticks(ticks, [names[i] for i in ticks] if position > len(shown) - columns else [], rotation=90)
        axes.set_yticks(ticks, [names[i] for i in ticks] if position % columns == 1 or columns == 1 else [])
        axes.tick_params(labelsize=6, length=2)
        axes.set_xlabel("client whose model is taken", fontsize=8)
        axes.set_ylabel("client that chooses", fontsize=8)
    handles = [Patch(facecolor=color, edgecolor="0.4", label=meaning) for color, meaning in list(_CHOICES.items())[1:]]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8)
    return figure


def draw_parity(points: Pairs, names: Sequence[str], *, quantity: str, unit: str, truth: str = "measured") -> Figure:
    """Draw predicted over measured (or computed) values, with the RMSE over all samples in the title."""
    errors = {client: float((given - true).square().mean().sqrt()) for client, (given, true) in points.items()}
    predictions, targets = _together(points)
    overall = float(np.sqrt(np.mean((predictions - targets) ** 2)))
    suffix = f" {unit}" if unit else ""
    figure = canvas.make_figure(f"{quantity}: RMSE {overall:.3g}{suffix} over all {len(targets)} samples", (6.8, 5.4))
    axes = figure.add_subplot()
    # The worst clients are named.
    named = sorted(sorted(points, key=lambda client: -errors[client])[: canvas.MOST_NAMES])
    others = {client: pair for client, pair in points.items() if client not in named}
    style: dict[str, Any] = {"s": 14, "linewidths": 0, "rasterized": len(targets) > 2000}
    for client, color in zip(named, canvas.PALETTE, strict=False):
        prediction, target = points[client]
        label = f"{names[client]} (RMSE {errors[client]:.3g})"
        axes.scatter(target.numpy(), prediction.numpy(), color=color, alpha=0.7, label=label, zorder=2, **style)
    if others:
        y, x = _together(others)
        axes.scatter(x, y, color=canvas.GREY, alpha=0.6, label=f"{len(others)} more", zorder=1, **style)
    low, high = _range(predictions, targets)
    margin = 0.05 * (high - low) or 0.5
    limits = (low - margin, high + margin)
    axes.plot(limits, limits, color="black", linewidth=0.8, linestyle="--", label=f"predicted = {truth}")
    per_unit = f" / {unit}" if unit else ""
    axes.set(xlim=limits, ylim=limits, aspect="equal", xlabel=f"{truth}{per_unit}", ylabel=f"predicted{per_unit}")
    canvas.legend_beside(axes)
    return figure


def draw_parities(panels: Mapping[str, Pairs], units: Mapping[str, str], *, truth: str = "measured") -> Figure:
    """Draw a small panel per target with predicted over measured values of all clients and their RMSE."""
    shown = dict(list(panels.items())[: canvas.MOST_PANELS])
    title = f"predicted over {truth}"
    if len(shown) < len(panels):
        title += f", the first {len(shown)} of {len(panels)} targets"
    figure, all_axes = canvas.panels_of(len(shown), title, 2.9)
    for axes, (target, points) in zip(all_axes, shown.items(), strict=True):
        predictions, targets = _together(points)
        axes.scatter(targets, predictions, s=5, linewidths=0, alpha=0.6, color=GOOD)
        limits = _range(predictions, targets)
        axes.plot(limits, limits, color="black", linewidth=0.8, linestyle="--")
        unit = f" {units[target]}" if units.get(target) else ""
        error = float(np.sqrt(np.mean((predictions - targets) ** 2)))
        axes.set_title(f"{target}\nRMSE {error:.3g}{unit}", fontsize=7)
        axes.tick_params(labelsize=6)
    return figure


def _together(points: Pairs) -> tuple[np.ndarray, np.ndarray]:
    predictions, targets = (torch.cat(parts).numpy() for parts in zip(*points.values(), strict=True))
    return predictions, targets


def _range(*values: np.ndarray) -> tuple[float, float]:
    """Smallest and largest finite value."""
    finite = np.concatenate(values)
    finite = finite[np.isfinite(finite)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
