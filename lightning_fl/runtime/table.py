"""Tables and their rendering for terminal, Markdown and LaTeX; ``templates/page.html.j2`` renders them as HTML."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from lightning_fl.core.escaping import markdown
from lightning_fl.data.source import STAND_IN_LABEL

#: Terminal styles of :attr:`Value.state`.
_STYLES = {"holds": "green", "does not hold": "red", "undecided": "yellow", "summary": "bold"}
_STYLES |= {"better": _STYLES["holds"], "worse": _STYLES["does not hold"]}
_WIDEST_LABEL = 24
#: Longer names of metrics may be broken into lines.
_LONG_NAME = 10
#: The first column to be omitted has the smallest number.
_LAST = 1_000_000
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
    }
    | {character: f"\\{character}" for character in "&%$#_{}"}
)


@dataclass(frozen=True)
class Value:
    """Content of one table cell."""

    text: str  #: "-" or "" if missing
    spread: str = ""  #: "± 0.010", or an interval in brackets, or a name; a terminal shows it below the text
    best: bool = False  #: emphasised
    state: str = ""  #: a verdict, a status, "better", "worse" or "summary", which has a style
    title: str = ""  #: tooltip on a page
    link: str = ""  #: on a page

    def __str__(self) -> str:
        return f"{self.text} {self.spread}".strip()

    @property
    def lines(self) -> list[str]:
        return [self.text, *([self.spread.replace("± ", "±")] if self.spread else [])]


@dataclass(frozen=True)
class Column:
    """A table column."""

    name: str  #: header; a line break in it counts on a terminal only
    values: Sequence[Value]  #: one per row
    is_label: bool = False  #: it names the rows: left-aligned, may be wrapped, in every part of a split table
    min_width: int = 1  #: on a terminal
    omit: int = 0  #: order in which narrow terminals omit columns, from 1; 0 for never
    published: bool = False  #: it belongs to the column before it

    @property
    def header(self) -> str:
        return self.name.replace("\n", " ")

    @property
    def width(self) -> int:
        """Narrowest width on a terminal: its longest value or word of its name."""
        words = self.name.splitlines() if "\n" in self.name else self.name.split(" ")
        texts = [line for value in self.values for line in (str(value).split() if self.is_label else value.lines)]
        longest = max(map(cell_len, [*words, *texts, ""]))
        return max(self.min_width, min(longest, _WIDEST_LABEL) if self.is_label else longest)


@dataclass(frozen=True)
class Table:
    """A table."""

    title: str  #: one line
    columns: Sequence[Column]  #: those with ``is_label`` first
    notes: Sequence[str] = ()  #: sentences below it
    is_stand_in: bool = False  #: some value is of stand-in data, which is labelled above the title
    num_summaries: int = 0  #: last rows, below a line on a terminal
    elsewhere: str = "with --out FOLDER"  #: where columns are that a terminal has no room for

    @property
    def rows(self) -> Iterator[tuple[Value, ...]]:
        return zip(*(column.values for column in self.columns), strict=True)


def number_value(value: float, spread: str = "", **options: Any) -> Value:
    """A number with four digits; "-" for NaN."""
    return Value("-" if math.isnan(value) else f"{value:.4g}", spread, **options)


def label_column(name: str, texts: Sequence[object]) -> Column:
    """A column of texts, or of values that are formatted already."""
    return Column(name, [text if isinstance(text, Value) else Value(str(text)) for text in texts], is_label=True)


def label_columns(texts: Mapping[str, Sequence[object]]) -> list[Column]:
    """Columns of texts, by name."""
    return [label_column(name, of) for name, of in texts.items()]


def metric_column(name: str, higher_is_better: bool, values: Sequence[Value], place: int = 0) -> Column:
    """Values of a metric; of several metrics, a narrow terminal shows the first ones."""
    words = name.replace("_", " ") if cell_len(name) > _LONG_NAME else name
    return Column(f"{words}\N{NO-BREAK SPACE}{'↑' if higher_is_better else '↓'}", values, omit=place and _LAST - place)


def print_table(table: Table, console: Console) -> None:
    """Print a table, in several parts if it is too wide even without the columns that may be omitted."""
    if table.is_stand_in:
        console.print(Text(f" {STAND_IN_LABEL} ", "bold black on yellow"))
    if table.title:  # a title of Rich's is wrapped to its table
        console.print(Text(table.title, "bold"))
    columns, omitted = list(table.columns), []
    for column in sorted((column for column in columns if column.omit), key=lambda column: column.omit):
        if _total_width(columns) > console.width:
            columns.remove(column)
            omitted.append(column.header)
    for part in _parts(columns, console.width):
        console.print(_rich_table(part, console.width, table.num_summaries))
    for note in table.notes:
        console.print(Text(note, "bold black on yellow" if "stand-in data" in note else ""))
    if omitted:
        console.print(Text(f"The terminal is too narrow for: {', '.join(omitted)}: see them {table.elsewhere}."))


def _total_width(columns: Sequence[Column]) -> int:
    return 1 + sum(3 + column.width for column in columns)


def _parts(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Columns of several tables, all with the labels; published results stay beside measured ones."""
    labels = [column for column in columns if column.is_label]
    groups: list[list[Column]] = []
    for column in columns[len(labels) :]:
        groups = [*groups[:-1], [*groups[-1], column]] if column.published else [*groups, [column]]
    parts: list[list[Column]] = []
    for group in groups:
        if not parts or _total_width([*parts[-1], *group]) > width:
            parts.append(list(labels))
        parts[-1] += group
    return parts or [labels]


