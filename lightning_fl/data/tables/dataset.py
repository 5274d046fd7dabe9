"""Tables with a class for every row: reading them, and their columns as numbers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError, cut, listed
from lightning_fl.data.table_file import read_table_file
from lightning_fl.data.text_table import (
    list_rows,
    read_numbers,
    read_text,
    refuse_values,
    require_columns,
)

__all__ = [
    "MISSING",
    "TableDataset",
    "TableSchema",
    "class_indices",
    "class_names",
    "column_statistics",
    "read_c45",
    "read_csv",
    "standardize",
    "survival_times",
    "target_numbers",
]

#: How a missing value is written (an empty cell is one too), and what its category is called.
MISSING = "?"
_MAX_VALUES = 1000
#: Beyond it, float64 cannot hold the sum of the squares of some millions.
_LARGEST = 1e150
_NO_NUMBERS = "are not finite numbers"


@dataclass(frozen=True)
class TableSchema:
    """How columns become numbers: numeric ones as they are, categorical ones one-hot.

    Attributes:
        numeric: the Q numeric columns.
        categories: for each categorical column its values, sorted, with :data:`MISSING` where a value is missing
            somewhere.
    """

    numeric: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(
        cls, frames: Sequence[pd.DataFrame], columns: Sequence[str], categorical: Sequence[str] | None, place: str
    ) -> Self:
        """The schema of tables that belong together, such as training and test data.

        Args:
            frames: the tables.
            columns: the columns to use.
            categorical: those that hold categories; ``None`` for those in which no more than half of the values are
                numbers.
            place: where the tables come from, for messages.

        Raises:
            DataError: a column has no value at all or more values than categories may be, or one that should be
                numeric holds something else.
        """
        numeric, categories = [], {}
        for name in columns:
            cells = pd.concat([frame[name] for frame in frames])
            if cells.isna().all():
                raise DataError(f"{place}, column {name!r} has no value in any row: drop it.")
            numbers, wrong = read_numbers(cells)
            if _is_numeric(numbers, wrong) if categorical is None else name not in categorical:
                refuse_values(
                    wrong,
                    f"{place}, column {name!r}",
                    _NO_NUMBERS,
                    "Correct them, or name the columns of categories, this one too, in categorical",
                )
                _refuse_large(cells, numbers, f"{place}, column {name!r}")
                numeric.append(name)
                continue
            if categorical is None:
                _warn_of_texts(numbers, wrong, f"{place}, column {name!r}", "categories")
            values = _merged(cells.dropna().unique())
            if len(values) > _MAX_VALUES:
                raise DataError(
                    f"{place}, column {name!r} has {len(values)} different values, such as {values[0]!r}: with more"
                    f" than {_MAX_VALUES} it holds no categories. Drop it."
                )
            categories[name] = (*values, MISSING) if cells.isna().any() else tuple(values)
        return cls(tuple(numeric), categories)

    @property
    def feature_names(self) -> list[str]:
        """The D features: numeric columns, then ``column=value`` for every category."""
        return [*self.numeric, *(f"{name}={value}" for name, values in self.categories.items() for value in values)]

    def numbers(self, frame: pd.DataFrame) -> Tensor:
        """The numeric columns, float64 [n, Q]; NaN for a missing value."""
        columns = [read_numbers(frame[name])[0].to_numpy() for name in self.numeric]
        return torch.from_numpy(np.stack(columns, axis=1)) if columns else torch.empty(len(frame), 0).double()

    def check(self, frame: pd.DataFrame, place: str) -> None:
        """Refuse rows that are not of this schema, such as those of a later file.

        Raises:
            DataError: a column is not there, a number is none, or a value is none of the categories.
        """
        require_columns(frame, [*self.numeric, *self.categories], place)
        mend = "Correct them, or leave the rows out"
        for name in self.numeric:
            numbers, wrong = read_numbers(frame[name])
            refuse_values(wrong, f"{place}, column {name!r}", _NO_NUMBERS, mend)
            _refuse_large(frame[name], numbers, f"{place}, column {name!r}")
        for name, known in self.categories.items():
            cells = _matched(frame[name], known)
            fault = "are none of the values that the column had in training"
            refuse_values(cells[~cells.isin(known)], f"{place}, column {name!r}", fault, mend)

    def faults(self, frame: pd.DataFrame) -> dict[int, str]:
        """Why rows are not of this schema: row, counted from 0 -> the reason, its first. The columns are there."""
        found: dict[int, str] = {}
        for name in self.numeric:
            numbers, wrong = read_numbers(frame[name])
            bad = frame.index.isin(wrong.index) | (numbers.abs() > _LARGEST).to_numpy()
            for row in np.flatnonzero(bad).tolist():
                found.setdefault(row, f"{name}: {cut(repr(frame[name].iloc[row]))} is not a finite number of use")
        for name, known in self.categories.items():
            cells = _matched(frame[name], known)
            for row in np.flatnonzero(~cells.isin(known).to_numpy()).tolist():
                found.setdefault(row, f"{name}: {cut(repr(cells.iloc[row]))} is none of the values in training")
        return found

    def one_hot(self, frame: pd.DataFrame) -> Tensor:
        """The categorical columns one-hot, float32 [n, K]."""
        blocks = []
        for name, values in self.categories.items():
            codes = pd.Categorical(_matched(frame[name], values), categories=list(values)).codes
            blocks.append(torch.nn.functional.one_hot(torch.from_numpy(codes.astype(np.int64)), len(values)).float())
        return torch.cat(blocks, dim=1) if blocks else torch.empty(len(frame), 0)


class TableDataset(Dataset):
    """Rows as they stand in a file, with their classes: what partitioners go by.

    Args:
        frame: texts, ``None`` for a missing value; the index holds row numbers for messages.
        targets: classes, int64, shape [n]; numbers, float32 [n, 1]; or times and events, float32 [n, 2].
        classes: their names; none of numbers and times.
        schema: how the columns to learn from become numbers.
        place: where the rows come from, for messages.
    """

    def __init__(
        self, frame: pd.DataFrame, targets: Tensor, *, classes: Sequence[str], schema: TableSchema, place: str
    ) -> None:
        self.frame = frame
        self.targets = targets
        self.classes = list(classes)
        self.schema = schema
        self.place = place

    def __len__(self) -> int:
        return len(self.frame)

    def column(self, name: str) -> list[str]:
        """The n values of a column, as text.

        Raises:
            DataError: there is no such column, or a value is missing.
        """
        require_columns(self.frame, [name], self.place)
        values = self.frame[name]
        if (missing := values.isna()).any():
            rows = [int(row) for row in self.frame.index[missing]]
            raise DataError(
                f"{self.place}, column {name!r} has no value in {len(rows)} rows:"
                f" {list_rows(rows, [MISSING] * len(rows))}. Fill them in, or choose another column."
            )
        return values.tolist()


def column_statistics(training: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of the training rows' numbers.

    Args:
        training: float64 [m, Q], NaN where missing.

    Returns:
        Two float64 [Q]; the deviation is 0 where a column is constant, and both are 0 where it has no value.
    """
    mean = training.nanmean(dim=0)
    std = (training - mean).square().nanmean(dim=0).sqrt()
    return mean.nan_to_num(nan=0.0), torch.where(std > 1e-12 * mean.abs(), std, 0.0)


