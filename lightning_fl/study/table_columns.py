"""What the written forms of a comparison have in common: which columns, how numbers read, which values are best."""

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
    "columns_of",
    "has_stand_in",
    "notes_of",
    "rows_of",
    "title_of",
]

#: Key -> header, in the order of the table; two lines where it would be wider than its numbers.
_HEADERS = {
    "mean": "mean",
    "worst": "worst\nclient",
    "mean_difference": "mean less\nbaseline",
    "worst_difference": "worst less\nbaseline",
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
_GAINS = ("gain", "ipr", "rsd", "harmed")
_MEGABYTES = ("megabytes_sent", "megabytes_received")
_PERCENT = ("ipr", "harmed")
#: Numbers of more places before the point are written with an exponent.
_MOST_PLACES = 7
#: Whether more is better, where that does not depend on the metric. Times of different machines do not compare.
DIRECTIONS = {"std": False, "gain": True, "ipr": True, "rsd": False, "harmed": False, "ari": True} | dict.fromkeys(
    _MEGABYTES, False
)


@dataclass(frozen=True)
class Column:
    """A column of the table of one metric.

    Args:
        key: its column in the frame.
        header: in words, perhaps two lines.
        values: a text per row, "-" where there is none.
        spreads: the standard deviation over seeds without its sign, or the interval in brackets; "" where there is
            none.
        best: per row, whether it is the best; all False where that is not known.
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
        """The header on one line."""
        return self.header.replace("\n", " ")

    def lines(self, row: int) -> list[str]:
        """A row's value and below it its spread."""
        spread = self.spreads[row]
        return [self.values[row], *([spread if self.is_difference else f"±{spread}"] if spread else [])]

    def cell(self, row: int, plus_minus: str = " ± ") -> str:
        """A row's value and spread on one line."""
        if not self.spreads[row]:
            return self.values[row]
        return f"{self.values[row]}{' ' if self.is_difference else plus_minus}{self.spreads[row]}"


@dataclass(frozen=True)
class Row:
    """The beginning of a row.

    Args:
        label: of the group, with its data source where rows differ in that.
        seeds: as in the frame, shortened; "" where all rows have the same.
    """

    label: str
    seeds: str


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows' labels and, where they differ, seeds.

    Args:
        frame: the rows of one metric, as is that of the other functions.
    """
    many_sources, many_seeds = frame["source"].nunique() > 1, frame["seeds"].nunique() > 1
    return [
        Row(
            f"{label} [{source}]" if many_sources else label,
            _short_seeds(seeds) if many_seeds else "",
        )
        for label, source, seeds in zip(frame["label"], frame["source"], frame["seeds"], strict=True)
    ]


def columns_of(frame: pd.DataFrame) -> list[Column]:
    """The columns in which any row has a value."""
    direction = _direction(frame)
    known = {} if direction is None else dict.fromkeys(("mean", "worst", "best"), direction)
    found = []
    for key, header in _HEADERS.items():
        if key in frame and (frame[key].notna().any() or key in ("mean", "worst")):
            values, spreads = _texts(frame, key)
            best = best_values([float(value) for value in frame[key]], values, (known | DIRECTIONS).get(key))
            found.append(Column(key, header, tuple(values), tuple(spreads), tuple(best)))
    return found


def title_of(frame: pd.DataFrame) -> str:
    """What the table shows: split, metric, its direction, clients, seeds, data source."""
    first = frame.iloc[0]
    higher = _direction(frame)
    direction = "" if higher is None else f" ({'higher' if higher else 'lower'} is better)"
    clients = sorted(set(frame["num_clients"]))
    count = f"{clients[0]}" if len(clients) == 1 else f"{clients[0]} to {clients[-1]}"
    seeds = ""
    if frame["seeds"].nunique() == 1:
        seeds = f", seed{'s' if first['num_seeds'] > 1 else ''} {_short_seeds(first['seeds'])}"
    sources = " and ".join(dict.fromkeys(frame["source"]))
    return f"{first['split']} {first['metric']}{direction}, {count} clients{seeds}, data: {sources}"


def notes_of(frame: pd.DataFrame) -> list[str]:
    """What a reader has to know to read the table rightly, a sentence each."""
    notes = []
    if (frame["num_seeds"] > 1).any():
        notes.append("±: standard deviation over seeds.")
    if "baseline" in frame:
        counts = sorted(set(frame.loc[frame["label"] != frame["baseline"], "difference_num_seeds"]))
        pairs = " or ".join(map(str, counts)) or "0"
        notes.append(
            f"less baseline: row less {frame['baseline'].iloc[0]}, paired by seed ({pairs} pairs), with its 95 %"
            " t-interval from two pairs on."
        )
    over = [text for text in dict.fromkeys(frame["gain_over"]) if text]
    if over:
        notes.append(
            f"gain (positive is better), IPR (share of clients that gain), harmed (share that lose), RSD (standard"
            f" deviation of gains): over {' or '.join(over)}."
        )
    if frame["seeds"].nunique() > 1:
        notes.append("The rows have different seeds: their means are not over the same runs.")
    if frame["num_clients"].nunique() > 1:
        of_rows = ", ".join(
            f"{count} in {label}" for label, count in zip(frame["label"], frame["num_clients"], strict=True)
        )
        notes.append(f"Not all rows have values for the same number of clients: {of_rows}.")
    broken = [label for label, value in zip(frame["label"], frame["mean"], strict=True) if not math.isfinite(value)]
    if broken:
        notes.append(f"Not finite in at least one run: {', '.join(broken)}.")
    if _direction(frame) is None:
        notes.append(f"Whether more or less {frame['metric'].iloc[0]} is better is not known: no best value is marked.")
    missing = frame[list(_MEGABYTES)].isna().all(axis=None)
    if missing:
        notes.append("Communication was not counted in these runs.")
    return notes


def has_stand_in(frame: pd.DataFrame) -> bool:
    """Whether any row is of embedded example data."""
    return any(STAND_IN in source.split(", ") for source in frame["source"])


def _texts(frame: pd.DataFrame, key: str) -> tuple[list[str], list[str]]:
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
        spreads = [""] * len(values)  # the same in every seed, as a rule
    else:
        spreads = ["" if math.isnan(deviation) else text(deviation) for deviation in numbers[:, 1]]
    return values, spreads


def _digits(values: np.ndarray) -> int | None:
    """Decimals by which the largest of the values has four significant digits, below 1 three; ``None``: too large."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    if largest == 0:
        return 0
    exponent = math.floor(math.log10(largest))
    if exponent >= _MOST_PLACES:
        return None
    return max(3 - exponent, 0) if exponent >= 0 else 2 - exponent


def best_values(values: Sequence[float], texts: Sequence[str], higher: bool | None) -> list[bool]:
    """The rows that read as the best value, where rows differ in what can be read."""
    finite = [(value, text) for value, text in zip(values, texts, strict=True) if math.isfinite(value)]
    if higher is None or len({text for _, text in finite}) < 2:
        return [False] * len(texts)
    _, best = (max if higher else min)(finite)
    return [math.isfinite(value) and text == best for value, text in zip(values, texts, strict=True)]


def _direction(frame: pd.DataFrame) -> bool | None:
    """Whether higher is better; ``None`` where a row does not know or rows do not agree."""
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
