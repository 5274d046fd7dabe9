"""Columns, rows, title and notes of a comparison, shared by its output formats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lightning_fl.data.source import STAND_IN

__all__ = [
    "DIRECTIONS",
    "Column",
    "Row",
    "best_values",
    "direction_text",
    "has_stand_in",
    "make_columns",
    "make_rows",
    "table_notes",
    "table_title",
]

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
_MEGABYTES = ("megabytes_sent", "megabytes_received")
_PERCENT = ("ipr", "harmed")
#: Numbers with more digits before the point are written with an exponent.
_MAX_DIGITS = 7
#: Whether higher is better, independent of the metric. Times of different machines are not comparable.
DIRECTIONS = {"std": False, "gain": True, "ipr": True, "rsd": False, "harmed": False, "ari": True} | dict.fromkeys(
    _MEGABYTES, False
)


@dataclass(frozen=True)
class Column:
    """A column of one metric's table.

    Args:
        key: its column in the frame.
        header: one or two lines.
        values: a text per row, "-" if missing.
        spreads: standard deviations over seeds or intervals in brackets; "" if missing.
        best: per row, whether it is the best; all False if unknown.
    """

    key: str
    header: str
    values: tuple[str, ...]
    spreads: tuple[str, ...]
    best: tuple[bool, ...]

    @property
    def is_difference(self) -> bool:
        """Whether the spreads are intervals."""
        return self.key.endswith("_difference")

    @property
    def name(self) -> str:
        """Header in one line."""
        return self.header.replace("\n", " ")

    def lines(self, row: int) -> list[str]:
        """Value and spread of a row, as lines."""
        spread = self.spreads[row]
        return [self.values[row], *([spread if self.is_difference else f"±{spread}"] if spread else [])]

    def cell(self, row: int, plus_minus: str = " ± ") -> str:
        """Value and spread of a row, in one line."""
        if not self.spreads[row]:
            return self.values[row]
        return f"{self.values[row]}{' ' if self.is_difference else plus_minus}{self.spreads[row]}"


@dataclass(frozen=True)
class Row:
    """Header of a row.

    Args:
        label: of the group, with its data source if rows differ in it.
        seeds: shortened; "" if all rows have the same.
    """

    label: str
    seeds: str


def make_rows(frame: pd.DataFrame) -> list[Row]:
    """Headers of the rows of one metric's frame."""
    many_sources, many_seeds = frame["source"].nunique() > 1, frame["seeds"].nunique() > 1
    return [
        Row(f"{label} [{source}]" if many_sources else label, _short_seeds(seeds) if many_seeds else "")
        for label, source, seeds in zip(frame["label"], frame["source"], frame["seeds"], strict=True)
    ]


def make_columns(frame: pd.DataFrame) -> list[Column]:
    """Columns of one metric's frame in which any row has a value."""
    direction = _direction(frame)
    known = {} if direction is None else dict.fromkeys(("mean", "worst", "best"), direction)
    found = []
    for key, header in _HEADERS.items():
        if key in frame and (frame[key].notna().any() or key in ("mean", "worst")):
            values, spreads = _format_column(frame, key)
            best = best_values([float(value) for value in frame[key]], values, (known | DIRECTIONS).get(key))
            found.append(Column(key, header, tuple(values), tuple(spreads), tuple(best)))
    return found


def table_title(frame: pd.DataFrame) -> str:
    """Title of one metric's table: split, metric, direction, clients, seeds and data source."""
    first = frame.iloc[0]
    direction = f" ({text})" if (text := direction_text(_direction(frame))) else ""
    clients = sorted(set(frame["num_clients"]))
    count = f"{clients[0]}" if len(clients) == 1 else f"{clients[0]} to {clients[-1]}"
    seeds = ""
    if frame["seeds"].nunique() == 1:
        seeds = f", seed{'s' if first['num_seeds'] > 1 else ''} {_short_seeds(first['seeds'])}"
    sources = " and ".join(dict.fromkeys(frame["source"]))
    return f"{first['split']} {first['metric']}{direction}, {count} clients{seeds}, data: {sources}"


