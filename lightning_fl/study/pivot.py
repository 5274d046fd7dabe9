"""A study's table: means and standard deviations over seeds, next to published results."""

import itertools
import math
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from lightning_fl.core.escaping import markdown
from lightning_fl.study.claims import SHARES
from lightning_fl.study.declaration import Study
from lightning_fl.study.intervals import share_interval
from lightning_fl.study.results import CellResult, StudyResults
from lightning_fl.study.table_columns import DIRECTIONS, best_values, direction_text

__all__ = ["Pivot", "make_pivot", "markdown_table", "terminal_tables"]

#: Data source -> mark of its numbers.
_MARKS = {"stand-in": "†", "synthetic": "‡"}
_OTHER_MARK = "§"
#: Suffix of the header of published results.
_PUBLISHED = ", published"


@dataclass(frozen=True)
class Pivot:
    """A table as text.

    Args:
        header: names of the columns.
        rows: texts, as many per row as the header has.
        num_labels: number of columns that name the row.
        notes: sentences below the table.
        best: per row and column, whether the value is the best of all arms.
    """

    header: list[str]
    rows: list[list[str]]
    num_labels: int
    notes: list[str]
    best: list[list[bool]]


def make_pivot(results: StudyResults) -> Pivot:
    """Arrange results in the layout of their study."""
    study, layout = results.study, results.study.table
    row_keys, column_keys = _keys(study, layout.rows), _keys(study, layout.columns)
    cells: dict[tuple[tuple[str, ...], tuple[str, ...]], list[CellResult]] = {}
    for cell in results.cells:
        labels = {"arm": cell.arm, **cell.place}
        row, column = (tuple(labels[part] for part in parts) for parts in (layout.rows, layout.columns))
        cells.setdefault((row, column), []).append(cell)
    used_rows = [row for row in row_keys if any((row, column) in cells for column in column_keys)]
    used_columns = [column for column in column_keys if any((row, column) in cells for row in row_keys)]
    published = study.published.values
    header, shown = list(layout.rows), []
    for column in used_columns:
        name = ", ".join(column)
        for statistic in layout.statistics:
            header.append(f"{name} {statistic}".strip())
            shown.append((column, statistic, False))
            if any((", ".join(row), name, statistic) in published for row in used_rows):
                header.append(f"{name} {statistic}{_PUBLISHED}".strip())
                shown.append((column, statistic, True))
    body, num_labels = [], len(layout.rows)
    for of_row in used_rows:
        line = list(of_row)
        for column, statistic, is_published in shown:
            if is_published:
                found = published.get((", ".join(of_row), ", ".join(column), statistic))
                line.append("" if found is None else _with_spread(found[0], found[1], layout.digits))
            else:
                line.append(_format_cell(study, cells.get((of_row, column), []), statistic))
        body.append(line)
    best = [[False] * len(header) for _ in body]
    for statistic, places in _comparable(used_rows, shown, layout.rows, layout.columns):
        means = [_mean(cells.get((used_rows[number], shown[place][0]), []), statistic) for number, place in places]
        texts = [body[number][num_labels + place] for number, place in places]
        texts = [text.split()[0] if text else "" for text in texts]  # without spreads
        direction = DIRECTIONS.get(statistic, results.higher_is_better)
        for (number, place), is_best in zip(places, best_values(means, texts, direction), strict=True):
            best[number][num_labels + place] = is_best
    return Pivot(header, body, num_labels, _notes(results), best)


