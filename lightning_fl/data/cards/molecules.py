"""Cards of tables of molecules."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Positive, check_fields
from lightning_fl.data.cards.card import Card, check_keys, within

#: File format of molecules.
FileFormat = Literal["csv", "csv.gz", "drugood-json"]
#: Transform of a target: its logarithm or the negative of it, as in pIC50.
Transform = Literal["log10", "-log10"]


@dataclass(frozen=True)
class CardTarget:
    """A column to predict, its unit, and its transform: log10 or -log10 of ``factor`` times the values."""

    name: str
    unit: str
    transform: Transform | None = None
    factor: Positive = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.factor != 1 and self.transform is None:
            raise ConfigurationError(f"factor={self.factor!r} has no effect without transform.")


@dataclass(frozen=True, kw_only=True)
class MoleculeCard(Card):
    """Card of a table of molecules.

    Attributes:
        smiles: column of SMILES.
        targets: columns to predict; empty for all columns except ``not_targets``, which a card writes as
            ``targets: {all_but: [...], unit: ...}``.
        not_targets: columns that are not targets, where ``targets`` is empty.
        target_unit: unit of all targets, where ``targets`` is empty.
        groups: columns that divide the rows naturally into clients.
        split_column: column of a published split into training, validation and test molecules; ``None`` for none.
        select_column: column of which the user selects a value, in a file of several data sets; ``None`` for none.
        censored: whether targets may be bounds, such as "> 99.5".
        rows: rows of data in the file; ``None`` if unknown.
    """

    task: Literal["regression", "classification"]
    format: FileFormat
    standin: Literal["esol", "bbbp", "tox21", "aqsoldb"] | None
    smiles: str = within("columns")
    targets: tuple[CardTarget, ...] = within("columns")
    groups: tuple[str, ...] = within("columns")
    rows: Count | None
    not_targets: tuple[str, ...] = within("columns", default=())
    target_unit: str = within("columns", default="not given")
    split_column: str | None = within("columns", "split", default=None)
    select_column: str | None = within("columns", "select", default=None)
    censored: bool = False

    content = "molecules"
    data_module = "MoleculeNet"
    formats = get_args(FileFormat)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets and self.target_unit == "not given":
            raise ConfigurationError("columns.targets is empty: name at least one column to predict.")
        if self.standin == "tox21" and not self.targets:
            raise ConfigurationError("standin: tox21 needs named targets; set it to null.")
        if self.standin in ("esol", "bbbp", "aqsoldb") and len(self.targets) != 1:
            raise ConfigurationError(
                f"standin: {self.standin} has one target, the card {len(self.targets)}; set it to null."
            )

    @classmethod
    def parse(cls, content: Mapping[str, Any], path: Path) -> Self:
        """Make a card from the content of its YAML, where ``targets`` may be all columns but some."""
        columns = content.get("columns")
        if isinstance(columns, Mapping) and isinstance(columns.get("targets"), Mapping):
            others = check_keys(columns["targets"], ("all_but", "unit"), f"card {path}, columns.targets")
            named = {"targets": [], "not_targets": others["all_but"], "target_unit": others["unit"]}
            content = {**content, "columns": {**columns, **named}}
        return super().parse(content, path)

    def details(self) -> dict[str, str]:
        others = dict.fromkeys((self.smiles, *self.required, *self.not_targets))
        return {
            "molecules": self.smiles,
            "targets": "; ".join(f"{target.name} [{target.unit}]" for target in self.targets)
            or f"all columns but {', '.join(others)} [{self.target_unit}]",
            "groups": ", ".join(self.groups) or "none",
            **({"split": self.split_column} if self.split_column else {}),
            **({"data sets": f"one value of {self.select_column}"} if self.select_column else {}),
        }

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that must exist, besides SMILES and targets."""
        named = (self.split_column, self.select_column)
        return tuple(dict.fromkeys((*self.groups, *(name for name in named if name is not None))))