def table_notes(frame: pd.DataFrame) -> list[str]:
    """Notes below one metric's table, a sentence each."""
    notes = []
    if (frame["num_seeds"] > 1).any():
        notes.append("±: standard deviation over seeds.")
    if "baseline" in frame:
        counts = sorted(set(frame.loc[frame["label"] != frame["baseline"], "difference_num_seeds"]))
        pairs = " or ".join(map(str, counts)) or "0"
        notes.append(
            f"minus baseline: row minus {frame['baseline'].iloc[0]}, paired by seed ({pairs} pairs), with a 95 %"
            " t-interval for two or more pairs."
        )
    over = [text for text in dict.fromkeys(frame["gain_over"]) if text]
    if over:
        notes.append(
            f"gain (positive is better), IPR (share of clients that gain), harmed (share that lose), RSD (standard"
            f" deviation of gains): over {' or '.join(over)}."
        )
    if frame["seeds"].nunique() > 1:
        notes.append("The rows have different seeds.")
    if frame["num_clients"].nunique() > 1:
        of_rows = ", ".join(
            f"{count} in {label}" for label, count in zip(frame["label"], frame["num_clients"], strict=True)
        )
        notes.append(f"The rows have values for different numbers of clients: {of_rows}.")
    broken = [label for label, value in zip(frame["label"], frame["mean"], strict=True) if not math.isfinite(value)]
    if broken:
        notes.append(f"Not finite in at least one run: {', '.join(broken)}.")
    if _direction(frame) is None:
        notes.append(f"No best value is marked: the direction of {frame['metric'].iloc[0]} is unknown.")
    if frame[list(_MEGABYTES)].isna().all(axis=None):
        notes.append("Communication was not counted.")
    return notes


def has_stand_in(frame: pd.DataFrame) -> bool:
    """Whether any row is of stand-in data."""
    return any(STAND_IN in source.split(", ") for source in frame["source"])


def direction_text(higher_is_better: bool | None) -> str:
    """ "higher is better", "lower is better", or "" if unknown."""
    return {True: "higher is better", False: "lower is better", None: ""}[higher_is_better]


def _format_column(frame: pd.DataFrame, key: str) -> tuple[list[str], list[str]]:
    """Values and spreads as texts."""
    ends = [f"{key}_low", f"{key}_high"] if key.endswith("_difference") else [f"{key}_seed_std"]
    percent = key in _PERCENT
    numbers = frame[[key, *ends]].to_numpy(dtype=float) * (100.0 if percent else 1.0)
    digits = 0 if percent else _digits(numbers)
    if key == "seconds" and digits is not None:
        digits = min(digits, 1)
    if key == "rounds" and all(value.is_integer() for value in numbers[:, 0] if math.isfinite(value)):
        digits = 0

    def text(value: float, sign: str = "") -> str:
        if math.isnan(value):
            return "-"
        return (f"{value:{sign}.4g}" if digits is None else f"{value:{sign}.{digits}f}") + ("%" if percent else "")

    values = [text(value, "+" if key.endswith("_difference") or key == "gain" else "") for value in numbers[:, 0]]
    if len(ends) == 2:
        spreads = ["" if math.isnan(low) else f"[{text(low, '+')}, {text(high, '+')}]" for low, high in numbers[:, 1:]]
    elif key in ("rounds", *_MEGABYTES) and not (numbers[:, 1] > 0).any():
        spreads = [""] * len(values)  # usually equal for every seed
    else:
        spreads = ["" if math.isnan(deviation) else text(deviation) for deviation in numbers[:, 1]]
    return values, spreads


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
    """Whether higher is better; ``None`` if unknown or if rows disagree."""
    found = set(frame["higher_is_better"])
    return bool(found.pop()) if found in ({True}, {False}) else None


def _short_seeds(seeds: str) -> str:
    """ "0, 1, 2, 5" as "0-2, 5"."""
    numbers = [int(seed) for seed in seeds.split(", ")]
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    texts = [f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts]
    return ", ".join(texts)
