"""Cards of tables of molecules."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.fields import (
    CardFile,
    read_choice,
    read_count,
    read_keys,
    read_list,
    read_only_file,
    read_text,
)

__all__ = ["FORMATS", "CardTarget", "MoleculeCard"]

#: File formats of cards that describe molecules.
FORMATS = ("csv", "csv.gz", "drugood-json")
#: What a target's values may be changed by.
TRANSFORMS = ("log10", "-log10")


@dataclass(frozen=True)
class CardTarget:
    """A column to predict, its unit, and what its values are changed by: log10 or -log10 of ``factor`` times it."""

    name: str
    unit: str
    transform: Literal["log10", "-log10"] | None = None
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class MoleculeCard(Card):
    """A table of molecules.

    Attributes:
        file: the data file.
        smiles: the column that holds the molecules.
        targets: the columns to predict; empty where these are all columns but ``not_targets``.
        not_targets: with ``targets`` left open, the columns that are none.
        target_unit: with ``targets`` left open, the unit of all.
        groups: columns that divide the rows naturally into clients.
        split_column: column of a published split into training, validation and test molecules; ``None`` for none.
        select_column: column of which one value is chosen, where the file holds several data sets; ``None`` for none.
        censored: targets may be bounds, such as "> 99.5".
        rows: rows of data in the file; ``None`` where not known.
    """

    file: CardFile
    smiles: str
    targets: tuple[CardTarget, ...]
    groups: tuple[str, ...]
    rows: int | None
    not_targets: tuple[str, ...] = ()
    target_unit: str = "not given"
    split_column: str | None = None
    select_column: str | None = None
    censored: bool = False

    content = "molecules"
    data_module = "MoleculeNet"
    formats = FORMATS
    tasks = ("regression", "classification")
    standins = ("esol", "bbbp", "tox21", "aqsoldb")
    own_keys = ("columns", "rows")
    optional_keys = ("censored",)

    @classmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        at = f"{where}, columns"
        columns = read_keys(top["columns"], ("smiles", "targets", "groups"), at, ("split", "select"))
        own: dict[str, Any] = {key: read_text(columns, key, at) for key in ("split", "select") if key in columns}
        if isinstance(columns["targets"], Mapping):
            others = read_keys(columns["targets"], ("all_but", "unit"), f"{at}.targets")
            targets: tuple[CardTarget, ...] = ()
            not_targets = tuple(map(str, read_list(others["all_but"], f"{at}.targets.all_but")))
            unit = read_text(others, "unit", f"{at}.targets")
        else:
            targets = tuple(
                _read_target(entry, of)
                for number, item in enumerate(read_list(columns["targets"], f"{at}.targets"))
                for of in [f"{at}.targets[{number}]"]
                for entry in [read_keys(item, ("name", "unit"), of, ("transform", "factor"))]
            )
            not_targets, unit = (), "not given"
            if not targets:
                raise ConfigurationError(f"{at}.targets is empty: name at least one column to predict.")
        if top["standin"] == "tox21" and not targets:
            raise ConfigurationError(f"{where}, standin: it needs targets that are named; set it to null.")
        if top["standin"] in ("esol", "bbbp", "aqsoldb") and len(targets) != 1:
            raise ConfigurationError(
                f"{where}, standin: it has one target and cannot replace {len(targets)}; set it to null."
            )
        censored = top.get("censored", False)
        if not isinstance(censored, bool):
            raise ConfigurationError(f"{where}, censored={censored!r}: give true or false.")
        rows = top["rows"]
        return {
            "file": read_only_file(files, where),
            "smiles": read_text(columns, "smiles", f"{where}, columns"),
            "targets": targets,
            "not_targets": not_targets,
            "target_unit": unit,
            "split_column": own.get("split"),
            "select_column": own.get("select"),
            "censored": censored,
            "groups": tuple(map(str, read_list(columns["groups"], f"{where}, columns.groups"))),
            "rows": None
            if rows is None
            else read_count(rows, "rows", where, "the number of data rows, or null where it is not known"),
        }

    @property
    def files(self) -> tuple[CardFile, ...]:
        """The one file."""
        return (self.file,)

    @property
    def num_rows(self) -> int | None:
        """Rows of the file."""
        return self.rows

    def details(self) -> dict[str, str]:
        """Columns and units."""
        return {
            "molecules": self.smiles,
            "targets": "; ".join(f"{target.name} [{target.unit}]" for target in self.targets)
            or f"all columns but {', '.join((self.smiles, *self._others))} [{self.target_unit}]",
            "groups": ", ".join(self.groups) or "none",
            **({"split": self.split_column} if self.split_column else {}),
            **({"data sets": f"one value of {self.select_column}"} if self.select_column else {}),
        }

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that must be there besides molecules and targets."""
        named = (self.split_column, self.select_column)
        return tuple(dict.fromkeys((*self.groups, *(name for name in named if name is not None))))

    @property
    def _others(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.required, *self.not_targets)))


def _read_target(entry: Mapping[str, Any], where: str) -> CardTarget:
    """An entry of ``columns.targets``."""
    transform = read_choice(entry, "transform", TRANSFORMS, where) if "transform" in entry else None
    factor = entry.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise ConfigurationError(f"{where}, factor={factor!r}: give a number above 0.")
    if transform is None and "factor" in entry:
        raise ConfigurationError(f"{where}, factor={factor!r} is for a transform: give one of {', '.join(TRANSFORMS)}.")
    return CardTarget(
        name=read_text(entry, "name", where),
        unit=read_text(entry, "unit", where),
        transform=cast(Literal["log10", "-log10"] | None, transform),
        factor=float(factor),
    )
