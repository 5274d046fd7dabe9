"""Cards: what is known of a data set before it is opened (files, columns, units, licence, citation).

A card is a YAML file. Those that come with the package are found by name, any other by its path::

    >>> load_card("esol").targets[0].unit
    'log10(mol/L)'

This module imports neither torch nor pandas, so that the command line lists the cards at once.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightning_fl.errors import ConfigurationError

__all__ = [
    "FORMATS",
    "STANDINS",
    "TASKS",
    "Card",
    "CardFile",
    "CardTarget",
    "available_cards",
    "did_you_mean",
    "load_card",
]

#: File formats a card may name.
FORMATS = ("csv", "csv.gz", "drugood-json")
#: Learning tasks a card may name.
TASKS = ("regression",)
#: Embedded stand-ins a card may name (see :mod:`lightning_fl.data.standin`).
STANDINS = ("esol",)

_PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel the cards lie inside the package, in a source checkout beside it.
_FOLDERS = (_PACKAGE / "_shipped" / "datasets", _PACKAGE.parent / "datasets")


@dataclass(frozen=True)
class CardFile:
    """One file of a data set.

    Attributes:
        name: the file's name, as it is looked for in the user's folders.
        sha256: accepted SHA-256 sums (lower-case hexadecimal); empty where none is known.
        addresses: where it can be downloaded, tried in this order; empty where it must be fetched by hand.
    """

    name: str
    sha256: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class CardTarget:
    """A column to predict and its unit."""

    name: str
    unit: str


@dataclass(frozen=True)
class Card:
    """The description of a data set, as read from ``datasets/NAME.yaml``.

    Attributes:
        name: short name, as given to a data module.
        title: one line for tables.
        task: one of :data:`TASKS`.
        format: one of :data:`FORMATS`.
        file: the data file.
        smiles: the column that holds the molecules.
        targets: the columns to predict.
        groups: columns that divide the rows naturally into clients.
        rows: rows of data in the file; ``None`` where not known.
        standin: the embedded stand-in that may replace the data, one of :data:`STANDINS`; ``None`` for no stand-in.
        licence: terms of use.
        citation: what to cite.
        note: what a user should know of the data.
        path: the card itself.
    """

    name: str
    title: str
    task: str
    format: str
    file: CardFile
    smiles: str
    targets: tuple[CardTarget, ...]
    groups: tuple[str, ...]
    rows: int | None
    standin: str | None
    licence: str
    citation: str
    note: str
    path: Path


def available_cards() -> dict[str, Path]:
    """The cards that come with the package: name to path, sorted by name."""
    for folder in _FOLDERS:
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    raise ConfigurationError(f"no cards found in {' or '.join(map(str, _FOLDERS))}: install the package again.")


def load_card(name_or_path: str | Path) -> Card:
    """Read and check a card.

    Args:
        name_or_path: the name of a card that comes with the package, or the path of a ``.yaml`` file.

    Raises:
        ConfigurationError: no such card; not YAML; a key is unknown, missing or has a value that is not allowed.
    """
    text = str(name_or_path)
    path = Path(text).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        cards = available_cards()
        if text not in cards:
            raise ConfigurationError(
                f"no card named {text!r}{did_you_mean(text, cards)}. There are {', '.join(cards)}; "
                "a card of your own is given by its path, ending in .yaml."
            )
        path = cards[text]
    elif not path.is_file():
        raise ConfigurationError(
            f"no card at {path}: give the path of a .yaml file, or one of {', '.join(available_cards())}."
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"card {path} is not YAML: {' '.join(str(error).split())}") from error
    return _parse(content, path)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """``" (did you mean 'x'?)"`` for the known word nearest to ``word``, else an empty string."""
    lowered = {entry.lower(): entry for entry in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def _parse(content: object, path: Path) -> Card:
    where = f"card {path}"
    top = _keys(
        content,
        ("name", "title", "task", "format", "files", "columns", "rows", "standin", "licence", "citation", "note"),
        where,
    )
    columns = _keys(top["columns"], ("smiles", "targets", "groups"), f"{where}, columns")
    files = _list(top["files"], f"{where}, files")
    if len(files) != 1:
        raise ConfigurationError(f"{where}, files: got {len(files)} files; these formats are read from exactly one.")
    targets = tuple(
        CardTarget(name=_text(entry, "name", at), unit=_text(entry, "unit", at))
        for number, item in enumerate(_list(columns["targets"], f"{where}, columns.targets"))
        for at in [f"{where}, columns.targets[{number}]"]
        for entry in [_keys(item, ("name", "unit"), at)]
    )
    if not targets:
        raise ConfigurationError(f"{where}, columns.targets is empty: name at least one column to predict.")
    if top["standin"] is not None and len(targets) != 1:
        raise ConfigurationError(
            f"{where}, standin: it has one target and cannot replace {len(targets)}; set it to null."
        )
    rows = top["rows"]
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
        raise ConfigurationError(
            f"{where}, rows={rows!r}: give the number of data rows, or null where it is not known."
        )
    return Card(
        name=_text(top, "name", where),
        title=_text(top, "title", where),
        task=_choice(top, "task", TASKS, where),
        format=_choice(top, "format", FORMATS, where),
        file=_file(files[0], f"{where}, files[0]"),
        smiles=_text(columns, "smiles", f"{where}, columns"),
        targets=targets,
        groups=tuple(map(str, _list(columns["groups"], f"{where}, columns.groups"))),
        rows=rows,
        standin=None if top["standin"] is None else _choice(top, "standin", STANDINS, where),
        licence=_text(top, "licence", where),
        citation=_text(top, "citation", where),
        note=_text(top, "note", where),
        path=path,
    )


def _file(content: object, where: str) -> CardFile:
    entry = _keys(content, ("name", "sha256", "addresses"), where)
    sums = tuple(map(str, _list(entry["sha256"], f"{where}, sha256")))
    addresses = tuple(map(str, _list(entry["addresses"], f"{where}, addresses")))
    for value in sums:
        if not re.fullmatch("[0-9a-f]{64}", value):
            raise ConfigurationError(
                f"{where}, sha256: {value!r} is not a SHA-256 sum (64 lower-case hexadecimal digits)."
            )
    for address in addresses:
        if not address.startswith(("https://", "http://")):
            raise ConfigurationError(f"{where}, addresses: {address!r} is no https:// or http:// address.")
    if addresses and not sums:
        raise ConfigurationError(
            f"{where}: a download cannot be checked without a sum; list the accepted ones under sha256."
        )
    name = _text(entry, "name", where)
    if Path(name).name != name:
        raise ConfigurationError(f"{where}, name={name!r}: give the file's name without a folder.")
    return CardFile(name=name, sha256=sums, addresses=addresses)


def _keys(content: object, known: tuple[str, ...], where: str) -> Mapping[str, Any]:
    """``content`` as a mapping that has exactly the known keys."""
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{where}: expected the keys {', '.join(known)}, got {type(content).__name__}.")
    faults = [f"unknown key {key!r}{did_you_mean(str(key), known)}" for key in content if key not in known]
    faults += [f"missing key {key!r}" for key in known if key not in content]
    if faults:
        raise ConfigurationError(f"{where}: {'; '.join(faults)}. The keys are {', '.join(known)}.")
    return content


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigurationError(f"{where}: expected a list, got {value!r}.")
    return value


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where}, {key}={value!r}: expected a text that is not empty.")
    return value.strip()


def _choice(entry: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str) -> str:
    value = _text(entry, key, where)
    if value not in allowed:
        raise ConfigurationError(
            f"{where}, {key}={value!r}: expected one of {', '.join(allowed)}{did_you_mean(value, allowed)}."
        )
    return value
