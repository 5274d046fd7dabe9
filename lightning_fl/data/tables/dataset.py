"""Tables with a target for every row: reading, checking, and conversion of columns to numbers."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError, cut, listed
from lightning_fl.files.table_file import read_table_file
from lightning_fl.files.text_table import list_rows, read_numbers, refuse_values, require_columns, text_lines, unpacked

#: Text of a missing value (an empty cell is one too), and name of its category.
MISSING = "?"
_MAX_VALUES = 1000
#: A column with more different texts than this, and than half of its rows, gets a warning.
_FEW_VALUES = 20
#: Largest number; beyond it, float64 cannot hold the sum of the squares of some millions.
_LARGEST = 1e150
_NOT_NUMBERS = f"not numeric and at most {_LARGEST:g} in size"
_REMEDY = "Correct them, or leave the rows out"


@dataclass(frozen=True)
class TableSchema:
    """Conversion of columns to numbers: Q numeric ones unchanged, categorical ones one-hot.

    ``categories`` maps a categorical column to its sorted values, with :data:`MISSING` last if any is missing.
    """

    numeric: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(
        cls, frames: Sequence[pd.DataFrame], columns: Sequence[str], categorical: Sequence[str] | None, place: str
    ) -> Self:
        """Derive the schema of tables that belong together, such as training and test data.

        ``categorical`` names the columns of categories; ``None`` for those where at most half are numbers.
        """
        numeric, categories = [], {}
        for name in columns:
            cells = pd.concat([frame[name] for frame in frames])
            if cells.isna().all():
                raise DataError(f"{place}, column {name!r} has no value in any row: drop it.")
            numbers, wrong = read_numbers(cells)
            if _is_numeric(numbers, wrong) if categorical is None else name not in categorical:
                refuse_values(
                    pd.concat([wrong, cells[numbers.abs() > _LARGEST]]),
                    f"{place}, column {name!r}",
                    f"are {_NOT_NUMBERS}",
                    "Correct them, or name all columns of categories in categorical",
                )
                numeric.append(name)
                continue
            if categorical is None:
                _warn_of_texts(numbers, wrong, f"{place}, column {name!r}", "categories")
            values = _distinct(cells.dropna().unique())
            if len(values) > _MAX_VALUES:
                count = f"{len(values)} different values, such as {values[0]!r}"
                raise DataError(f"{place}, column {name!r} has {count}; categories have up to {_MAX_VALUES}: drop it.")
            if categorical is None and len(values) > max(_FEW_VALUES, cells.notna().sum() / 2):
                count = f"{len(values)} different texts, such as {values[0]!r}, each of which becomes a feature"
                rank_zero_warn(f"{place}, column {name!r} has {count}. Drop it, or give numbers a decimal point.")
            categories[name] = (*values, MISSING) if cells.isna().any() else tuple(values)
        return cls(tuple(numeric), categories)

    @property
    def feature_names(self) -> list[str]:
        """Names of the D features: numeric columns, then ``column=value`` for every category."""
        return [*self.numeric, *(f"{name}={value}" for name, values in self.categories.items() for value in values)]

    def numbers(self, frame: pd.DataFrame) -> Tensor:
        """Convert the numeric columns to float64 [n, Q]; NaN for a missing value."""
        columns = [read_numbers(frame[name])[0].to_numpy() for name in self.numeric]
        return torch.from_numpy(np.stack(columns, axis=1)) if columns else torch.empty(len(frame), 0).double()

    def check(self, frame: pd.DataFrame, place: str) -> None:
        require_columns(frame, [*self.numeric, *self.categories], place)
        for name, wrong, fault in self._misfits(frame):
            refuse_values(wrong, f"{place}, column {name!r}", f"are {fault}", _REMEDY)

    def faults(self, frame: pd.DataFrame) -> dict[int, str]:
        """Explain which rows do not fit the schema: row, counted from 0 -> first reason. All columns must exist."""
        found: dict[int, str] = {}
        for name, wrong, fault in self._misfits(frame.reset_index(drop=True)):
            for row, value in wrong.items():
                found.setdefault(int(str(row)), f"{name}: {cut(repr(value))} is {fault}")
        return found

    def _misfits(self, frame: pd.DataFrame) -> Iterator[tuple[str, pd.Series, str]]:
        """Yield every column, its cells that do not fit, and what is wrong with them."""
        for name in self.numeric:
            numbers, wrong = read_numbers(frame[name])
            yield name, pd.concat([wrong, frame[name][numbers.abs() > _LARGEST]]), _NOT_NUMBERS
        for name, known in self.categories.items():
            cells = _match(frame[name], known)
            yield name, cells[~cells.isin(known)], "not among the values of the training data"

    def one_hot(self, frame: pd.DataFrame) -> Tensor:
        """Convert the categorical columns to one-hot, float32 [n, K]."""
        blocks = []
        for name, values in self.categories.items():
            codes = pd.Categorical(_match(frame[name], values), categories=list(values)).codes
            blocks.append(torch.nn.functional.one_hot(torch.from_numpy(codes.astype(np.int64)), len(values)).float())
        return torch.cat(blocks, dim=1) if blocks else torch.empty(len(frame), 0)

    def features(self, frame: pd.DataFrame, mean: Tensor, std: Tensor) -> Tensor:
        """Inputs of a model, float32 [n, D]: numbers by :func:`standardize`, then categories."""
        return torch.cat([standardize(self.numbers(frame), mean, std), self.one_hot(frame)], dim=1)


@dataclass(eq=False, repr=False)
class TableDataset(Dataset):
    """Rows of a file with their targets, by which partitioners group them."""

    frame: pd.DataFrame  #: texts, ``None`` for a missing value; the index holds row numbers
    targets: Tensor  #: classes, int64 [n]; numbers, float32 [n, 1]; or times and events, float32 [n, 2]
    classes: list[str]  #: empty for numbers and times
    schema: TableSchema  #: conversion of the input columns to numbers
    place: str  #: source of the rows, for messages

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def rows(self) -> list[int]:
        return self.frame.index.tolist()

    def cells(self, name: str) -> list[str | None]:
        require_columns(self.frame, [name], self.place)
        return self.frame[name].tolist()

    def column(self, name: str) -> list[str]:
        require_columns(self.frame, [name], self.place)
        values = self.frame[name]
        missing = values[values.isna()]
        refuse_values(missing, f"{self.place}, column {name!r}", "are missing", "Fill them, or choose another column")
        return values.tolist()


def column_statistics(training: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of the training rows [m, Q], NaN where missing; two float64 [Q].

    The deviation is 0 where a column is constant, and both are 0 where it has no value.
    """
    mean = training.nanmean(dim=0)
    std = (training - mean).square().nanmean(dim=0).sqrt()
    return mean.nan_to_num(nan=0.0), torch.where(std > 1e-12 * mean.abs(), std, 0.0)


