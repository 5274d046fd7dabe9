"""Tables of a study: statistics over seeds next to published results, claims, tuned settings."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from lightning_fl.core.errors import counted
from lightning_fl.core.escaping import markdown, terminal
from lightning_fl.files.atomic import write_whole
from lightning_fl.runtime.table import Column, Table, Value, label_column, label_columns, markdown_table, print_table
from lightning_fl.study.claims import SHARES, cell_name
from lightning_fl.study.declaration import Study
from lightning_fl.study.intervals import share_interval
from lightning_fl.study.render import DIRECTIONS, best_values, direction_text
from lightning_fl.study.results import CellResult, StudyResults

#: Data source -> mark of its numbers.
_MARKS = {"measured": "", "stand-in": "†", "synthetic": "‡"}
_OTHER_MARK = "§"
#: Column of the table of claims -> its explanation.
_EXPLAINED = {
    "answer": "by the claim's own 95 % interval (Student's t); all together: at a level of 5 % for all claims (Holm).",
    "needs": "seeds that would decide a difference of this size and spread with a probability of 80 %.",
}


def group_cells(results: StudyResults) -> dict[str, dict[str, list[CellResult]]]:
    """Column -> row -> cells of all seeds, in the order of the declaration; a list is empty where nothing is run.

    Columns and rows are named by their labels: "esol, dirichlet". Once there are results, those without are left out.
    """
    layout, labels = results.study.table, {"arm": results.study.run_arms, **results.study.run_grid}
    found: dict[tuple[str, str], list[CellResult]] = {}
    for cell in results.cells:
        at = {"arm": cell.arm, **cell.place}
        column, row = (", ".join(at[part] for part in parts) for parts in (layout.columns, layout.rows))
        found.setdefault((column, row), []).append(cell)
    ended = [names for names, cells in found.items() if any(cell.status in ("done", "failed") for cell in cells)]
    used = {(side, name) for names in ended or found for side, name in enumerate(names)}
    columns, rows = (
        [name for name in map(", ".join, itertools.product(*(labels[part] for part in parts))) if (side, name) in used]
        for side, parts in enumerate((layout.columns, layout.rows))
    )
    return {column: {row: found.get((column, row), []) for row in rows} for column in columns}


def results_table(results: StudyResults) -> Table:
    """Statistics in the layout of the study, each next to its published value, the best of the arms marked."""
    study, grouped = results.study, group_cells(results)
    rows = list(next(iter(grouped.values()), {}))
    columns = list(map(label_column, study.table.rows, zip(*(row.split(", ") for row in rows), strict=True)))
    best = {statistic: _best_places(results, grouped, statistic) for statistic in study.table.statistics}
    for column, of_rows in grouped.items():
        for statistic in results.measured or study.table.statistics:
            name = f"{column} {statistic}".strip()
            shown = [
                Value(_format_cell(study, cells, statistic), best=(column, row) in best[statistic])
                for row, cells in of_rows.items()
            ]
            columns.append(Column(name, shown))
            published = [study.published.values.get((row, column, statistic)) for row in rows]
            if any(published):
                shown = [Value("" if one is None else _with_spread(*one, study.table.digits)) for one in published]
                columns.append(Column(f"{name}, published", shown, published=True))
    return Table(study.title, columns, _notes(results))


def _best_places(
    results: StudyResults, grouped: Mapping[str, Mapping[str, Sequence[CellResult]]], statistic: str
) -> set[tuple[str, str]]:
    """Columns and rows with the best value among those that differ in the arm only."""
    groups: dict[str, list[tuple[tuple[str, str], float, str]]] = {}
    for column, of_rows in grouped.items():
        for row, cells in of_rows.items():
            if cells:
                values = [value for cell in cells if not math.isnan(value := cell.values[statistic])]
                mean = statistics.fmean(values) if values else math.nan
                text = _format_cell(results.study, cells, statistic).split()[0]  # without spread
                groups.setdefault(cell_name("", cells[0].place), []).append(((column, row), mean, text))
    direction = DIRECTIONS.get(statistic, results.higher_is_better)
    best = set()
    for group in groups.values():
        places, means, texts = zip(*group, strict=True)
        best |= set(itertools.compress(places, best_values(means, texts, direction)))
    return best


def _format_cell(study: Study, cells: Sequence[CellResult], statistic: str) -> str:
    """ "0.944 ± 0.010" over the finished seeds, with their number if some are missing."""
    if not cells:
        return ""
    done = [cell for cell in cells if not math.isnan(cell.values[statistic])]
    if not done:
        return "failed" if all(cell.status == "failed" for cell in cells) else "–"
    unit, digits = study.table.unit, study.table.digits
    values = [unit * cell.values[statistic] for cell in done]
    mean = statistics.fmean(values)
    if statistic in SHARES and all(cell.clients_with_gain for cell in done):
        totals = [cell.clients_with_gain or 0 for cell in done]
        count = sum(round(cell.values[statistic] * total) for cell, total in zip(done, totals, strict=True))
        low, high = (unit * bound for bound in share_interval(count, sum(totals)))
        text = f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
    else:
        text = _with_spread(mean, statistics.stdev(values) if len(values) > 1 else None, digits)
    marks = "".join(sorted({_MARKS.get(cell.data_source, _OTHER_MARK) for cell in done}))
    return " ".join(filter(None, [text, f"(n={len(done)})" if len(done) < len(cells) else "", marks]))


def _with_spread(value: float, spread: float | None, digits: int) -> str:
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def _notes(results: StudyResults) -> list[str]:
    study, seeds = results.study, results.study.run_seeds
    measured = f"{study.metric} on {study.split} data{' in percent' if study.table.percent else ''}"
    measured = ", ".join(filter(None, [measured, direction_text(results.higher_is_better)]))
    over = "mean ± standard deviation over" if len(seeds) > 1 else "of"
    notes = [f"{measured}; {over} {counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))}), scale {study.scale}."]
    if shares := " and ".join(name for name in study.table.statistics if name in SHARES):
        notes.append(f"{shares}: with Wilson's 95 % interval over the clients of all seeds, taken as independent.")
    for source in sorted({cell.data_source for cell in results.cells} - {"", "measured"}):
        explanation = ": embedded examples, not the measured data" if source == "stand-in" else ""
        notes.append(f"{_MARKS.get(source, _OTHER_MARK)} {source} data{explanation}.")
    if study.published.values:
        notes.append(f"Published: {study.published.source}.")
    if len(commits := sorted({cell.commit for cell in results.cells if cell.commit})) > 1:
        notes.append(f"The runs used {len(commits)} commits of the package: {', '.join(commits)}.")
    if waiting := sum(cell.status in ("open", "cut off") for cell in results.cells):
        notes.append(f"{waiting} of {len(results.cells)} cells are not done.")
    return notes


def claims_table(results: StudyResults, *, numbered: bool = False) -> Table:
    """A row per answer; columns without content are left out, and answers without results unless runs have failed.

    Remarks, too wide for a column of a terminal, are notes if ``numbered``.
    """
    answers = [one for one in results.answers if one.interval.n or results.failed] or results.answers
    left_out, digits = len(results.answers) - len(answers), results.study.table.digits
    differences = ["" if math.isnan(one.interval.mean) else f"{one.interval:+.{digits + 1}f}" for one in answers]
    remarks = list(dict.fromkeys(answer.reason for answer in answers if answer.reason and numbered))
    numbers = [f" ({remarks.index(one.reason) + 1})" if one.reason in remarks else "" for one in answers]
    columns: dict[str, list[Any]] = {
        "claim": [answer.claim for answer in answers],
        "at": [cell_name("", answer.axes) for answer in answers],
        "answer": [Value(f"{one.verdict}{n}", state=one.verdict) for one, n in zip(answers, numbers, strict=True)],
        "all together": [Value(answer.corrected, state=answer.corrected) for answer in answers],
        "difference [95 % interval]": differences,
        "n": [answer.interval.n for answer in answers],
        "needs": [answer.seeds_needed or "" for answer in answers],
        "remark": ["" if numbered else answer.reason for answer in answers],
    }
    shown = {name: values for name, values in columns.items() if any(map(str, values))}
    notes = [f"{name}: {text}" for name, text in _EXPLAINED.items() if name in shown]
    notes += [f"({number}) {text}." for number, text in enumerate(remarks, 1)]
    if left_out:
        notes.append(f"{counted(left_out, 'answer')} without results.")
    return Table("claims", label_columns(shown), notes)


def chosen_columns(study: Study) -> list[Column]:
    """Table of the tuned hyperparameters."""
    rows = [
        (one.setting, one.value, ", ".join(one.candidates), one.by, ", ".join(map(str, one.seeds)))
        for one in study.chosen
    ]
    return list(map(label_column, ("setting", "chosen", "of", "by", "seeds"), zip(*rows, strict=True)))


def write_markdown(results: StudyResults, out: Path) -> None:
    """Write ``table.md`` and ``claims.md`` into the study's folder."""
    table, study = results_table(results), results.study
    parts = [f"# {markdown(study.title)}", markdown_table(table.columns), *map(markdown, table.notes)]
    if study.chosen:
        parts += ["Settings chosen before, on other seeds:", markdown_table(chosen_columns(study))]
    if results.failed:
        logs = {cell.log: f" ({cell.log})" for cell in results.failed if (out / cell.log).is_file()}
        failed = [f"{cell.name}: {cell.failure}{logs.get(cell.log, '')}" for cell in results.failed]
        parts.append("\n".join(["Failed:", "", *(f"- {markdown(text)}" for text in failed)]))
    write_whole(out / "table.md", "\n\n".join(parts) + "\n")
    parts = [f"# {markdown(study.title)}: claims"]
    if results.answers:
        claims = claims_table(results)
        parts += [markdown_table(claims.columns), *claims.notes]
    else:
        parts.append("The study has no claims.")
    write_whole(out / "claims.md", "\n\n".join(parts) + "\n")


def print_results(results: StudyResults, out: Path, console: Console | None = None) -> None:
    """Print the table, the claims and the failed cells of the study in the folder ``out``."""
    console = console or terminal()
    print_table(results_table(results), console)
    if results.answers:
        print_table(claims_table(results, numbered=True), console)
    for cell in results.failed:
        console.print(Text(f"failed: {cell.name}: {cell.failure}", "red"))
        if (out / cell.log).is_file():
            console.print(Text(f"  log: {out / cell.log}"), soft_wrap=True)
    console.print(Text(f"study: {out}"), soft_wrap=True)
