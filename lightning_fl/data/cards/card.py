"""Description of a data set: what all kinds of data have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, check_fields
from lightning_fl.data.cards.fields import CardFile, check_plain_name, read_record


@dataclass(frozen=True, kw_only=True)
class Card(ABC):
    """Description of a data set, read from ``datasets/NAME.yaml``; the fields are the keys of the YAML.

    Subclasses declare formats, tasks, stand-ins, ranges and their own keys.

    Attributes:
        name: short name, as given to a data module.
        title: one line for tables.
        format: format of the files, which determines the kind of card.
        rows: number of samples, or part -> number; ``None`` if unknown, or for a part that does not exist.
        standin: embedded stand-in that may replace the data; ``None`` for no stand-in.
        note: what users should know of the data.
        path: file of the card.
    """

    name: str
    title: str
    task: str
    format: str
    files: tuple[CardFile, ...]
    rows: Count | Mapping[str, Count | None] | None
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

    def __post_init__(self) -> None:
        check_plain_name(self.name)
        check_fields(self)
        if len(self.files) not in (allowed := self._file_counts()):
            raise ConfigurationError(
                f"files: got {len(self.files)}; format {self.format} has {' or '.join(map(str, allowed))}."
            )

    @classmethod
    def parse(cls, content: Mapping[str, Any], path: Path) -> Self:
        """Make a card of this kind from the content of its YAML."""
        return read_record(cls, content, f"card {path}", path=path)

    def _file_counts(self) -> tuple[int, ...]:
        """Possible numbers of files."""
        return (1,)

    @property
    def file(self) -> CardFile:
        """The first file."""
        return self.files[0]

    @property
    def num_rows(self) -> int | None:
        """Number of samples; ``None`` if unknown."""
        return sum(filter(None, self.rows.values())) if isinstance(self.rows, Mapping) else self.rows

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
