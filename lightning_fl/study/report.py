"""A study's table and claims for the terminal and as Markdown."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_fl.core.escaping import markdown
from lightning_fl.core.terminal import terminal
from lightning_fl.files.atomic import write_whole
from lightning_fl.study.cell_names import cell_name
from lightning_fl.study.claims import Answer
from lightning_fl.study.declaration import Study
from lightning_fl.study.pivot import make_pivot, markdown_table, terminal_tables
from lightning_fl.study.results import StudyResults

__all__ = ["CHOSEN_HEADER", "chosen_rows", "print_results", "write_markdown"]

_STYLES = {"holds": "green", "does not hold": "red", "undecided": "yellow"}
_CLAIM_HEADER = ["claim", "at", "answer", "all together", "difference [95 % interval]", "n", "needs", "remark"]
_CLAIM_NOTES = (
    "answer: by the claim's own 95 % interval (Student's t); all together: at a level of 5 % for all claims (Holm).",
    "needs: seeds that would decide a difference of this size and spread with a probability of 80 %.",
)
CHOSEN_HEADER = ["setting", "chosen", "of", "by", "seeds"]


def chosen_rows(study: Study) -> list[list[str]]:
    """Rows of the table of tuned hyperparameters."""
    return [
        [one.setting, one.value, ", ".join(one.candidates), one.by, ", ".join(map(str, one.seeds))]
        for one in study.chosen
    ]


def write_markdown(results: StudyResults, out: Path) -> None:
    """Write ``table.md`` and ``claims.md`` into the study's folder."""
    pivot, study = make_pivot(results), results.study
    parts = [f"# {markdown(study.title)}", markdown_table(pivot.header, pivot.rows, pivot.num_labels, pivot.best)]
    parts += map(markdown, pivot.notes)
    if study.chosen:
        parts += ["Settings chosen before, on other seeds:", markdown_table(CHOSEN_HEADER, chosen_rows(study), 5)]
    if results.failed:
        failed = [f"{cell.name}: {cell.failure} ({cell.log})" for cell in results.failed]
        parts.append("\n".join(["Failed:", "", *(f"- {markdown(text)}" for text in failed)]))
    write_whole(out / "table.md", "\n\n".join(parts) + "\n")
    rows = [_claim_row(answer, study.table.digits) for answer in results.answers]
    claims = markdown_table(_CLAIM_HEADER, rows, len(_CLAIM_HEADER)) if rows else "The study has no claims."
    notes = "\n\n".join(["", *_CLAIM_NOTES]) if rows else ""
    write_whole(out / "claims.md", f"# {markdown(study.title)}: claims\n\n{claims}{notes}\n")


def print_results(results: StudyResults, out: Path, console: Console | None = None) -> None:
    """Print the table, the claims and the failed cells.

    Args:
        results: of the study.
        out: its folder.
        console: defaults to standard output.
    """
    console = console or terminal()
    pivot, study = make_pivot(results), results.study
    # Printed separately: rich wraps a table's title to its width.
    console.print(Text(study.title, "bold"))
    for table in terminal_tables(pivot, console.width):
        console.print(table)
    for note in pivot.notes:
        console.print(Text(note, "bold black on yellow" if "stand-in data" in note else ""))
    if results.answers:
        remarks = {
            text: number for number, text in enumerate(dict.fromkeys(a.reason for a in results.answers if a.reason), 1)
        }
        console.print(_claim_table(results.answers, study.table.digits, remarks))
        for note in _CLAIM_NOTES:
            console.print(Text(note))
        for remark, number in remarks.items():
            console.print(Text(f"({number}) {remark}."))
    for cell in results.failed:
        console.print(Text(f"failed: {cell.name}: {cell.failure}", "red"))
        console.print(Text(f"  log: {out / cell.log}"), soft_wrap=True)
    console.print(Text(f"study: {out}"), soft_wrap=True)


def _claim_table(answers: Sequence[Answer], digits: int, remarks: Mapping[str, int]) -> Table:
    """The claims with numbers of remarks, whose texts would be too wide."""
    table = Table(title="claims", title_justify="left", title_style="bold")
    rows = [_claim_row(answer, digits)[:-1] for answer in answers]
    shown = [number for number in range(len(_CLAIM_HEADER) - 1) if any(row[number] for row in rows)]
    for number in shown:
        table.add_column(_CLAIM_HEADER[number], justify="right" if _CLAIM_HEADER[number] in ("n", "needs") else "left")
    for answer, row in zip(answers, rows, strict=True):
        texts = [Text(row[number], _STYLES.get(row[number], "")) for number in shown]
        if answer.reason:
            texts[shown.index(_CLAIM_HEADER.index("answer"))].append(f" ({remarks[answer.reason]})")
        table.add_row(*texts)
    return table


def _claim_row(answer: Answer, digits: int) -> list[str]:
    interval, more = answer.interval, digits + 1  # differences are smaller than the values
    text = "" if math.isnan(interval.mean) else f"{interval.mean:+.{more}f}"
    if not math.isnan(interval.low):
        text += f" [{interval.low:+.{more}f}, {interval.high:+.{more}f}]"
    needs = str(answer.seeds_needed or "")
    at = cell_name("", answer.axes)
    return [answer.claim, at, answer.verdict, answer.corrected, text, str(interval.n), needs, answer.reason]
