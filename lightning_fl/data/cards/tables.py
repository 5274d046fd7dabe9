"""Cards of tables with a class, or a time and an event, for every row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.core.validation import Count
from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.fields import CardFile, read_keys, read_list, read_names, read_text, read_texts

__all__ = ["DerivedColumn", "TableCard"]

_TableFormat = Literal["c45", "table"]


@dataclass(frozen=True)
class DerivedColumn:
    """Column of two groups, made from the values of another column.

    Attributes:
        name: name of the new column.
        column: column that it is made from.
        values: values of the first group.
        label: name of the first group.
        other: name of the group of all other values.
    """

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
        parts: file of the training data and, if separate, that of the test data.
        columns: names of all columns, in the files' order.
        target: column to predict, perhaps a derived one; for survival the time.
        event: for survival, the column that is 1 where the event was observed and 0 where the time is censored; else
            ``None``.
        classes: values of the target for classes 0, 1, ...; empty for survival.
        unused: columns that are inputs only if the user names them, such as the column that divides the rows.
        categorical: columns that are not numbers, without the target.
        derived: further columns for partitions.
        rows: rows of training and test data; ``None`` for a part that does not exist.
    """

    task: Literal["classification", "survival"]
    format: _TableFormat
    standin: None
    parts: tuple[CardFile, ...]
    columns: tuple[str, ...]
    target: str
    event: str | None
    classes: tuple[str, ...]
    unused: tuple[str, ...]
    categorical: tuple[str, ...]
    derived: tuple[DerivedColumn, ...]
    rows: Mapping[str, Count | None]

    content = "a table"
    data_module = "TableData"
    formats = get_args(_TableFormat)
    may_be_gzipped = True
    own_keys = ("columns", "rows")

    @classmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        if top["standin"] is not None:
            raise ConfigurationError(f"{where}, standin={top['standin']!r}: must be null, as tables have no stand-ins.")
        if len(files) not in (1, 2):
            raise ConfigurationError(
                f"{where}, files: got {len(files)} files; give the training data and, if separate, the test data."
            )
        at = f"{where}, columns"
        survival = top["task"] == "survival"
        own = "event" if survival else "classes"
        entry = read_keys(top["columns"], ("names", "target", own, "categorical", "derived"), at, ("unused",))
        names = read_names(entry["names"], f"{at}.names")
        derived = tuple(
            _read_derived(item, names, f"{at}.derived[{number}]")
            for number, item in enumerate(read_list(entry["derived"], f"{at}.derived"))
        )
        all_names = (*names, *(column.name for column in derived))
        target = _known(read_text(entry, "target", at), names if survival else all_names, f"{at}.target")
        inputs = tuple(name for name in names if name != target)
        rows = read_keys(top["rows"], ("train", "test"), f"{where}, rows")
        if rows["train"] is None or (rows["test"] is not None) != (len(files) == 2):
            raise ConfigurationError(
                f"{where}, rows={dict(rows)} with {len(files)} files: give the rows of every file, and null for test"
                " without a second file."
            )
        unused = read_texts(entry.get("unused", []), f"{at}.unused")
        categorical = read_texts(entry["categorical"], f"{at}.categorical")
        return {
            "parts": tuple(files),
            "columns": names,
            "target": target,
            "event": _known(read_text(entry, "event", at), names, f"{at}.event") if survival else None,
            "classes": () if survival else read_names(entry["classes"], f"{at}.classes"),
            "unused": tuple(_known(name, names, f"{at}.unused") for name in unused),
            "categorical": tuple(_known(name, inputs, f"{at}.categorical") for name in categorical),
            "derived": derived,
            "rows": {part: rows[part] for part in ("train", "test")},
        }

    @property
    def files(self) -> tuple[CardFile, ...]:
        """One or two files."""
        return self.parts

    @property
    def num_rows(self) -> int | None:
        """Number of rows."""
        return sum(count for count in self.rows.values() if count is not None)

    def details(self) -> dict[str, str]:
        """Return columns, classes and groups."""
        return {
            "columns": ", ".join(
                f"{name} (categories)" if name in self.categorical else name
                for name in self.columns
                if name != self.target
            ),
            "target": f"{self.target}: {', '.join(self.classes)}" if self.classes else f"{self.target}, {self.event}",
            "groups": ", ".join(
                f"{column.name} ({column.label}, {column.other}; from {column.column})" for column in self.derived
            )
            or "none",
        }


def _known(name: str, names: tuple[str, ...], where: str) -> str:
    if name not in names:
        raise ConfigurationError(f"{where}: there is no column {name!r}{did_you_mean(name, names)} to use here.")
    return name


def _read_derived(content: object, names: tuple[str, ...], where: str) -> DerivedColumn:
    entry = read_keys(content, ("name", "column", "values", "label", "other"), where)
    values = read_texts(entry["values"], f"{where}, values")
    name = read_text(entry, "name", where)
    if not values or name in names:
        raise ConfigurationError(
            f"{where}: name={name!r}, values={list(values)}: give a name that no column has, and at least one value."
        )
    return DerivedColumn(
        name,
        _known(read_text(entry, "column", where), names, f"{where}, column"),
        values,
        read_text(entry, "label", where),
        read_text(entry, "other", where),
    )
