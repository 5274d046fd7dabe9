"""Cards of tables of molecules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Positive, check_fields
from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.fields import CardFile, read_keys, read_list, read_only_file, read_text, read_texts

__all__ = ["CardTarget", "FileFormat", "MoleculeCard", "Transform"]

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


@dataclass(frozen=True, kw_only=True)
class MoleculeCard(Card):
    """Card of a table of molecules.

    Attributes:
        file: the data file.
        smiles: column of SMILES.
        targets: columns to predict; empty for all columns except ``not_targets``.
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
    file: CardFile
    smiles: str
    targets: tuple[CardTarget, ...]
    groups: tuple[str, ...]
    rows: Count | None
    not_targets: tuple[str, ...] = ()
    target_unit: str = "not given"
    split_column: str | None = None
    select_column: str | None = None
    censored: bool = False

    content = "molecules"
    data_module = "MoleculeNet"
    formats = get_args(FileFormat)
    own_keys = ("columns", "rows")
    optional_keys = ("censored",)

    @classmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        at = f"{where}, columns"
        columns = read_keys(top["columns"], ("smiles", "targets", "groups"), at, ("split", "select"))
        if isinstance(columns["targets"], Mapping):
            others = read_keys(columns["targets"], ("all_but", "unit"), f"{at}.targets")
            targets: tuple[CardTarget, ...] = ()
            not_targets = read_texts(others["all_but"], f"{at}.targets.all_but")
            unit = read_text(others, "unit", f"{at}.targets")
        else:
            targets = tuple(
                _read_target(item, f"{at}.targets[{number}]")
                for number, item in enumerate(read_list(columns["targets"], f"{at}.targets"))
            )
            not_targets, unit = (), "not given"
            if not targets:
                raise ConfigurationError(f"{at}.targets is empty: name at least one column to predict.")
        if top["standin"] == "tox21" and not targets:
            raise ConfigurationError(f"{where}, standin: tox21 needs named targets; set it to null.")
        if top["standin"] in ("esol", "bbbp", "aqsoldb") and len(targets) != 1:
            raise ConfigurationError(
                f"{where}, standin: {top['standin']} has one target, the card {len(targets)}; set it to null."
            )
        censored = top.get("censored", False)
        if not isinstance(censored, bool):
            raise ConfigurationError(f"{where}, censored={censored!r}: must be true or false.")
        return {
            "file": read_only_file(files, where),
            "smiles": read_text(columns, "smiles", at),
            "targets": targets,
            "not_targets": not_targets,
            "target_unit": unit,
            "split_column": read_text(columns, "split", at) if "split" in columns else None,
            "select_column": read_text(columns, "select", at) if "select" in columns else None,
            "censored": censored,
            "groups": read_texts(columns["groups"], f"{at}.groups"),
            "rows": top["rows"],
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
        """Return columns and units."""
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


def _read_target(content: object, where: str) -> CardTarget:
    """Read an entry of ``columns.targets``."""
    entry = read_keys(content, ("name", "unit"), where, ("transform", "factor"))
    if "factor" in entry and "transform" not in entry:
        raise ConfigurationError(f"{where}, factor={entry['factor']!r} has no effect without transform.")
    options = {key: entry[key] for key in ("transform", "factor") if key in entry}
    target = CardTarget(read_text(entry, "name", where), read_text(entry, "unit", where), **options)
    check_fields(target, f"{where}, ")
    return target
