"""Figures of comparisons and studies. A row has the same colour in all of them. Imports neither pyplot nor torch."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lightning_fl.core.errors import counted
from lightning_fl.runtime.drawing import BAD, GOOD, PALETTE, plot_curve, plot_distribution, show_source
from lightning_fl.study.claims import cell_name
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.intervals import Interval, paired_interval
from lightning_fl.study.page import add_tooltips
from lightning_fl.study.render import DIRECTIONS, direction_text
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_tables import group_cells

#: Title of a panel -> label of a row -> runs.
Panels = Mapping[str, Mapping[str, Sequence[FinishedRun]]]

_PANELS_ACROSS = 3
_LABEL_WIDTH = 28
#: Tooltips of a line.
_MAX_TOOLTIPS = 40
_VERDICTS = {"holds": ("o", GOOD), "does not hold": ("X", BAD), "undecided": ("D", "#999933")}
_VERDICTS |= {"better": _VERDICTS["holds"], "worse": _VERDICTS["does not hold"]}
_PUBLISHED = "0.35"
_LABEL_LENGTH = 60


def draw_curves(
    panels: Panels, metric: str | None = None, split: str = "val", *, percent: bool = False, title: str = ""
) -> Figure | None:
    """Draw a metric over rounds and, for a single panel, over the megabytes moved by all clients, if counted.

    Solid lines show the mean over clients, dashed lines the worst client, both averaged over seeds for the rounds that
    all seeds have. Bands show one standard deviation over seeds. Without a metric, the panels' titles are metrics.
    Returns ``None`` if no run logged the metric by round.
    """
    curves = {
        panel: {row: [c for run in runs if len(c := run.curve(metric or panel, split))] for row, runs in rows.items()}
        for panel, rows in panels.items()
    }
    curves = {panel: rows for panel, rows in curves.items() if any(rows.values())}
    if not curves:
        return None
    shown = [(panel, rows, "round") for panel, rows in curves.items()]
    if len(shown) == 1 and any(curve["megabytes"].notna().any() for found in shown[0][1].values() for curve in found):
        shown.append(("", shown[0][1], "megabytes"))
    figure, grid = _panel_grid(len(shown), _sources(panels), title, sharey=len(curves) == 1)
    styles = _row_style(panels)
    for axes, (panel, rows, along) in zip(grid, shown, strict=True):
        for row, found in rows.items():
            if found:
                _draw_curve(axes, [curve.dropna(subset=along) for curve in found], along, row, styles[row], percent)
        axes.set(title=panel, xlabel="round" if along == "round" else "sent and received by all clients, MB")
        if along == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if metric is not None:
        grid[0].set_ylabel(_value_axis(metric, _direction(panels, metric), percent))
    grid[0].plot([], [], color="0.3", label="mean over clients")
    grid[0].plot([], [], color="0.3", linewidth=1.0, linestyle="--", label="worst client")
    if any(len(found) > 1 for rows in curves.values() for found in rows.values()):
        grid[0].fill_between([], [], [], color="0.3", alpha=0.2, linewidth=0, label="± std over seeds")
    _legend(figure, grid)
    return figure


def draw_distributions(
    panels: Panels, metric: str, split: str = "test", *, percent: bool = False, title: str = ""
) -> Figure | None:
    """Draw the cumulative distribution over the clients of all seeds, a line per row; ``None`` without a value."""
    unit = 100.0 if percent else 1.0
    values = {
        panel: {
            row: np.sort([unit * value for run in runs for value in run.metric(metric, split).sample])
            for row, runs in rows.items()
        }
        for panel, rows in panels.items()
    }
    values = {panel: {row: of[np.isfinite(of)] for row, of in rows.items()} for panel, rows in values.items()}
    values = {panel: rows for panel, rows in values.items() if any(map(len, rows.values()))}
    if not values:
        return None
    figure, grid = _panel_grid(len(values), _sources(panels), title)
    styles = _row_style(panels)
    for axes, (panel, rows) in zip(grid, values.items(), strict=True):
        for row, clients in rows.items():
            if len(clients):
                color, dash = styles[row]
                plot_distribution(axes, clients, color, linestyle=dash, label=_wrapped(row))
                shares = np.arange(1, len(clients) + 1) / len(clients)
                pairs = zip(clients, shares, strict=True)
                texts = [f"{row}: {share:.0%} of clients up to {value:.4g}" for value, share in pairs]
                add_tooltips(axes, clients, shares, texts, most=_MAX_TOOLTIPS)
        axes.set(title=panel, xlabel=_value_axis(metric, _direction(panels, metric), percent))
    grid[0].set_ylabel("share of clients with at most this value")
    _legend(figure, grid)
    return figure


def draw_client_values(clients: pd.DataFrame, *, gain_over: str | None = None) -> Figure | None:
    """Draw a dot per client and seed, a row per group, with marks for the mean and the worst dot.

    ``clients`` has one metric of :func:`~lightning_fl.study.comparison_table.client_comparison`. ``gain_over`` draws
    gains over this reference instead of values; dots of harmed clients are hollow. Returns ``None`` without a value.
    """
    gains = gain_over is not None
    shown = "gain" if gains else "value"
    styles = _row_style({"": clients["label"]})
    clients = clients[np.isfinite(clients[shown])]
    if clients.empty:
        return None
    labels = list(dict.fromkeys(clients["label"]))
    metric, split, higher = (clients[name].iloc[0] for name in ("metric", "split", "higher_is_better"))
    title = f"Every client's {f'gain in {split} {metric}' if gains else f'{split} {metric}'}"
    axis = f"gain in {metric} over {gain_over}, positive is better" if gains else _value_axis(metric, higher)
    figure = _figure((8.5, max(1.8 + 0.55 * len(labels), 3.2)), list(dict.fromkeys(clients["source"])), title)
    axes = figure.add_subplot()
    if gains:
        axes.axvline(0, color="black", linewidth=0.8)
    for place, label in enumerate(labels):
        values = np.sort(clients.loc[clients["label"] == label, shown].to_numpy(dtype=float))
        # Offsets that separate dots: multiples of the golden ratio modulo 1.
        offsets = (np.arange(1, len(values) + 1) * (math.sqrt(5) - 1) / 2 % 1 - 0.5) * 0.56
        color, at = styles[label][0], place + offsets
        harmed = values < 0 if gains else np.zeros(len(values), dtype=bool)
        size = 22 if len(values) <= 40 else 12
        axes.scatter(values[~harmed], at[~harmed], s=size, color=color, alpha=0.75, linewidths=0)
        axes.scatter(values[harmed], at[harmed], s=size, facecolors="none", edgecolors=color, linewidths=0.9)
        axes.plot([values.mean()] * 2, [place - 0.36, place + 0.36], color="black", linewidth=1.8, zorder=3)
        if gains or higher is not None:
            worst = values[0] if gains or higher else values[-1]
            axes.scatter([worst], [place + 0.42], marker="^", s=30, color="black", zorder=3, linewidths=0)
    axes.set_yticks(range(len(labels)), [_wrapped(label) for label in labels])
    axes.set(ylim=(len(labels) - 0.4, -0.6), xlabel=axis, axisbelow=True)
    axes.grid(axis="x", color="0.9")
    axes.plot([], [], color="black", linewidth=1.8, label="mean")
    if gains or higher is not None:
        axes.scatter([], [], marker="^", s=30, color="black", linewidths=0, label="worst dot")
    if gains:
        axes.scatter([], [], s=22, facecolors="none", edgecolors="0.3", linewidths=0.9, label="harmed")
    _legend(figure, [axes])
    return figure


def draw_results(results: StudyResults, statistic: str) -> Figure:
    """Draw a statistic of every row: a dot per seed, the mean with its 95 % interval, and the published value."""
    study = results.study
    digits = study.table.digits + 1
    panels = group_cells(results)
    rows = _row_style(panels)
    sources = list(dict.fromkeys(cell.data_source for cell in results.cells if cell.data_source))
    figure, grid = _panel_grid(len(panels), sources, height=0.34 * len(rows) + 1.1, sharey=True)
    for axes, (column, of_rows) in zip(grid, panels.items(), strict=True):
        for place, (row, (color, _)) in enumerate(rows.items()):
            values = {cell.seed: study.table.unit * cell.values[statistic] for cell in of_rows[row]}
            values = {seed: value for seed, value in values.items() if not math.isnan(value)}
            dots = list(values.values())
            axes.plot(dots, [place] * len(dots), "o", color=color, alpha=0.35, markersize=4)
            texts = [f"{row}, seed {seed}: {value:.{digits}f}" for seed, value in values.items()]
            add_tooltips(axes, dots, [place] * len(dots), texts)
            if dots:
                interval = paired_interval(dots)
                mean = interval.mean
                half = 0.0 if math.isnan(interval.low) else mean - interval.low
                axes.errorbar(mean, place, xerr=half, fmt="o", color=color, markersize=6, capsize=3)
                margin = f" ± {half:.{digits}f}" if len(dots) > 1 else ""
                text = f"{row}: {mean:.{digits}f}{margin} ({counted(len(dots), 'seed')})"
                add_tooltips(axes, [mean], [place], [text])
            if published := study.published.values.get((row, column, statistic)):
                axes.plot(published[0], place, "D", markerfacecolor="none", color=_PUBLISHED, markersize=7)
                add_tooltips(axes, [published[0]], [place], [f"{row}, published: {published[0]:g}"])
        axes.set_yticks(range(len(rows)), list(map(_short, rows)))
        direction = None if statistic in ("std", "rsd") else DIRECTIONS.get(statistic, results.higher_is_better)
        xlabel = _value_axis(f"{statistic} {study.metric}", direction, study.table.percent)
        axes.set(ylim=(len(rows) - 0.5, -0.5), title=column, xlabel=xlabel)
    grid[0].plot([], [], "o", color="0.5", alpha=0.5, markersize=4, label="a seed")
    grid[0].plot([], [], "o-", color="0.2", markersize=6, label="mean, 95 % interval")
    if study.published.values:
        grid[0].plot([], [], "D", color=_PUBLISHED, markerfacecolor="none", label="published")
    _legend(figure, grid)
    return figure


def draw_claims(results: StudyResults) -> Figure | None:
    """Draw the difference of every claim with its 95 % interval; ``None`` without a difference."""
    unit = " in percentage points" if results.study.table.percent else ""
    answers, fixed = {}, {claim.text: dict(claim.axes) for claim in results.study.claims}
    for answer in results.answers:
        place = {axis: label for axis, label in answer.axes.items() if axis not in fixed[answer.claim]}
        label = f"{answer.claim}  ({cell_name('', place)})" if place else answer.claim
        answers[label] = (answer.interval, answer.verdict)
    return draw_intervals(answers, f"left side minus right side{unit}, paired by seed, 95 % interval")


def draw_intervals(found: Mapping[str, tuple[Interval, str]], xlabel: str) -> Figure | None:
    """Draw label -> interval and verdict, those without a mean left out; ``None`` if that leaves none."""
    found = {label: of for label, of in found.items() if not math.isnan(of[0].mean)}
    if not found:
        return None
    figure = Figure(figsize=(9.0, 0.42 * len(found) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    for place, (label, (interval, verdict)) in enumerate(found.items()):
        marker, color = _VERDICTS[verdict]
        if not math.isnan(interval.low):
            axes.plot([interval.low, interval.high], [place, place], color=color, linewidth=2)
        axes.plot(interval.mean, place, marker, color=color)
        text = f"{label}: {interval:+.4g}, {verdict} ({counted(interval.n, 'seed')})"
        add_tooltips(axes, [interval.mean], [place], [text])
    axes.axvline(0.0, color="0.4", linewidth=1)
    axes.set_yticks(range(len(found)), list(map(_short, found)), fontsize=9)
    axes.set(ylim=(len(found) - 0.5, -0.5), xlabel=xlabel)
    axes.grid(axis="x", alpha=0.3)
    return figure


def _panel_grid(
    count: int, sources: Sequence[str], title: str = "", *, height: float | None = None, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, up to three in a row, and the sources of its data below."""
    across = 2 if count == 4 else min(count, _PANELS_ACROSS)
    down = -(-count // across)
    width = 4.8 if across < _PANELS_ACROSS else 3.4
    height = height or (4.3 if down == 1 else 3.0)
    figure = _figure((width * across + 3.0, height * down + 0.5), sources, title)
    grid = list(figure.subplots(down, across, squeeze=False, sharey=sharey).flat)
    for axes in grid:
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
        axes.title.set_fontsize(10)
    for axes in grid[count:]:
        axes.set_visible(False)
    return figure, grid[:count]


def _row_style(panels: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, str]]:
    """Colour and dash of the rows of all panels; further rows repeat the colours with another dash."""
    rows = dict.fromkeys(row for of_panel in panels.values() for row in of_panel)
    return {row: (PALETTE[n % len(PALETTE)], "-" if n < len(PALETTE) else "-.") for n, row in enumerate(rows)}


