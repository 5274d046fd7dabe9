"""Comparisons as tables for terminal, Markdown and LaTeX, made from the frame of ``comparison_table``."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from lightning_fl.core.escaping import markdown, terminal
from lightning_fl.data.source import STAND_IN, STAND_IN_LABEL
from lightning_fl.runtime.table import Column, Table, Value, latex, markdown_table, print_table

#: Key -> header, in the order of the table.
_HEADERS = {
    "mean": "mean",
    "worst": "worst\nclient",
    "mean_difference": "mean minus\nbaseline",
    "worst_difference": "worst minus\nbaseline",
    "std": "std over\nclients",
    "best": "best\nclient",
    "gain": "mean\ngain",
    "ipr": "IPR",
    "rsd": "RSD",
    "harmed": "harmed",
    "megabytes_sent": "MB\nsent",
    "megabytes_received": "MB\nreceived",
    "rounds": "rounds",
    "seconds": "time\n[s]",
}
#: Columns that a narrow terminal omits, in this order.
_OMITTED = (
    *("best", "seconds", "rsd", "rounds", "megabytes_received", "harmed", "worst_difference", "std"),
    *("megabytes_sent", "gain", "ipr", "mean_difference"),
)
_MEGABYTES = ("megabytes_sent", "megabytes_received")
_PERCENT = ("ipr", "harmed")
#: Numbers with more digits before the point are written with an exponent.
_MAX_DIGITS = 7
#: Whether higher is better, independent of the metric. Times of different machines are not comparable.
DIRECTIONS = {"std": False, "gain": True, "ipr": True, "rsd": False, "harmed": False, "ari": True} | dict.fromkeys(
    _MEGABYTES, False
)


def to_terminal(
    frame: pd.DataFrame, console: Console | None = None, warnings: Sequence[str] = (), out: Path | None = None
) -> None:
    """Print a table per metric of a ``comparison_table``, with warnings above; columns that do not fit are omitted.

    ``out`` is the folder that gets the files with all columns, if there is one.
    """
    console = console or terminal()
    for warning in warnings:
        console.print(Text(f"warning: {warning}", "yellow"))
    for number, table in enumerate(comparison_tables(frame)):
        if number:
            console.print()
        print_table(table if out is None else replace(table, elsewhere=f"in {out}"), console)


def to_markdown(frame: pd.DataFrame, warnings: Sequence[str] = ()) -> str:
    """A table per metric with title and notes, the best values bold. Arguments as in :func:`to_terminal`."""
    parts = ["\n".join(f"> **Warning:** {markdown(warning)}  " for warning in warnings)] if warnings else []
    for table in comparison_tables(frame):
        parts += [f"**{STAND_IN_LABEL}**"] if table.is_stand_in else []
        parts += [markdown(table.title), markdown_table(table.columns)]
        parts += ["\n".join(f"- {markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n\n".join(parts) + "\n"


def to_latex(frame: pd.DataFrame, warnings: Sequence[str] = ()) -> str:
    """A LaTeX ``table`` per metric (booktabs, graphicx). Arguments as in :func:`to_terminal`."""
    tables = [latex(table, warnings) for table in comparison_tables(frame)]
    return "\n\n".join([r"% \usepackage{booktabs,graphicx}", *tables]) + "\n"


def comparison_tables(frame: pd.DataFrame) -> list[Table]:
    """One table per metric of a frame."""
    tables = []
    for _, group in frame.groupby("metric", sort=False):
        one = group.reset_index(drop=True)
        is_stand_in = any(STAND_IN in source.split(", ") for source in one["source"])
        tables.append(Table(_title(one), _columns(one), _notes(one), is_stand_in))
    return tables


def _columns(frame: pd.DataFrame) -> list[Column]:
    """Labels, seeds if the rows differ in them, and the statistics with a value in any row."""
    labels = frame["label"] + (" [" + frame["source"] + "]" if frame["source"].nunique() > 1 else "")
    columns = [Column("", list(map(Value, labels)), is_label=True, min_width=10)]
    if frame["seeds"].nunique() > 1:
        columns.append(Column("seeds", [Value(_short_seeds(seeds)) for seeds in frame["seeds"]]))
    directions = DIRECTIONS | dict.fromkeys(("mean", "worst", "best"), _direction(frame))
    for key, header in _HEADERS.items():
        if key in frame and (frame[key].notna().any() or key in ("mean", "worst")):
            texts, spreads = _format_column(frame, key)
            best = best_values([float(value) for value in frame[key]], texts, directions.get(key))
            omit = _OMITTED.index(key) + 1 if key in _OMITTED else 0
            columns.append(Column(header, list(map(Value, texts, spreads, best)), omit=omit))
    return columns


def _title(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    direction = f" ({text})" if (text := direction_text(_direction(frame))) else ""
    clients = sorted(set(frame["num_clients"]))
    seeds = ""
    if frame["seeds"].nunique() == 1:
        seeds = f", seed{'s' if first['num_seeds'] > 1 else ''} {_short_seeds(first['seeds'])}"
    sources = " and ".join(dict.fromkeys(frame["source"]))
    count = " to ".join(map(str, dict.fromkeys((clients[0], clients[-1]))))
    return f"{first['split']} {first['metric']}{direction}, {count} clients{seeds}, data: {sources}"


def _notes(frame: pd.DataFrame) -> list[str]:
    notes = []
    if (frame["num_seeds"] > 1).any():
        notes.append("±: standard deviation over seeds.")
    if "baseline" in frame:
        counts = sorted(set(frame.loc[frame["label"] != frame["baseline"], "difference_num_seeds"]))
        pairs = f"{' or '.join(map(str, counts)) or 0} pair{'' if counts == [1] else 's'}"
        notes.append(
            f"minus baseline: row minus {frame['baseline'].iloc[0]}, paired by seed ({pairs}), with a 95 %"
            " t-interval for two or more pairs."
        )
    if over := [text for text in dict.fromkeys(frame["gain_over"]) if text]:
        notes.append(
            f"gain (positive is better), IPR (share of clients that gain), harmed (share that lose), RSD (standard"
            f" deviation of gains): over {' or '.join(over)}."
        )
    if frame["seeds"].nunique() > 1:
        notes.append("The rows have different seeds.")
    if frame["num_clients"].nunique() > 1:
        of_rows = map("{} in {}".format, frame["num_clients"], frame["label"])
        notes.append(f"The rows have values for different numbers of clients: {', '.join(of_rows)}.")
    if broken := list(frame["label"][~np.isfinite(frame["mean"])]):
        notes.append(f"Not finite in at least one run: {', '.join(broken)}.")
    if _direction(frame) is None:
        notes.append(f"No best value is marked: the direction of {frame['metric'].iloc[0]} is unknown.")
    if frame[list(_MEGABYTES)].isna().all(axis=None):
        notes.append("Communication was not counted.")
    return notes


def direction_text(higher_is_better: bool | None) -> str:
    """ "higher is better", "lower is better", or "" if unknown."""
    return {True: "higher is better", False: "lower is better", None: ""}[higher_is_better]


def _format_column(frame: pd.DataFrame, key: str) -> tuple[list[str], list[str]]:
    is_difference, percent = key.endswith("_difference"), key in _PERCENT
    ends = [f"{key}_low", f"{key}_high"] if is_difference else [f"{key}_seed_std"]
    numbers = frame[[key, *ends]].to_numpy(dtype=float) * (100.0 if percent else 1.0)
    digits = 0 if percent else _digits(numbers)
    sizes = np.abs(numbers[np.isfinite(numbers[:, 0]), 0])
    if digits == 0 and not percent and sizes.max(initial=0.0) >= 1000 and ((sizes > 0) & (sizes < 100)).any():
        digits = None  # one diverged: 4.962e+04 and 0.6
    if key == "seconds" and digits is not None:
        digits = min(digits, 1)
    if key == "rounds" and all(value.is_integer() for value in numbers[:, 0] if math.isfinite(value)):
        digits = 0

    def text(value: float, sign: str = "") -> str:
        if math.isnan(value):
            return "-"
        return (f"{value:{sign}.4g}" if digits is None else f"{value:{sign}.{digits}f}") + ("%" if percent else "")

    texts = [text(value, "+" if is_difference or key == "gain" else "") for value in numbers[:, 0]]
    if is_difference:
        spreads = ["" if math.isnan(low) else f"[{text(low, '+')}, {text(high, '+')}]" for low, high in numbers[:, 1:]]
    elif key in ("rounds", *_MEGABYTES) and not (numbers[:, 1] > 0).any():
        spreads = [""] * len(texts)  # usually equal for every seed
    else:
        spreads = ["" if math.isnan(deviation) else f"± {text(deviation)}" for deviation in numbers[:, 1]]
    return texts, spreads


def _digits(values: np.ndarray) -> int | None:
    """Decimals that show the largest value with four significant digits (three below 1); ``None`` if too large."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    if largest == 0:
        return 0
    exponent = math.floor(math.log10(largest))
    if exponent >= _MAX_DIGITS:
        return None
    return max(3 - exponent, 0) if exponent >= 0 else 2 - exponent


def best_values(values: Sequence[float], texts: Sequence[str], higher: bool | None) -> list[bool]:
    """Mark the rows whose text equals that of the best value, unless all texts are equal."""
    finite = [(value, text) for value, text in zip(values, texts, strict=True) if math.isfinite(value)]
    if higher is None or len({text for _, text in finite}) < 2:
        return [False] * len(texts)
    _, best = (max if higher else min)(finite)
    return [math.isfinite(value) and text == best for value, text in zip(values, texts, strict=True)]


def _direction(frame: pd.DataFrame) -> bool | None:
    found = set(frame["higher_is_better"])
    return bool(found.pop()) if found in ({True}, {False}) else None


def _short_seeds(seeds: str) -> str:
    """ "0, 1, 2, 5" as "0-2, 5"."""
    numbered = enumerate(map(int, seeds.split(", ")))
    runs = [[seed for _, seed in run] for _, run in itertools.groupby(numbered, lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