def standardize(numbers: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Subtract the training rows' mean from numbers [n, Q] and divide by their standard deviation; float32 [n, Q].

    A missing number (NaN) becomes 0, the mean; so does every number of a column that is constant in the training rows.
    """
    return torch.where(std == 0, 0.0, (numbers - mean) / std).nan_to_num(nan=0.0).float()


def read_c45(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read rows without a header, plain or gzipped: see :class:`~lightning_fl.data.cards.kinds.TableCard`.

    Returns texts, ``None`` for a missing value; the index holds line numbers.
    """
    rows: dict[int, list[str | None]] = {}
    with unpacked(path) as stream:
        for number, line in enumerate(text_lines(stream, str(path)), start=1):
            content = line.partition("|")[0].strip().removesuffix(".")
            if not content:
                continue
            cells = [text.strip() for text in content.split(",")]
            if len(cells) != len(columns):
                known = f"{len(columns)} columns, {listed(columns)}"
                raise DataError(f"{path}, line {number} has {len(cells)} values for {known}: correct it.")
            rows[number] = [None if cell in ("", MISSING) else cell for cell in cells]
    if not rows:
        raise DataError(f"{path} has no rows of data: check the file.")
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(columns), dtype=object)


def read_csv(path: Path) -> pd.DataFrame:
    """Read a table with :func:`~lightning_fl.files.table_file.read_table_file`; a question mark is a missing value."""
    frame = read_table_file(path)
    return frame.where(frame != MISSING, None).dropna(how="all")