def _value_axis(metric: str, higher_is_better: bool | None, percent: bool = False) -> str:
    return ", ".join(filter(None, [metric + (" in %" if percent else ""), direction_text(higher_is_better)]))


def _draw_curve(
    axes: Axes, curves: Sequence[pd.DataFrame], along: str, row: str, style: tuple[str, str], percent: bool
) -> None:
    rounds = set.intersection(*(set(curve["round"]) for curve in curves))
    table = pd.concat([curve[curve["round"].isin(rounds)] for curve in curves])
    if table.empty:
        return
    unit = 100.0 if percent else 1.0
    by_round = table.groupby("round")
    mean, worst = unit * by_round["mean"].mean(), unit * by_round["worst"].mean()
    x = mean.index.to_numpy() if along == "round" else by_round[along].mean().to_numpy()
    color, dash = style
    plot_curve(axes, x, mean, worst, color, linestyle=dash, label=_wrapped(row) if along == "round" else None)
    if len(curves) > 1:
        deviation = unit * by_round["mean"].std(ddof=1)
        axes.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)
    texts = [f"{row}, round {step:g}: {value:.4g}" for step, value in mean.items()]
    add_tooltips(axes, x, mean, texts, most=_MAX_TOOLTIPS)


def _sources(panels: Panels) -> list[str]:
    return list(dict.fromkeys(run.data_source for rows in panels.values() for runs in rows.values() for run in runs))


def _direction(panels: Panels, metric: str) -> bool | None:
    runs = (run for rows in panels.values() for runs in rows.values() for run in runs)
    found = (run.metric(metric, split) for run in runs for split in run.splits() if metric in run.metric_names(split))
    return next((one.direction for one in found), None)


def _figure(size: tuple[float, float], sources: Sequence[str], title: str) -> Figure:
    figure = Figure(figsize=size, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11)
    show_source(figure, sources)
    return figure


def _legend(figure: Figure, grid: Sequence[Axes]) -> None:
    """Add a legend next to the panels and fit the figure's height to it."""
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    width, height = figure.get_size_inches()
    lines = sum(label.count("\n") + 1 for label in handles)
    figure.set_size_inches(width, max(height, 0.8 + 0.16 * lines + 0.05 * len(handles)))
    figure.legend(list(handles.values()), list(handles), loc="outside right center", frameon=False, fontsize=8)


def _wrapped(label: str) -> str:
    return "\n".join(textwrap.wrap(label, _LABEL_WIDTH))


def _short(text: str) -> str:
    return text if len(text) <= _LABEL_LENGTH else f"{text[: _LABEL_LENGTH - 1]}…"
