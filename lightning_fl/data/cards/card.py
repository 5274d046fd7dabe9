"""Cards: dataclasses that declare the keys, types and ranges of a data set's YAML; errors name the key."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.core.validation import Count, check_fields
from lightning_fl.files.names import MOST_PLAIN_BYTES, is_plain_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def within(section: str, key: str | None = None, **options: Any) -> Any:
    """Declare a field that the YAML has inside a section, there perhaps under another key."""
    return field(metadata={"section": section, "key": key}, **options)


def read_record(kind: type[Record], content: object, where: str, **given: Any) -> Record:
    """Make a dataclass, which checks its values, from a mapping at the place ``where`` and ``given`` fields."""
    hints = get_type_hints(kind, include_extras=True)
    declared = [one for one in fields(kind) if one.name not in given]
    sections = dict.fromkeys(one.metadata.get("section") for one in declared)
    top = [_key(one) for one in declared if "section" not in one.metadata and _is_required(one)]
    optional = [_key(one) for one in declared if "section" not in one.metadata and not _is_required(one)]
    whole = check_keys(content, [*top, *filter(None, sections)], where, optional)
    for section in sections:
        inside = [one for one in declared if one.metadata.get("section") == section]
        entry, at = whole, where
        if section is not None:
            at = f"{where}, {section}"
            required = [_key(one) for one in inside if _is_required(one)]
            entry = check_keys(whole[section], required, at, [_key(one) for one in inside if not _is_required(one)])
        joint = ", " if section is None else "."
        for one in inside:
            if (key := _key(one)) in entry:
                given[one.name] = _convert(entry[key], hints[one.name], f"{at}{joint}{key}")
    try:
        return kind(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}, {error}") from None


def _key(one: Field[Any]) -> str:
    return one.metadata.get("key") or one.name


def _is_required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _convert(value: Any, rule: Any, where: str) -> Any:
    """Convert lists to tuples and mappings to records, as an annotation says; ranges are checked later."""
    options = [one for one in get_args(rule) if one is not NoneType]
    if get_origin(rule) is not Annotated and NoneType in get_args(rule):
        return value if value is None or len(options) > 1 else _convert(value, options[0], where)
    if is_dataclass(rule) and isinstance(rule, type):
        return read_record(rule, value, where)
    if get_origin(rule) is tuple:
        if not isinstance(value, list):
            raise ConfigurationError(f"{where}: must be a list, got {value!r}.")
        if options[0] is str:
            return tuple(map(str, value))
        return tuple(_convert(item, options[0], f"{where}[{number}]") for number, item in enumerate(value))
    if get_origin(rule) is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{where}={value!r}: must be a mapping.")
        first = sorted(value.items(), key=lambda item: item[0] != "train")  # parts in their order
        return {key: _convert(item, options[1], f"{where}, {key}") for key, item in first}
    if rule is str:
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(f"{where}={value!r}: must be a text that is not empty.")
        return value.strip()
    if rule is bool and not isinstance(value, bool):
        raise ConfigurationError(f"{where}={value!r}: must be true or false.")
    return value


def check_keys(content: object, known: Sequence[str], where: str, optional: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a mapping that has exactly the known keys, and perhaps optional ones."""
    names = [*known, *optional]
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{where}: must have the keys {', '.join(names)}, got {type(content).__name__}.")
    faults = [f"unknown key {key!r}{did_you_mean(str(key), names)}" for key in content if key not in names]
    faults += [f"missing key {key!r}" for key in known if key not in content]
    if faults:
        raise ConfigurationError(f"{where}: {'; '.join(faults)}. The keys are {', '.join(names)}.")
    return content


def check_names(names: Sequence[str], key: str) -> None:
    """Refuse anything but two or more distinct names."""
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigurationError(f"{key}: must be two or more distinct names.")


def check_plain_name(name: str) -> None:
    """Refuse a name of a file or folder that could lead out of its own folder."""
    if not is_plain_name(name):
        rule = f"a plain name of at most {MOST_PLAIN_BYTES} bytes, without / \\ or :, not beginning with . or ~"
        raise ConfigurationError(f"name={name[:MOST_PLAIN_BYTES]!r}: must be {rule}.")


def check_paths(paths: Sequence[str], key: str) -> None:
    """Refuse anything but one or more paths that stay below the folder to which they are joined."""
    if not paths or not all(is_plain_name(name) for path in paths for name in path.removesuffix("/").split("/")):
        raise ConfigurationError(f"{key}={list(paths)}: must be one or more paths, relative and without '..'.")


@dataclass(frozen=True)
class CardFile:
    """One file of a data set."""

    name: str  #: name under which the file is looked for in the user's folders
    sha256: tuple[str, ...]  #: accepted SHA-256 sums (lower-case hexadecimal); empty if none is known
    addresses: tuple[str, ...]  #: in the order of trying; empty if the file must be fetched by hand

    def __post_init__(self) -> None:
        check_fields(self)
        check_plain_name(self.name)
        for value in self.sha256:
            if not re.fullmatch("[0-9a-f]{64}", value):
                raise ConfigurationError(f"sha256: {value!r} is not a sum of 64 lower-case hexadecimal digits.")
        for address in self.addresses:
            if not address.startswith(("https://", "http://")):
                raise ConfigurationError(f"addresses: {address!r} is not an https:// or http:// address.")
        if self.addresses and not self.sha256:
            raise ConfigurationError("sha256: give the accepted sums, with which a download is checked.")


@dataclass(frozen=True, kw_only=True)
class Card(ABC):
    """Description of a data set, read from ``datasets/NAME.yaml``; the fields are the keys of the YAML.

    Subclasses declare formats, tasks, stand-ins, ranges and their own keys.
    """

    name: str  #: short name, as given to a data module
    title: str  #: one line for tables
    task: str
    format: str  #: format of the files, which determines the kind of card
    files: tuple[CardFile, ...]
    #: Number of samples, or part -> number; ``None`` if unknown, or for a part that does not exist.
    rows: Count | Mapping[str, Count | None] | None
    standin: str | None  #: embedded stand-in that may replace the data
    licence: str
    citation: str
    note: str  #: what users should know of the data
    path: Path  #: file of the card

    #: What the data are, and the data module that reads them, for messages.
    content: ClassVar[str]
    data_module: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    #: What the stand-ins are, for the warning.
    standin_title: ClassVar[str] = "computed, not measured"
    #: Whether a file in the user's folders may be gzipped, with ``.gz`` appended to its name.
    may_be_gzipped: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_plain_name(self.name)
        check_fields(self)
        if len(self.files) not in (allowed := self._file_counts()):
            wanted = " or ".join(map(str, allowed))
            raise ConfigurationError(f"files: got {len(self.files)}; format {self.format} has {wanted}.")

    @classmethod
    def parse(cls, content: Mapping[str, Any], path: Path) -> Self:
        """Make a card of this kind from the content of its YAML."""
        return read_record(cls, content, f"card {path}", path=path)

    def _file_counts(self) -> tuple[int, ...]:
        return (1,)

    @property
    def file(self) -> CardFile:
        return self.files[0]

    @property
    def num_rows(self) -> int | None:
        return sum(filter(None, self.rows.values())) if isinstance(self.rows, Mapping) else self.rows

    @property
    def can_be_fetched(self) -> bool:
        return any(file.addresses for file in self.files)

    @abstractmethod
    def details(self) -> dict[str, str]:
        """What only this kind of data has, for a listing."""

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "licence": self.licence, "citation": self.citation}