def _distinct(values: Iterable[str]) -> list[str]:
    """Sort distinct values; a whole number that is written both with and without a point (1 and 1.0) counts once."""
    found = set(values)
    return sorted(value for value in found if _without_point(value) == value or _without_point(value) not in found)


def _match(cells: pd.Series, known: Sequence[str]) -> pd.Series:
    """Rename cells to the known categories; a whole number may be written with or without a point."""
    names = {_without_point(value): value for value in known} | {value: value for value in known}
    return cells.fillna(MISSING).map(lambda value: names.get(value) or names.get(_without_point(value), value))


def _without_point(value: str) -> str:
    """Remove the point of a whole number; return other values unchanged."""
    return value.rstrip("0").removesuffix(".") if re.fullmatch(r"-?[0-9]+\.0*", value) else value


def _is_numeric(numbers: pd.Series, wrong: pd.Series) -> bool:
    """Whether most values of a column are numbers; then the others are faults."""
    return int(numbers.notna().sum()) > len(wrong)


def _warn_of_texts(numbers: pd.Series, texts: pd.Series, place: str, what: str) -> None:
    if len(texts) and numbers.notna().any():
        rows = list_rows(list(map(int, texts.index)), texts.tolist())
        kinds = f"numbers and {len(texts)} texts, {rows}: all its values become {what}"
        rank_zero_warn(f"{place} has {kinds}. Correct the texts if they should be numbers.")


def class_names(column: pd.Series, place: str) -> list[str]:
    """List the classes of a target column: whole numbers in numerical order, or sorted texts."""
    given = column.dropna()
    numbers, texts = read_numbers(given)
    values = _distinct(given if len(texts) else given[numbers.notna()])
    whole = bool((numbers.dropna() % 1 == 0).all())
    place = f"{place}, target column {column.name!r}"
    if len(values) > _MAX_VALUES or (_is_numeric(numbers, texts) and not whole):
        count = f"{len(values)} different values, such as {values[0]!r}"
        raise DataError(f"{place} has {count}, which are not classes: choose another, or put them into classes first.")
    if len(values) < 2:
        raise DataError(f"{place} has fewer than two different values: choose another column.")
    _warn_of_texts(numbers, texts, place, "classes")
    return values if len(texts) else sorted(values, key=float)


def class_indices(column: pd.Series, classes: Sequence[str], place: str) -> Tensor:
    """Convert a target column to classes, int64 [n]."""
    codes = pd.Categorical(_match(column, classes), categories=list(classes)).codes.astype(np.int64)
    fault = f"are not classes ({listed(classes)})"
    refuse_values(column[codes < 0], f"{place}, target column {column.name!r}", fault, _REMEDY)
    return torch.from_numpy(codes)


def target_numbers(column: pd.Series, place: str) -> Tensor:
    """Convert a target column to the targets of a regression, float32 [n, 1]."""
    targets = torch.from_numpy(read_numbers(column)[0].to_numpy(copy=True)).float()
    wrong = column[~targets.isfinite().numpy()]
    refuse_values(wrong, f"{place}, target column {column.name!r}", "are not finite numbers", _REMEDY)
    return targets[:, None]


def survival_times(times: pd.Series, events: pd.Series, place: str) -> Tensor:
    """Convert times >= 0 until an event or the end of the observation, and events 1 or 0, to float32 [n, 2]."""
    columns = []
    for column, fits, what in (
        (times, lambda numbers: numbers >= 0, "are not times of at least 0"),
        (events, lambda numbers: (numbers == 0) | (numbers == 1), "are neither 1 (observed) nor 0 (censored)"),
    ):
        numbers, _ = read_numbers(column)
        refuse_values(column[~fits(numbers)], f"{place}, column {column.name!r}", what, _REMEDY)
        columns.append(torch.from_numpy(numbers.to_numpy(copy=True)))
    if not columns[1].any():
        raise DataError(f"{place}, column {events.name!r} has no event: there is nothing to learn.")
    return torch.stack(columns, 1).float()