def _comparable(
    rows: Sequence[tuple[str, ...]],
    shown: Sequence[tuple[tuple[str, ...], str, bool]],
    row_parts: Sequence[str],
    column_parts: Sequence[str],
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Statistics, each with the places (row, column) that differ in the arm only."""
    groups: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for place, (labels, statistic, is_published) in enumerate(shown):
        for row, names in enumerate(rows):
            at = dict(zip((*row_parts, *column_parts), (*names, *labels), strict=True))
            if not is_published and at.pop("arm", None) is not None:
                groups.setdefault((statistic, *at.values()), []).append((row, place))
    return [(key[0], places) for key, places in groups.items()]


def _mean(cells: Sequence[CellResult], statistic: str) -> float:
    """Mean over the finished seeds; NaN if there are none."""
    values = [cell.values[statistic] for cell in cells if not math.isnan(cell.values[statistic])]
    return statistics.fmean(values) if values else math.nan


def _keys(study: Study, parts: Sequence[str]) -> list[tuple[str, ...]]:
    labels = {"arm": study.run_arms, **study.run_grid}
    return list(itertools.product(*(labels[part] for part in parts)))


def _format_cell(study: Study, cells: Sequence[CellResult], statistic: str) -> str:
    """ "0.944 ± 0.010" over the finished seeds, with their number if some are missing."""
    if not cells:
        return ""
    unit = 100.0 if study.table.percent else 1.0
    done = [cell for cell in cells if not math.isnan(cell.values[statistic])]
    values = [unit * cell.values[statistic] for cell in done]
    if not values:
        return "failed" if all(cell.status == "failed" for cell in cells) else "–"
    spread, digits = statistics.stdev(values) if len(values) > 1 else None, study.table.digits
    text = _with_spread(statistics.fmean(values), spread, digits)
    if statistic in SHARES and all(cell.clients_with_gain for cell in done):
        totals = [cell.clients_with_gain or 0 for cell in done]
        count = sum(round(cell.values[statistic] * total) for cell, total in zip(done, totals, strict=True))
        low, high = (unit * bound for bound in share_interval(count, sum(totals)))
        text = f"{statistics.fmean(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
    marks = "".join(sorted({_mark(cell.data_source) for cell in done}))
    return text + (f" (n={len(values)})" if len(values) < len(cells) else "") + (f" {marks}" if marks else "")


def _with_spread(value: float, spread: float | None, digits: int) -> str:
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def _mark(source: str) -> str:
    return "" if source == "measured" else _MARKS.get(source, _OTHER_MARK)


def _notes(results: StudyResults) -> list[str]:
    study = results.study
    unit = " in percent" if study.table.percent else ""
    seeds = study.run_seeds
    measured = ", ".join(
        filter(None, [f"{study.metric} on {study.split} data{unit}", direction_text(results.higher_is_better)])
    )
    spread = "mean ± standard deviation over" if len(seeds) > 1 else "of"
    notes = [
        f"{measured}; {spread} {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'} ({', '.join(map(str, seeds))}),"
        f" scale {study.scale}."
    ]
    if shares := " and ".join(name for name in study.table.statistics if name in SHARES):
        notes.append(f"{shares}: with Wilson's 95 % interval over the clients of all seeds, taken as independent.")
    for source in sorted({cell.data_source for cell in results.cells} - {"", "measured"}):
        explanation = ": embedded examples, not the measured data" if source == "stand-in" else ""
        notes.append(f"{_mark(source)} {source} data{explanation}.")
    if study.published.values:
        notes.append(f"Published: {study.published.source}.")
    commits = sorted({cell.commit for cell in results.cells if cell.commit})
    if len(commits) > 1:
        notes.append(f"The runs used {len(commits)} commits of the package: {', '.join(commits)}.")
    if waiting := sum(cell.status in ("open", "cut off") for cell in results.cells):
        notes.append(f"{waiting} of {len(results.cells)} cells are not done.")
    return notes


def markdown_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    num_labels: int = 1,
    best: Sequence[Sequence[bool]] | None = None,
) -> str:
    """A table in Markdown.

    Args:
        header: names of the columns.
        rows: texts, as many per row as the header has.
        num_labels: number of left-aligned columns.
        best: per row and column, whether it is bold.
    """
    rows = [list(map(markdown, row)) for row in rows]
    if best is not None:
        rows = [
            [f"**{text}**" if is_best else text for text, is_best in zip(row, marks, strict=True)]
            for row, marks in zip(rows, best, strict=True)
        ]
    lines = [list(map(markdown, header)), ["---"] * num_labels + ["---:"] * (len(header) - num_labels), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def terminal_tables(pivot: Pivot, width: int) -> Iterator[Table]:
    """Split the table into several that fit a terminal's width.

    Numbers are not wrapped, and published results stay next to measured ones, unless these two alone are too wide.

    Args:
        pivot: the table.
        width: of the terminal, in characters.
    """
    labels = list(range(pivot.num_labels))
    frame = 1  # a column adds its border and two blanks
    left = width - frame - sum(3 + _width(pivot, number) for number in labels)
    chunks: list[list[int]] = []
    room = 0
    for columns in _inseparable(pivot):
        needed = sum(3 + _width(pivot, number) for number in columns)
        if not chunks or needed > room:
            chunks.append([])
            room = left
        chunks[-1] += columns
        room -= needed
    for chunk in chunks:
        table = Table()
        for number in [*labels, *chunk]:
            # Wrapped here: rich would wrap numbers to fit a long name.
            name = "\n".join(textwrap.wrap(pivot.header[number], _width(pivot, number)))
            table.add_column(Text(name), justify="left" if number < pivot.num_labels else "right")
        for row, best in zip(pivot.rows, pivot.best, strict=True):
            table.add_row(*(Text(row[number], "bold" if best[number] else "") for number in [*labels, *chunk]))
        yield table


def _inseparable(pivot: Pivot) -> Iterator[list[int]]:
    """Columns of measured results, each with its column of published ones."""
    number = pivot.num_labels
    while number < len(pivot.header):
        end = number + 1
        if end < len(pivot.header) and pivot.header[end] == f"{pivot.header[number]}{_PUBLISHED}":
            end += 1
        yield list(range(number, end))
        number = end


def _width(pivot: Pivot, column: int) -> int:
    """Width of a column's longest value or word of its name."""
    return max(map(cell_len, [*pivot.header[column].split(), *(row[column] for row in pivot.rows)]))
