"""Description of a data set: what all kinds of data have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lightning_fl.core.validation import check_fields
from lightning_fl.data.cards.fields import CardFile, read_file, read_keys, read_list, read_plain_name, read_text

__all__ = ["Card"]


@dataclass(frozen=True, kw_only=True)
class Card(ABC):
    """Description of a data set, read from ``datasets/NAME.yaml``.

    Subclasses declare formats, tasks, stand-ins and ranges in the annotations of their fields, and read their own keys
    in ``_own_fields``.

    Attributes:
        name: short name, as given to a data module.
        title: one line for tables.
        task: the learning task.
        format: format of the files, which determines the kind of card.
        standin: embedded stand-in that may replace the data; ``None`` for no stand-in.
        licence: terms of use.
        citation: what to cite.
        note: what users should know of the data.
        path: file of the card.
    """

    name: str
    title: str
    task: str
    format: str
    standin: str | None
    licence: str
    citation: str
    note: str
    path: Path

    #: What the data are, and the data module that reads them, for messages.
    content: ClassVar[str]
    data_module: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    #: What the stand-ins are, for the warning.
    standin_title: ClassVar[str] = "computed, not measured"
    #: Whether a file in the user's folders may be gzipped, with ``.gz`` appended to its name.
    may_be_gzipped: ClassVar[bool] = False
    #: Keys besides those of every card.
    own_keys: ClassVar[tuple[str, ...]]
    optional_keys: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_fields(self, f"card {self.path}, ")

    @classmethod
    def parse(cls, content: object, path: Path) -> Self:
        """Make a card of this kind from the content of its YAML."""
        where = f"card {path}"
        keys = ("name", "title", "task", "format", "files", *cls.own_keys, "standin", "licence", "citation", "note")
        top = read_keys(content, keys, where, cls.optional_keys)
        files = [
            read_file(entry, f"{where}, files[{number}]")
            for number, entry in enumerate(read_list(top["files"], f"{where}, files"))
        ]
        return cls(
            name=read_plain_name(top, "name", where),
            task=top["task"],
            format=top["format"],
            standin=top["standin"],
            **{key: read_text(top, key, where) for key in ("title", "licence", "citation", "note")},
            path=path,
            **cls._own_fields(top, files, where),
        )

    @classmethod
    @abstractmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        """Read the fields of this kind of card."""

    if TYPE_CHECKING:
        # Subclasses have their files as a field or as a property; an abstract property would forbid the field.
        @property
        def files(self) -> tuple[CardFile, ...]:
            """The data files."""

    @property
    @abstractmethod
    def num_rows(self) -> int | None:
        """Number of samples; ``None`` if unknown."""

    @property
    def can_be_fetched(self) -> bool:
        """Whether something can be downloaded."""
        return any(file.addresses for file in self.files)

    @abstractmethod
    def details(self) -> dict[str, str]:
        """Return what only this kind of data has, for a listing."""

    def describe(self) -> dict[str, Any]:
        """Return name, title, licence and citation, for a run's record."""
        return {"name": self.name, "title": self.title, "licence": self.licence, "citation": self.citation}