def standardize(numbers: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Numbers less the training rows' mean, divided by their standard deviation.

    A missing number becomes 0, the mean; so does every number of a column that is constant in the training rows.

    Args:
        numbers: float64 [n, Q], NaN where missing.
        mean: see :func:`column_statistics`.
        std: likewise.

    Returns:
        float32 [n, Q].
    """
    return torch.where(std == 0, 0.0, (numbers - mean) / std).nan_to_num(nan=0.0).float()


def read_c45(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read rows without a header, plain or gzipped: see :class:`~lightning_fl.data.cards.tables.TableCard`.

    Returns:
        Texts, ``None`` for a missing value; the index holds line numbers.

    Raises:
        DataError: the file cannot be read, has no rows, or a row has more or fewer values than there are columns.
    """
    rows: dict[int, list[str | None]] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        content = line.partition("|")[0].strip().removesuffix(".")
        if not content:
            continue
        rows[number] = [_cell(text) for text in content.split(",")]
        if len(rows[number]) != len(columns):
            raise DataError(
                f"{path}, line {number} has {len(rows[number])} values for the {len(columns)} columns"
                f" {listed(columns)}: correct it."
            )
    if not rows:
        raise DataError(f"{path} has no rows of data: check the file.")
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(columns), dtype=object)


def read_csv(path: Path) -> pd.DataFrame:
    """A table with a header, see :func:`~lightning_fl.data.table_file.read_table_file`; a question mark is no value."""
    frame = read_table_file(path)
    return frame.where(frame != MISSING, None).dropna(how="all")


def _merged(values: Iterable[str]) -> list[str]:
    """Different values, sorted; a whole number that is also written with a point (1 and 1.0) once."""
    found = set(values)
    return sorted(value for value in found if _whole(value) == value or _whole(value) not in found)


def _matched(cells: pd.Series, known: Sequence[str]) -> pd.Series:
    """Categories as they are called among the known ones: a whole number may be written with a point or without."""
    names = {_whole(value): value for value in known}
    return cells.fillna(MISSING).map(lambda value: value if value in known else names.get(_whole(value), value))


