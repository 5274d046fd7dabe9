"""Figures of a study's results."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lightning_fl.runtime.drawing import BAD, GOOD, marked
from lightning_fl.study.cell_names import cell_name
from lightning_fl.study.claims import Answer
from lightning_fl.study.comparison_figures import ROW_COLORS
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.hover import add_tooltips
from lightning_fl.study.intervals import paired_interval
from lightning_fl.study.results import CellResult, StudyResults
from lightning_fl.study.table_columns import DIRECTIONS, direction_text

__all__ = ["VERDICT_COLORS", "draw_claims", "draw_curves", "draw_distributions", "draw_results", "group_cells"]

VERDICT_COLORS = {"holds": GOOD, "does not hold": BAD, "undecided": "#999933"}
_VERDICT_MARKERS = {"holds": "o", "does not hold": "X", "undecided": "D"}
_PUBLISHED = "0.35"
_PANELS_ACROSS = 3
_LABEL_LENGTH = 60
#: Tooltips of a line.
_MAX_TOOLTIPS = 40

#: Labels of a row or column of the table.
Labels = tuple[str, ...]
#: :attr:`~lightning_fl.study.results.CellResult.key` -> run.
Runs = Mapping[tuple[str, tuple[tuple[str, str], ...], int], FinishedRun]


def group_cells(results: StudyResults) -> dict[Labels, dict[Labels, list[CellResult]]]:
    """Column -> row -> cells of all seeds, in the order of the table."""
    layout = results.study.table
    found: dict[Labels, dict[Labels, list[CellResult]]] = {}
    for cell in results.cells:
        labels = {"arm": cell.arm, **cell.place}
        row, column = (tuple(labels[part] for part in parts) for parts in (layout.rows, layout.columns))
        found.setdefault(column, {}).setdefault(row, []).append(cell)
    return found


def draw_results(results: StudyResults, statistic: str) -> Figure:
    """Draw a statistic of every row: a dot per seed, the mean with its 95 % interval, and the published value."""
    study = results.study
    unit = 100.0 if study.table.percent else 1.0
    digits = study.table.digits + 1
    found = group_cells(results)
    rows = list(dict.fromkeys(row for column in found.values() for row in column))
    figure, grid = _grid(len(found), 0.34 * len(rows) + 1.1, sharey=True)
    for axes, (column, of_rows) in zip(grid, found.items(), strict=False):
        for place, row in enumerate(rows):
            name, values = ", ".join(row), {cell.seed: unit * cell.values[statistic] for cell in of_rows.get(row, [])}
            values = {seed: value for seed, value in values.items() if not math.isnan(value)}
            color = ROW_COLORS[place % len(ROW_COLORS)]
            dots = list(values.values())
            axes.plot(dots, [place] * len(dots), "o", color=color, alpha=0.35, markersize=4)
            texts = [f"{name}, seed {seed}: {value:.{digits}f}" for seed, value in values.items()]
            add_tooltips(axes, dots, [place] * len(dots), texts)
            if dots:
                mean, half = statistics.fmean(dots), _half_interval(dots)
                axes.errorbar(mean, place, xerr=half, fmt="o", color=color, markersize=6, capsize=3)
                margin = f" ± {half:.{digits}f}" if len(dots) > 1 else ""
                add_tooltips(axes, [mean], [place], [f"{name}: {mean:.{digits}f}{margin} ({_seeds(len(dots))})"])
            published = study.published.values.get((name, ", ".join(column), statistic))
            if published is not None:
                axes.plot(published[0], place, "D", markerfacecolor="none", color=_PUBLISHED, markersize=7)
                add_tooltips(axes, [published[0]], [place], [f"{name}, published: {published[0]:g}"])
        axes.set_yticks(range(len(rows)), [_short(", ".join(row)) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(", ".join(column), fontsize=10)
        axes.grid(axis="x", alpha=0.3)
        axes.set_xlabel(_value_label(results, statistic))
    handles = [
        Line2D([], [], marker="o", color="0.5", alpha=0.5, linestyle="", markersize=4, label="a seed"),
        Line2D([], [], marker="o", color="0.2", markersize=6, label="mean, 95 % interval"),
    ]
    if study.published.values:
        hollow = Line2D([], [], marker="D", color=_PUBLISHED, linestyle="", markerfacecolor="none", label="published")
        handles.append(hollow)
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_claims(answers: Sequence[Answer], unit: str) -> Figure:
    """Draw the difference of every claim with its 95 % interval.

    Args:
        answers: at least one.
        unit: of the differences, for the axis.
    """
    figure = Figure(figsize=(9.0, 0.42 * len(answers) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    for place, answer in enumerate(answers):
        interval, color = answer.interval, VERDICT_COLORS[answer.verdict]
        if not math.isnan(interval.low):
            axes.plot([interval.low, interval.high], [place, place], color=color, linewidth=2)
        axes.plot(interval.mean, place, _VERDICT_MARKERS[answer.verdict], color=color)
        bounds = "" if math.isnan(interval.low) else f" [{interval.low:+.4g}, {interval.high:+.4g}]"
        text = f"{_claim_label(answer)}: {interval.mean:+.4g}{bounds}, {answer.verdict} ({_seeds(interval.n)})"
        add_tooltips(axes, [interval.mean], [place], [text])
    axes.axvline(0.0, color="0.4", linewidth=1)
    axes.set_yticks(range(len(answers)), [_short(_claim_label(answer)) for answer in answers], fontsize=9)
    axes.set_ylim(len(answers) - 0.5, -0.5)
    axes.set_xlabel(f"left side minus right side{unit}, paired by seed, 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    return figure


def draw_curves(results: StudyResults, runs: Runs) -> Figure | None:
    """Draw the validation metric over rounds, a line per row: mean over seeds and clients, and the range over seeds.

    Returns:
        ``None`` without validation.
    """
    study = results.study
    unit = 100.0 if study.table.percent else 1.0
    found = group_cells(results)
    digits = study.table.digits + 1
    curves = {
        column: {row: [_curve(runs.get(cell.key), study.metric) for cell in cells] for row, cells in of_rows.items()}
        for column, of_rows in found.items()
    }
    curves = {
        column: {row: drawn for row, of_row in rows.items() if (drawn := [curve for curve in of_row if len(curve) > 1])}
        for column, rows in curves.items()
    }
    curves = {column: rows for column, rows in curves.items() if rows}
    if not curves:
        return None
    figure, grid = _grid(len(curves), 2.8)
    colors = _row_colors(found)
    for axes, (column, rows) in zip(grid, curves.items(), strict=False):
        for row, of_seeds in rows.items():
            table = pd.concat(of_seeds, axis=1).interpolate(method="index", limit_area="inside") * unit
            steps = table.index.to_numpy()
            marks = marked(list(colors).index(row), len(steps))
            mean = table.mean(axis=1)
            axes.plot(steps, mean, label=_short(", ".join(row)), **marks)
            texts = [f"{', '.join(row)}, round {step:g}: {value:.{digits}f}" for step, value in mean.items()]
            add_tooltips(axes, steps, mean, texts, most=_MAX_TOOLTIPS)
            if len(of_seeds) > 1:
                axes.fill_between(
                    steps, table.min(axis=1), table.max(axis=1), color=colors[row], alpha=0.15, linewidth=0
                )
        axes.set_title(", ".join(column), fontsize=10)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    grid[0].set_ylabel(f"{study.metric}{' in %' if study.table.percent else ''}, validation")
    _legend(figure, colors)
    return figure


def draw_distributions(results: StudyResults, runs: Runs) -> Figure | None:
    """Draw the cumulative distribution of the metric over the clients of all seeds, a line per row.

    Returns:
        ``None`` without a finished run.
    """
    study = results.study
    unit = 100.0 if study.table.percent else 1.0
    found = group_cells(results)
    digits = study.table.digits + 1
    values: dict[Labels, dict[Labels, list[float]]] = {}
    for column, of_rows in found.items():
        for row, cells in of_rows.items():
            done = [run for cell in cells if (run := runs.get(cell.key)) is not None]
            clients = [value for run in done for value in run.metric(study.metric, study.split).clients.values()]
            clients = [unit * value for value in clients if not math.isnan(value)]
            if clients:
                values.setdefault(column, {})[row] = clients
    if not values:
        return None
    figure, grid = _grid(len(values), 2.8)
    colors = _row_colors(found)
    for axes, (column, rows) in zip(grid, values.items(), strict=False):
        for row, clients in rows.items():
            axes.ecdf(clients, color=colors[row])
            at, shares = np.sort(clients), np.arange(1, len(clients) + 1) / len(clients)
            texts = [
                f"{', '.join(row)}: {share:.0%} of clients up to {value:.{digits}f}"
                for value, share in zip(at, shares, strict=True)
            ]
            add_tooltips(axes, at, shares, texts, most=_MAX_TOOLTIPS)
        axes.set_title(", ".join(column), fontsize=10)
        axes.set_xlabel(f"{study.metric}{' in %' if study.table.percent else ''} of a client, {study.split}")
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("share of clients below")
    _legend(figure, colors)
    return figure


def _curve(run: FinishedRun | None, metric: str) -> "pd.Series[float]":
    """Validation metric by rounds done; empty if not logged."""
    name = f"val/{metric}"
    if run is None or name not in run.curves:
        return pd.Series(dtype=float)
    rows = run.curves[["step", name]].dropna().drop_duplicates("step", keep="last")
    return rows.set_index("step")[name]


def _grid(count: int, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    across = min(count, _PANELS_ACROSS)
    down = -(-count // across)
    figure = Figure(figsize=(max(3.2 * across + 1.6, 6.0), height * down + 0.5), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=sharey)
    flat = list(grid.flat)
    for axes in flat[count:]:
        axes.set_visible(False)
    return figure, flat[:count]


def _row_colors(found: Mapping[Labels, Mapping[Labels, object]]) -> dict[Labels, str]:
    rows = dict.fromkeys(row for column in found.values() for row in column)
    return dict(zip(rows, cycle(ROW_COLORS), strict=False))


def _legend(figure: Figure, colors: Mapping[Labels, str]) -> None:
    handles = [
        Line2D([], [], label=_short(", ".join(row)), **(marked(number, 1) | {"color": color}))
        for number, (row, color) in enumerate(colors.items())
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5), frameon=False, fontsize=9)


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def _half_interval(values: Sequence[float]) -> float:
    """Half-width of the 95 % t-interval of a mean; 0 for one value."""
    interval = paired_interval(values)
    return 0.0 if math.isnan(interval.low) else interval.mean - interval.low


def _value_label(results: StudyResults, statistic: str) -> str:
    study = results.study
    higher = None if statistic in ("std", "rsd") else DIRECTIONS.get(statistic, results.higher_is_better)
    name = f"{statistic} {study.metric}" + (" in %" if study.table.percent else "")
    return ", ".join(filter(None, [name, direction_text(higher)]))


def _claim_label(answer: Answer) -> str:
    place = {axis: label for axis, label in answer.axes.items() if f"{axis}={label}" not in answer.claim}
    return f"{answer.claim}  ({cell_name('', place)})" if place else answer.claim


def _short(text: str) -> str:
    return text if len(text) <= _LABEL_LENGTH else f"{text[: _LABEL_LENGTH - 1]}…"