def _rich_table(columns: Sequence[Column], width: int, num_summaries: int) -> RichTable:
    """A table of a given maximal width; what the narrowest columns leave goes to the labels, the last one first."""
    table = RichTable()
    widths = {id(column): column.width for column in columns}
    spare = width - _total_width(columns)
    fits = spare >= 0
    for column in reversed([column for column in columns if column.is_label and fits]):
        longest = max(map(cell_len, [column.name, *map(str, column.values)]))
        extra = min(max(longest - column.width, 0), spare)
        widths[id(column)] += extra
        spare -= extra
    for column in columns:
        if column.is_label:
            table.add_column(Text(column.name), width=widths[id(column)] if fits else None, overflow="fold")
        else:  # wrapped here: Rich would wrap numbers to fit a long name
            name = column.name if "\n" in column.name else "\n".join(textwrap.wrap(column.name, column.width))
            table.add_column(Text(name), justify="right", no_wrap=fits, min_width=column.width if fits else None)
    rows = list(zip(*(column.values for column in columns), strict=True))
    for number, row in enumerate(rows):
        if number == len(rows) - num_summaries:
            table.add_section()
        styles = ("bold green" if value.best else _STYLES.get(value.state, "") for value in row)
        table.add_row(*(Text("\n".join(value.lines), style) for value, style in zip(row, styles, strict=True)))
    return table


def markdown_table(columns: Sequence[Column]) -> str:
    """A table in Markdown, the best values bold."""
    rows = zip(*(column.values for column in columns), strict=True)
    lines = [
        [markdown(column.header) for column in columns],
        ["---" if column.is_label else "---:" for column in columns],
        *([f"**{markdown(value)}**" if value.best else markdown(value) for value in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(table: Table, warnings: Sequence[str] = ()) -> str:
    """A LaTeX ``table`` (booktabs, graphicx), the best values bold; warnings and notes in its caption."""
    label = [f"{STAND_IN_LABEL}."] if table.is_stand_in else []
    caption = " ".join([*label, *(f"Warning: {warning}." for warning in warnings), f"{table.title}.", *table.notes])
    lines = [[column.header.translate(_LATEX) for column in table.columns]]
    lines += [list(map(_latex_value, row, table.columns)) for row in table.rows]
    header, *body = (f"{' & '.join(line)} \\\\" for line in lines)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption.translate(_LATEX)}}}",
            # Shrink only tables that are wider than the page.
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{''.join('l' if column.is_label else 'r' for column in table.columns)}}}",
            *(r"\toprule", header, r"\midrule", *body, r"\bottomrule", r"\end{tabular}}", r"\end{table}"),
        ]
    )


def _latex_value(value: Value, column: Column) -> str:
    if column.is_label:
        return value.text.translate(_LATEX)
    if value.text == "-":
        return "--"
    text = str(value).replace("±", r"\pm").replace("%", r"\%").replace(" [", r"\ [")
    return rf"$\mathbf{{{text}}}$" if value.best else f"${text}$"