def _whole(value: str) -> str:
    """A whole number without its point; anything else as it is."""
    return value.rstrip("0").removesuffix(".") if re.fullmatch(r"-?[0-9]+\.0*", value) else value


def _is_numeric(numbers: pd.Series, wrong: pd.Series) -> bool:
    """Whether a column is one of numbers: most of its values are. The others are then faults, no categories."""
    return int(numbers.notna().sum()) > len(wrong)


def _warn_of_texts(numbers: pd.Series, texts: pd.Series, place: str, what: str) -> None:
    """Warn of a column of numbers and texts, all of which become categories or classes."""
    if len(texts) and numbers.notna().any():
        rows = list_rows(list(map(int, texts.index)), texts.tolist())
        rank_zero_warn(
            f"{place} holds numbers and {len(texts)} texts, {rows}: all its different values are {what}. Correct the"
            " texts if they should be numbers."
        )


def _refuse_large(cells: pd.Series, numbers: pd.Series, place: str) -> None:
    fault = f"are above {_LARGEST:g}, where no deviation can be computed"
    refuse_values(cells[numbers.abs() > _LARGEST], place, fault, "Choose a smaller unit")


def class_names(column: pd.Series, place: str) -> list[str]:
    """The classes of a target column: its values, whole numbers in their order, anything else as text.

    Raises:
        DataError: there is one class only, or the values are no classes.
    """
    given = column.dropna()
    values, numbers = given.unique().tolist(), pd.to_numeric(given, errors="coerce").astype(float)
    finite = np.isfinite(numbers)
    whole = bool((numbers[finite] % 1 == 0).all())
    if len(values) > _MAX_VALUES or (_is_numeric(numbers[finite], given[~finite]) and not whole):
        raise DataError(
            f"{place}, target column {column.name!r} has {len(values)} different values, such as {values[0]!r}: they"
            " are no classes. Choose a column of classes, or put the values into classes first."
        )
    if len(values) < 2:
        raise DataError(
            f"{place}, target column {column.name!r} has {len(values)} different values: there is nothing to learn."
            " Choose another column."
        )
    _warn_of_texts(numbers[finite], given[~finite], f"{place}, target column {column.name!r}", "classes")
    return sorted(values, key=float) if finite.all() and whole else sorted(values)


def class_indices(column: pd.Series, classes: Sequence[str], place: str) -> Tensor:
    """The class of every row, int64 [n].

    Raises:
        DataError: a value is missing or none of the classes.
    """
    codes = pd.Categorical(column, categories=list(classes)).codes.astype(np.int64)
    if (wrong := codes < 0).any():
        raise DataError(
            f"{place}, target column {column.name!r}: {int(wrong.sum())} values are none of the classes"
            f" {listed(classes)}: {list_rows(list(map(int, column.index[wrong])), column[wrong].tolist())}. Correct"
            " them, or leave the rows out."
        )
    return torch.from_numpy(codes)


def target_numbers(column: pd.Series, place: str) -> Tensor:
    """The targets of a regression, float32 [n, 1].

    Raises:
        DataError: a value is missing or not a finite number.
    """
    targets = torch.from_numpy(read_numbers(column)[0].to_numpy(copy=True)).float()
    wrong = column[~targets.isfinite().numpy()].fillna(MISSING)
    refuse_values(wrong, f"{place}, target column {column.name!r}", _NO_NUMBERS, "Correct them, or leave the rows out")
    return targets[:, None]


def survival_times(times: pd.Series, events: pd.Series, place: str) -> Tensor:
    """Times until an event or the end of the observation, and which it was, float32 [n, 2].

    Args:
        times: texts; numbers of at least 0.
        events: texts; 1 where the event was seen, 0 where not.
        place: for messages.

    Raises:
        DataError: a time is missing, negative or no number, an event is neither 0 nor 1, or none was seen.
    """
    columns = []
    for column, fits, what in (
        (times, lambda numbers: numbers >= 0, "are no times of at least 0"),
        (events, lambda numbers: (numbers == 0) | (numbers == 1), "are neither 1 (seen) nor 0 (censored)"),
    ):
        numbers, _ = read_numbers(column)
        wrong = column[~fits(numbers)].fillna(MISSING)
        refuse_values(wrong, f"{place}, column {column.name!r}", what, "Correct them, or leave the rows out")
        columns.append(torch.from_numpy(numbers.to_numpy(copy=True)))
    if not columns[1].any():
        raise DataError(f"{place}, column {events.name!r} has no event: there is nothing to learn.")
    return torch.stack(columns, 1).float()


def _cell(text: str) -> str | None:
    """A cell without blanks at its ends; ``None`` for a missing value."""
    text = text.strip()
    return None if text in ("", MISSING) else text
