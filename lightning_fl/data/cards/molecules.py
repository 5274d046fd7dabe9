"""Cards of tables of molecules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.fields import CardFile, read_count, read_keys, read_list, read_only_file, read_text
from lightning_fl.errors import ConfigurationError

__all__ = ["FORMATS", "CardTarget", "MoleculeCard"]

#: File formats of cards that describe molecules.
FORMATS = ("csv", "csv.gz", "drugood-json")


@dataclass(frozen=True)
class CardTarget:
    """A column to predict and its unit."""

    name: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class MoleculeCard(Card):
    """A table of molecules.

    Attributes:
        file: the data file.
        smiles: the column that holds the molecules.
        targets: the columns to predict.
        groups: columns that divide the rows naturally into clients.
        rows: rows of data in the file; ``None`` where not known.
    """

    file: CardFile
    smiles: str
    targets: tuple[CardTarget, ...]
    groups: tuple[str, ...]
    rows: int | None

    content = "molecules"
    data_module = "MoleculeNet"
    formats = FORMATS
    tasks = ("regression",)
    standins = ("esol",)
    own_keys = ("columns", "rows")

    @classmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        columns = read_keys(top["columns"], ("smiles", "targets", "groups"), f"{where}, columns")
        targets = tuple(
            CardTarget(name=read_text(entry, "name", at), unit=read_text(entry, "unit", at))
            for number, item in enumerate(read_list(columns["targets"], f"{where}, columns.targets"))
            for at in [f"{where}, columns.targets[{number}]"]
            for entry in [read_keys(item, ("name", "unit"), at)]
        )
        if not targets:
            raise ConfigurationError(f"{where}, columns.targets is empty: name at least one column to predict.")
        if top["standin"] is not None and len(targets) != 1:
            raise ConfigurationError(
                f"{where}, standin: it has one target and cannot replace {len(targets)}; set it to null."
            )
        rows = top["rows"]
        return {
            "file": read_only_file(files, where),
            "smiles": read_text(columns, "smiles", f"{where}, columns"),
            "targets": targets,
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
            "targets": "; ".join(f"{target.name} [{target.unit}]" for target in self.targets),
            "groups": ", ".join(self.groups) or "none",
        }
