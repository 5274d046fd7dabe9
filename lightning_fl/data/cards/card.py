"""The description of a data set: what all kinds of data have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lightning_fl.data.cards.fields import (
    CardFile,
    read_choice,
    read_file,
    read_keys,
    read_list,
    read_plain_name,
    read_text,
)

__all__ = ["Card"]


@dataclass(frozen=True, kw_only=True)
class Card(ABC):
    """The description of a data set, as read from ``datasets/NAME.yaml``: what all kinds have in common.

    A kind of card names its formats, tasks, stand-ins and further keys, reads the latter in ``_own_fields``, and has
    its data files in ``files``.

    Attributes:
        name: short name, as given to a data module.
        title: one line for tables.
        task: the learning task.
        format: the files' format, which tells the kind of card.
        standin: the embedded stand-in that may replace the data; ``None`` for no stand-in.
        licence: terms of use.
        citation: what to cite.
        note: what a user should know of the data.
        path: the card itself.
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

    #: What the data are, and the data module that reads them.
    content: ClassVar[str]
    data_module: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    tasks: ClassVar[tuple[str, ...]]
    standins: ClassVar[tuple[str, ...]]
    #: What a stand-in is, for the warning.
    standin_words: ClassVar[str] = "computed, not measured"
    #: Whether a file in the user's folders may be gzipped, with ``.gz`` added to its name.
    may_be_gzipped: ClassVar[bool] = False
    #: Keys besides those of every card.
    own_keys: ClassVar[tuple[str, ...]]
    optional_keys: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def parse(cls, content: object, path: Path) -> Self:
        """A card of this kind from what its YAML holds."""
        where = f"card {path}"
        keys = ("name", "title", "task", "format", "files", *cls.own_keys, "standin", "licence", "citation", "note")
        top = read_keys(content, keys, where, cls.optional_keys)
        files = [
            read_file(entry, f"{where}, files[{number}]")
            for number, entry in enumerate(read_list(top["files"], f"{where}, files"))
        ]
        return cls(
            name=read_plain_name(top, "name", where),
            title=read_text(top, "title", where),
            task=read_choice(top, "task", cls.tasks, where),
            format=read_choice(top, "format", cls.formats, where),
            standin=None if top["standin"] is None else read_choice(top, "standin", cls.standins, where),
            licence=read_text(top, "licence", where),
            citation=read_text(top, "citation", where),
            note=read_text(top, "note", where),
            path=path,
            **cls._own_fields(top, files, where),
        )

    @classmethod
    @abstractmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        """The fields of this kind of card."""

    if TYPE_CHECKING:
        # A kind of card has its files as a field or as a property; an abstract property would forbid the field.
        @property
        def files(self) -> tuple[CardFile, ...]:
            """The data files."""

    @property
    @abstractmethod
    def num_rows(self) -> int | None:
        """Samples in all; ``None`` where not known."""

    @property
    def can_be_fetched(self) -> bool:
        """Whether something can be downloaded."""
        return any(file.addresses for file in self.files)

    @abstractmethod
    def details(self) -> dict[str, str]:
        """What only this kind of data has, for a listing."""

    def describe(self) -> dict[str, Any]:
        """Name, title, licence and citation, for a run's record."""
        return {"name": self.name, "title": self.title, "licence": self.licence, "citation": self.citation}
