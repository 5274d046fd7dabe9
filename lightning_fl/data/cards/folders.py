"""What a card says of the folder in which a set of images is published."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.cards.fields import read_choice, read_keys, read_list
from lightning_fl.files.names import is_plain_name

__all__ = ["FolderLayout", "ImageFolder", "is_relative", "read_image_folder"]

FolderLayout = Literal["leaf", "class-folders"]

#: What a folder of a part holds, by layout.
_CONTENTS: dict[FolderLayout, str] = {"leaf": "*.json", "class-folders": "CLASS/*.png"}


@dataclass(frozen=True)
class ImageFolder:
    """A folder with a set of images.

    Attributes:
        layout: ``"leaf"`` for the JSON files of the LEAF benchmark, ``"class-folders"`` for a folder of PNG files for
            every class.
        names: names it may have, relative to the folder given by the user.
        parts: ways in which it may be divided, tried in this order: "train", and "test" where that is separate, to the
            folders in it whose images are put together.
    """

    layout: FolderLayout
    names: tuple[str, ...]
    parts: tuple[Mapping[str, tuple[str, ...]], ...]

    @property
    def pattern(self) -> str:
        """Where the files lie in the folder, in words."""
        ways = [[name for names in way.values() for name in names] for way in self.parts]
        return ", or ".join(" and ".join(f"{name}/{_CONTENTS[self.layout]}" for name in way) for way in ways)

    @property
    def joins_parts(self) -> bool:
        """Whether the images for training are published in several parts."""
        return any(len(way["train"]) > 1 for way in self.parts)

    @property
    def in_words(self) -> str:
        """Names and content."""
        return f"a folder {' or '.join(self.names)} with {self.pattern}"


def read_image_folder(content: object, where: str) -> ImageFolder:
    """The entry ``folder`` of a card."""
    entry = read_keys(content, ("layout", "names", "parts"), where)
    ways = read_list(entry["parts"], f"{where}, parts")
    if not ways:
        raise ConfigurationError(f"{where}, parts is empty: name the folders of the parts, such as train: [train].")
    return ImageFolder(
        layout=cast(FolderLayout, read_choice(entry, "layout", tuple(_CONTENTS), where)),
        names=_folders(entry["names"], f"{where}, names"),
        parts=tuple(_parts(way, f"{where}, parts[{number}]") for number, way in enumerate(ways)),
    )


def _parts(content: object, where: str) -> dict[str, tuple[str, ...]]:
    way = read_keys(content, ("train",), where, ("test",))
    return {part: _folders(way[part], f"{where}, {part}") for part in ("train", "test") if part in way}


def _folders(value: object, where: str) -> tuple[str, ...]:
    names = tuple(map(str, read_list(value, where)))
    if not names or not all(map(is_relative, names)):
        raise ConfigurationError(f"{where}={value!r}: give one or more folders, relative and without '..'.")
    return names


def is_relative(path: str) -> bool:
    """Whether a path, with ``/`` between its parts, stays below the folder to which it is joined."""
    return all(map(is_plain_name, path.removesuffix("/").split("/")))
