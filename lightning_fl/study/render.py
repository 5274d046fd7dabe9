"""A comparison as text for terminal, Markdown and LaTeX, from the frame of ``comparison_table``."""

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
from lightning_fl.study.table_columns import Column, has_stand_in, make_columns, make_rows, table_notes, table_title

__all__ = ["to_latex", "to_markdown", "to_terminal"]

#: Columns that a narrow terminal leaves out, in this order.
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
    """Print a table per metric with the best values in green; columns that do not fit are left out.

    Args:
        frame: of :func:`~lightning_fl.study.comparison_table.comparison_table`.
        console: defaults to standard output.
        warnings: shown above the tables.
    """
    console = console or terminal()
    for warning in warnings:
        console.print(Text(f"warning: {warning}", "yellow"))
    for number, of_metric in enumerate(_by_metric(frame)):
        if number:
            console.print()
        if has_stand_in(of_metric):
            console.print(Text(f" {STAND_IN_LABEL} ", "bold black on yellow"))
        # Printed separately: rich wraps a table's title to its width.
        console.print(Text(table_title(of_metric), "bold"))
        columns = make_columns(of_metric)
        left_out: list[Column] = []
        table = _terminal_table(of_metric, columns)
        for key in _LEFT_OUT:
            if Measurement.get(console, console.options.update(width=10_000), table).minimum <= console.width:
                break
            left_out += [column for column in columns if column.key == key]
            columns = [column for column in columns if column.key != key]
            table = _terminal_table(of_metric, columns)
        console.print(table)
        for note in table_notes(of_metric):
            console.print(Text(note))
        if left_out:
            names = ", ".join(column.name for column in left_out)
            console.print(Text(f"The terminal is too narrow for: {names}. --out FOLDER writes them."))


def to_markdown(frame: pd.DataFrame, warnings: Sequence[str] = ()) -> str:
    """A table per metric with title and notes, the best values bold. Arguments as in :func:`to_terminal`."""
    parts = ["\n".join(f"> **Warning:** {markdown(warning)}  " for warning in warnings)] if warnings else []
    for of_metric in _by_metric(frame):
        columns, rows = make_columns(of_metric), make_rows(of_metric)
        seeds = ["seeds"] if any(row.seeds for row in rows) else []
        header = ["", *seeds, *(markdown(column.name) for column in columns)]
        lines = [f"**{STAND_IN_LABEL}**\n"] if has_stand_in(of_metric) else []
        lines += [
            f"{markdown(table_title(of_metric))}\n",
            f"| {' | '.join(header)} |",
            f"|{'|'.join(['---', *['---:'] * (len(header) - 1)])}|",
        ]
        for number, row in enumerate(rows):
            cells = [markdown(row.label), *([row.seeds] if seeds else [])]
            cells += [
                f"**{column.cell(number)}**" if column.best[number] else column.cell(number) for column in columns
            ]
            lines.append(f"| {' | '.join(cells)} |")
        notes = [f"- {markdown(note)}" for note in table_notes(of_metric)]
        parts.append("\n".join([*lines, *([""] if notes else []), *notes]))
    return "\n\n".join(parts) + "\n"


def to_latex(frame: pd.DataFrame, warnings: Sequence[str] = ()) -> str:
    """A LaTeX ``table`` per metric (booktabs, graphicx), the best values bold; warnings and notes in the caption."""
    parts = [r"% \usepackage{booktabs,graphicx}"]
    for of_metric in _by_metric(frame):
        columns, rows = make_columns(of_metric), make_rows(of_metric)
        seeds = ["seeds"] if any(row.seeds for row in rows) else []
        label = [f"{STAND_IN_LABEL}."] if has_stand_in(of_metric) else []
        caption = " ".join(
            [
                *label,
                *(f"Warning: {warning}." for warning in warnings),
                f"{table_title(of_metric)}.",
                *table_notes(of_metric),
            ]
        )
        header = ["", *map(_escape_latex, seeds), *(_escape_latex(column.name) for column in columns)]
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape_latex(caption)}}}",
            # Shrink only tables that are wider than the page.
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
    """A narrow table with spreads below the values."""
    rows = make_rows(frame)
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
