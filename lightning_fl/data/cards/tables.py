"""Cards of tables with a class, or a time and an event, for every row."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.core.validation import Count
from lightning_fl.data.cards.card import Card, check_keys, check_names, within

_TableFormat = Literal["c45", "table"]


@dataclass(frozen=True)
class DerivedColumn:
    """Column of two groups: ``label`` where another column has one of the values, else ``other``."""

    name: str
    column: str
    values: tuple[str, ...]
    label: str
    other: str


@dataclass(frozen=True, kw_only=True)
class TableCard(Card):
    """Card of a table of numbers and categories.

    The format ``c45`` has no header: values separated by commas, with or without blanks; a bar begins a comment; ``?``
    is a missing value; a row may end with a full stop. The format ``table`` has a header with all column names.

    Attributes:
        files: file of the training data and, if separate, that of the test data.
        columns: names of all columns, in the files' order.
        target: column to predict, perhaps a derived one; for survival the time.
        event: for survival, the column that is 1 where the event was observed and 0 where the time is censored; else
            ``None``.
        classes: values of the target for classes 0, 1, ...; empty for survival.
        unused: columns that are inputs only if the user names them, such as the column that divides the rows.
        categorical: columns that are not numbers, without the target.
        derived: further columns for partitions.
    """

    task: Literal["classification", "survival"]
    format: _TableFormat
    standin: None
    columns: tuple[str, ...] = within("columns", "names")
    target: str = within("columns")
    event: str | None = within("columns", default=None)
    classes: tuple[str, ...] = within("columns", default=())
    unused: tuple[str, ...] = within("columns", default=())
    categorical: tuple[str, ...] = within("columns")
    derived: tuple[DerivedColumn, ...] = within("columns")
    rows: Mapping[str, Count | None]

    content = "a table"
    data_module = "TableData"
    formats = get_args(_TableFormat)
    may_be_gzipped = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.standin is not None:
            raise ConfigurationError(f"standin={self.standin!r}: must be null, as tables have no stand-ins.")
        rows = check_keys(self.rows, ("train", "test"), "rows")
        if rows["train"] is None or (rows["test"] is not None) != (len(self.files) == 2):
            raise ConfigurationError(
                f"rows={dict(rows)} with {len(self.files)} files: give the rows of every file, and null for test"
                " without a second file."
            )
        check_names(self.columns, "columns.names")
        if (self.task == "survival") == (self.event is None) or (self.event is not None and self.classes):
            raise ConfigurationError(f"columns: task {self.task} needs event for survival, else classes.")
        derived = [column.name for column in self.derived]
        if self.event is None:
            check_names(self.classes, "columns.classes")
            _check_known([self.target], {*self.columns, *derived}, "columns.target")
        else:
            _check_known([self.target], self.columns, "columns.target")
            _check_known([self.event], self.columns, "columns.event")
        _check_known(self.unused, self.columns, "columns.unused")
        _check_known(self.categorical, {*self.columns} - {self.target}, "columns.categorical")
        for number, column in enumerate(self.derived):
            if not column.values or column.name in self.columns:
                raise ConfigurationError(
                    f"columns.derived[{number}]: name={column.name!r}, values={list(column.values)}: give a name that"
                    " no column has, and at least one value."
                )
            _check_known([column.column], self.columns, f"columns.derived[{number}], column")

    def _file_counts(self) -> tuple[int, ...]:
        return (1, 2)

    def details(self) -> dict[str, str]:
        inputs = [name for name in self.columns if name != self.target]
        groups = [f"{one.name} ({one.label}, {one.other}; from {one.column})" for one in self.derived]
        return {
            "columns": ", ".join(f"{name} (categories)" if name in self.categorical else name for name in inputs),
            "target": f"{self.target}: {', '.join(self.classes)}" if self.classes else f"{self.target}, {self.event}",
            "groups": ", ".join(groups) or "none",
        }


def _check_known(names: Collection[str], columns: Collection[str], where: str) -> None:
    for name in names:
        if name not in columns:
            raise ConfigurationError(f"{where}: there is no column {name!r}{did_you_mean(name, columns)} to use here.")
