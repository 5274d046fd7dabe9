"""A comparison as text: for the terminal, Markdown and LaTeX. Takes the frame of ``comparison_table``."""

from collections.abc import Iterator, Sequence

import pandas as pd
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lightning_fl.core.escaping import markdown
from lightning_fl.core.terminal import terminal
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.study.table_columns import (
    Column,
    columns_of,
    has_stand_in,
    notes_of,
    rows_of,
    title_of,
)

__all__ = ["to_latex", "to_markdown", "to_terminal"]

#: What a narrow terminal goes without, the first ones first; mean and worst client stay.
_LEFT_OUT = (
    *("best", "seconds", "rsd", "rounds", "megabytes_received", "harmed", "worst_difference", "std"),
    *("megabytes_sent", "gain", "ipr", "mean_difference"),
)
_WIDEST_LABEL = 24
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def to_terminal(frame: pd.DataFrame, console: Console | None = None, warnings: Sequence[str] = ()) -> None:
    """Print a table per metric, the best values green, no wider than the terminal.

    Columns that do not fit are left out, and a line names them.

    Args:
        frame: of :func:`~lightning_fl.study.comparison_table.comparison_table`.
        console: where to; standard output by default.
        warnings: why the rows do not compare, above the tables.
    """
    console = console or terminal()
    for warning in warnings:
        console.print(Text(f"warning: {warning}", "yellow"))
    for number, of_metric in enumerate(_by_metric(frame)):
        if number:
            console.print()
        if has_stand_in(of_metric):
            console.print(Text(f" {STAND_IN_LABEL} ", "bold black on yellow"))
        # Not the table's own title, which would be broken to the table's width.
        console.print(Text(title_of(of_metric), "bold"))
        columns = columns_of(of_metric)
        left_out: list[Column] = []
        table = _terminal_table(of_metric, columns)
        for key in _LEFT_OUT:
            if Measurement.get(console, console.options.update(width=10_000), table).minimum <= console.width:
                break
            left_out += [column for column in columns if column.key == key]
            columns = [column for column in columns if column.key != key]
            table = _terminal_table(of_metric, columns)
        console.print(table)
        for note in notes_of(of_metric):
            console.print(Text(note))
        if left_out:
            names = ", ".join(column.name for column in left_out)
            console.print(Text(f"Left out, the terminal is too narrow: {names}. --out FOLDER writes them."))


def to_markdown(frame: pd.DataFrame, warnings: Sequence[str] = ()) -> str:
    """A table per metric, the best values bold, with title and notes.

    Args:
        frame: of :func:`~lightning_fl.study.comparison_table.comparison_table`.
        warnings: why the rows do not compare, above the tables.
    """
    parts = ["\n".join(f"> **Warning:** {markdown(warning)}  " for warning in warnings)] if warnings else []
    for of_metric in _by_metric(frame):
        columns, rows = columns_of(of_metric), rows_of(of_metric)
        seeds = ["seeds"] if any(row.seeds for row in rows) else []
        header = ["", *seeds, *(markdown(column.name) for column in columns)]
        lines = [f"**{STAND_IN_LABEL}**\n"] if has_stand_in(of_metric) else []
        lines += [
            f"{markdown(title_of(of_metric))}\n",
            f"| {' | '.join(header)} |",
            f"|{'|'.join(['---', *['---:'] * (len(header) - 1)])}|",
        ]
        for number, row in enumerate(rows):
            cells = [markdown(row.label), *([row.seeds] if seeds else [])]
            cells += [
                f"**{column.cell(number)}**" if column.best[number] else column.cell(number) for column in columns
            ]
            lines.append(f"| {' | '.join(cells)} |")
        notes = [f"- {markdown(note)}" for note in notes_of(of_metric)]
        parts.append("\n".join([*lines, *([""] if notes else []), *notes]))
    return "\n\n".join(parts) + "\n"


def to_latex(frame: pd.DataFrame, warnings: Sequence[str] = ()) -> str:
    """A ``table`` per metric (packages booktabs and graphicx), the best values bold; title and notes are the caption.

    Args:
        frame: of :func:`~lightning_fl.study.comparison_table.comparison_table`.
        warnings: why the rows do not compare, in every caption.
    """
    parts = [r"% \usepackage{booktabs,graphicx}"]
    for of_metric in _by_metric(frame):
        columns, rows = columns_of(of_metric), rows_of(of_metric)
        seeds = ["seeds"] if any(row.seeds for row in rows) else []
        label = [f"{STAND_IN_LABEL}."] if has_stand_in(of_metric) else []
        caption = " ".join(
            [*label, *(f"Warning: {warning}." for warning in warnings), f"{title_of(of_metric)}.", *notes_of(of_metric)]
        )
        header = ["", *map(_escape_latex, seeds), *(_escape_latex(column.name) for column in columns)]
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape_latex(caption)}}}",
            # Shrinks a table that is wider than the page, and no other.
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            f"{' & '.join(header)} \\\\",
            r"\midrule",
        ]
        for number, row in enumerate(rows):
            cells = [_escape_latex(row.label), *([_escape_latex(row.seeds)] if seeds else [])]
            cells += [_latex_cell(column, number) for column in columns]
            lines.append(f"{' & '.join(cells)} \\\\")
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}"]))
    return "\n\n".join(parts) + "\n"


def _by_metric(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for metric in dict.fromkeys(frame["metric"]):
        yield frame[frame["metric"] == metric].reset_index(drop=True)


def _terminal_table(frame: pd.DataFrame, columns: Sequence[Column]) -> Table:
    """Values over their spreads, so that more columns fit."""
    rows = rows_of(frame)
    table = Table()
    longest = max(cell_len(word) for row in rows for word in row.label.split())
    table.add_column("", min_width=min(max(longest, 10), _WIDEST_LABEL), overflow="fold")
    seeds = any(row.seeds for row in rows)
    if seeds:
        table.add_column("seeds", justify="right", no_wrap=True)
    for column in columns:
        texts = [*column.header.splitlines(), *(line for number in range(len(rows)) for line in column.lines(number))]
        table.add_column(Text(column.header), justify="right", no_wrap=True, min_width=max(map(len, texts)))
    for number, row in enumerate(rows):
        cells = [Text(row.label), *([Text(row.seeds)] if seeds else [])]
        cells += [Text("\n".join(column.lines(number)), "green" if column.best[number] else "") for column in columns]
        table.add_row(*cells)
    return table


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_cell(column: Column, row: int) -> str:
    text = column.cell(row, r" \pm ").replace("%", r"\%").replace(" [", r"\ [")
    if text == "-":
        return "--"
    return rf"$\mathbf{{{text}}}$" if column.best[row] else f"${text}$"
