"""Figures of a study's results and claims."""

import math
import statistics

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lightning_fl.runtime.drawing import BAD, GOOD
from lightning_fl.study.cell_names import cell_name
from lightning_fl.study.claims import Answer
from lightning_fl.study.figures import panel_grid, row_style, value_axis
from lightning_fl.study.intervals import paired_interval
from lightning_fl.study.page import add_tooltips
from lightning_fl.study.render import DIRECTIONS
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_tables import group_cells

__all__ = ["draw_claims", "draw_results"]

_VERDICTS = {"holds": ("o", GOOD), "does not hold": ("X", BAD), "undecided": ("D", "#999933")}
_PUBLISHED = "0.35"
_LABEL_LENGTH = 60


def draw_results(results: StudyResults, statistic: str) -> Figure:
    """Draw a statistic of every row: a dot per seed, the mean with its 95 % interval, and the published value."""
    study = results.study
    digits = study.table.digits + 1
    found = {
        ", ".join(column): {", ".join(row): cells for row, cells in of_rows.items()}
        for column, of_rows in group_cells(results).items()
    }
    rows = row_style(found)
    sources = list(dict.fromkeys(cell.data_source for cell in results.cells if cell.data_source))
    figure, grid = panel_grid(len(found), sources, height=0.34 * len(rows) + 1.1, sharey=True)
    for axes, (column, of_rows) in zip(grid, found.items(), strict=True):
        for place, (row, (color, _)) in enumerate(rows.items()):
            values = {cell.seed: study.table.unit * cell.values[statistic] for cell in of_rows[row]}
            values = {seed: value for seed, value in values.items() if not math.isnan(value)}
            dots = list(values.values())
            axes.plot(dots, [place] * len(dots), "o", color=color, alpha=0.35, markersize=4)
            texts = [f"{row}, seed {seed}: {value:.{digits}f}" for seed, value in values.items()]
            add_tooltips(axes, dots, [place] * len(dots), texts)
            if dots:
                interval = paired_interval(dots)
                mean = statistics.fmean(dots)
                half = 0.0 if math.isnan(interval.low) else interval.mean - interval.low
                axes.errorbar(mean, place, xerr=half, fmt="o", color=color, markersize=6, capsize=3)
                margin = f" ± {half:.{digits}f}" if len(dots) > 1 else ""
                add_tooltips(axes, [mean], [place], [f"{row}: {mean:.{digits}f}{margin} ({_seeds(len(dots))})"])
            if published := study.published.values.get((row, column, statistic)):
                axes.plot(published[0], place, "D", markerfacecolor="none", color=_PUBLISHED, markersize=7)
                add_tooltips(axes, [published[0]], [place], [f"{row}, published: {published[0]:g}"])
        axes.set_yticks(range(len(rows)), list(map(_short, rows)))
        direction = None if statistic in ("std", "rsd") else DIRECTIONS.get(statistic, results.higher_is_better)
        xlabel = value_axis(f"{statistic} {study.metric}", direction, study.table.percent)
        axes.set(ylim=(len(rows) - 0.5, -0.5), title=column, xlabel=xlabel)
    handles = [
        Line2D([], [], marker="o", color="0.5", alpha=0.5, linestyle="", markersize=4, label="a seed"),
        Line2D([], [], marker="o", color="0.2", markersize=6, label="mean, 95 % interval"),
    ]
    if study.published.values:
        hollow = Line2D([], [], marker="D", color=_PUBLISHED, linestyle="", markerfacecolor="none", label="published")
        handles.append(hollow)
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8)
    return figure


def draw_claims(results: StudyResults) -> Figure | None:
    """Draw the difference of every claim with its 95 % interval; ``None`` without a difference."""
    answers = [answer for answer in results.answers if not math.isnan(answer.interval.mean)]
    if not answers:
        return None
    figure = Figure(figsize=(9.0, 0.42 * len(answers) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    for place, answer in enumerate(answers):
        interval, (marker, color) = answer.interval, _VERDICTS[answer.verdict]
        if not math.isnan(interval.low):
            axes.plot([interval.low, interval.high], [place, place], color=color, linewidth=2)
        axes.plot(interval.mean, place, marker, color=color)
        bounds = "" if math.isnan(interval.low) else f" [{interval.low:+.4g}, {interval.high:+.4g}]"
        text = f"{_claim_label(answer)}: {interval.mean:+.4g}{bounds}, {answer.verdict} ({_seeds(interval.n)})"
        add_tooltips(axes, [interval.mean], [place], [text])
    axes.axvline(0.0, color="0.4", linewidth=1)
    axes.set_yticks(range(len(answers)), [_short(_claim_label(answer)) for answer in answers], fontsize=9)
    unit = " in percentage points" if results.study.table.percent else ""
    axes.set(ylim=(len(answers) - 0.5, -0.5))
    axes.set_xlabel(f"left side minus right side{unit}, paired by seed, 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def _claim_label(answer: Answer) -> str:
    place = {axis: label for axis, label in answer.axes.items() if f"{axis}={label}" not in answer.claim}
    return f"{answer.claim}  ({cell_name('', place)})" if place else answer.claim


def _short(text: str) -> str:
    return text if len(text) <= _LABEL_LENGTH else f"{text[: _LABEL_LENGTH - 1]}…"
