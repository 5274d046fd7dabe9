"""Cards of tables with a class, or a time and an event, for every row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.fields import CardFile, read_count, read_keys, read_list, read_text

__all__ = ["DerivedColumn", "TableCard"]


@dataclass(frozen=True)
class DerivedColumn:
    """A column of groups that tells certain values of another column from the rest.

    Attributes:
        name: its name.
        column: the column that it is made from.
        values: the values that are told from the rest.
        label: what they are called.
        other: what the rest is called.
    """

    name: str
    column: str
    values: tuple[str, ...]
    label: str
    other: str


@dataclass(frozen=True, kw_only=True)
class TableCard(Card):
    """A table of numbers and categories.

    The format ``c45`` has no header: values separated by commas, with or without blanks; a bar begins a comment; ``?``
    is a missing value; a row may end with a full stop. The format ``table`` has one, which names all columns.

    Attributes:
        parts: the file of the training data and, where there are any, that of the test data.
        columns: names of all columns, in the files' order.
        target: the column to predict, or one that is derived; of survival the time.
        event: of survival, the column that is 1 where the event was seen and 0 where the time is censored; else
            ``None``.
        classes: the target's values 0, 1, ...; none of survival.
        unused: columns that nobody learns from unless they are named, such as the one that divides the rows.
        categorical: the columns that are no numbers, without the target.
        derived: further columns for partitions.
        rows: rows of training and test data; ``None`` for a part that does not exist.
    """

    parts: tuple[CardFile, ...]
    columns: tuple[str, ...]
    target: str
    event: str | None
    classes: tuple[str, ...]
    unused: tuple[str, ...]
    categorical: tuple[str, ...]
    derived: tuple[DerivedColumn, ...]
    rows: Mapping[str, int | None]

    content = "a table"
    data_module = "TableData"
    formats = ("c45", "table")
    tasks = ("classification", "survival")
    standins = ()
    may_be_gzipped = True
    own_keys = ("columns", "rows")

    @classmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        if len(files) not in (1, 2):
            raise ConfigurationError(
                f"{where}, files: got {len(files)} files; give the training data and, if there are any, the test data."
            )
        at = f"{where}, columns"
        survival = top["task"] == "survival"
        own = ("event",) if survival else ("classes",)
        entry = read_keys(top["columns"], ("names", "target", *own, "categorical", "derived"), at, ("unused",))
        names = _names(entry, "names", at)
        derived = tuple(
            _derived(item, names, f"{at}.derived[{number}]")
            for number, item in enumerate(read_list(entry["derived"], f"{at}.derived"))
        )
        all_names = (*names, *(column.name for column in derived))
        target = _known(read_text(entry, "target", at), names if survival else all_names, f"{at}.target")
        rows = read_keys(top["rows"], ("train", "test"), f"{where}, rows")
        if (rows["test"] is not None) != (len(files) == 2):
            raise ConfigurationError(
                f"{where}, rows.test={rows['test']!r} with {len(files)} files: give the rows of the second file, or"
                " null where there is none."
            )
        return {
            "parts": tuple(files),
            "columns": names,
            "target": target,
            "event": _known(read_text(entry, "event", at), names, f"{at}.event") if survival else None,
            "classes": () if survival else _names(entry, "classes", at),
            "unused": tuple(
                _known(str(name), names, f"{at}.unused") for name in read_list(entry.get("unused", []), f"{at}.unused")
            ),
            "categorical": tuple(
                _known(str(name), tuple(column for column in names if column != target), f"{at}.categorical")
                for name in read_list(entry["categorical"], f"{at}.categorical")
            ),
            "derived": derived,
            "rows": {
                part: None if count is None and part == "test" else read_count(count, part, f"{where}, rows", "a count")
                for part, count in rows.items()
            },
        }

    @property
    def files(self) -> tuple[CardFile, ...]:
        """One or two files."""
        return self.parts

    @property
    def num_rows(self) -> int | None:
        """Rows in all."""
        return sum(count for count in self.rows.values() if count is not None)

    def details(self) -> dict[str, str]:
        """Columns, classes and groups."""
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


def _names(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    names = tuple(map(str, read_list(entry[key], f"{where}.{key}")))
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigurationError(f"{where}.{key}: give two or more names, all different.")
    return names


def _known(name: str, names: tuple[str, ...], where: str) -> str:
    if name not in names:
        raise ConfigurationError(f"{where}: there is no column {name!r}{did_you_mean(name, names)} to use here.")
    return name


def _derived(content: object, names: tuple[str, ...], where: str) -> DerivedColumn:
    entry = read_keys(content, ("name", "column", "values", "label", "other"), where)
    values = tuple(map(str, read_list(entry["values"], f"{where}, values")))
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
