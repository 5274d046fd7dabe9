"""Published folders of images: found and listed, names and sizes, without opening any file."""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.images import ImageCard
from lightning_fl.data.images.reader import ImageReader

__all__ = ["PublishedImages", "find_published", "refuse_folders", "warn_of_unread_files"]

Published = TypeVar("Published", bound="PublishedImages")
#: Suffix of the files of a layout, and how to get them again.
_SUFFIXES = {"leaf": ".json", "class-folders": ".png"}
_REMEDIES = {
    "leaf": "run LEAF's preprocess.sh again",
    "class-folders": "unpack the archive again",
}


@dataclass(frozen=True, kw_only=True)
class PublishedImages(ImageReader):
    """Files of a published folder.

    Attributes:
        card: the data set.
        parts: "train", and "test" if separate -> files relative to ``path``, in the order of reading.
        num_bytes: total size.
        listing_sha256: sum of the list of names and sizes, the same wherever the folder is. Contents are not summed, as
            there may be hundreds of thousands of files.
        newest_ns: time of the latest change of a file, in nanoseconds.
    """

    card: ImageCard
    parts: dict[str, tuple[str, ...]]
    num_bytes: int
    listing_sha256: str
    newest_ns: int

    @property
    def num_files(self) -> int:
        """Number of files."""
        return sum(len(names) for names in self.parts.values())

    @property
    def place(self) -> str:
        """The folder and the number of files."""
        return f"{self.path} ({self.num_files:,} files)"

    @property
    def sums(self) -> str:
        """Sum of the listing."""
        return f"{self.listing_sha256} (of names and sizes)"

    def record(self) -> dict[str, Any]:
        """Return the folder, and size and sum of its listing."""
        return {
            **super().record(),
            "file": self.path.name,
            "names_and_sizes_sha256": self.listing_sha256,
            "num_files": self.num_files,
            "num_bytes": self.num_bytes,
        }


def find_published(kind: type[Published], card: ImageCard, root: Path, origin: str) -> Published | None:
    """List the files of a card's folder below ``root``, if the folder exists and the card's has this layout.

    It exists if it has the first training folder of one of its possible divisions.

    Raises:
        DataError: it is incomplete: a part, the folder of a class, or files are missing.
    """
    if card.folder is None or card.folder.layout != kind.layout:
        return None
    for name in card.folder.names:
        for way in card.folder.parts:
            if (root / name / way["train"][0]).is_dir():
                return _list(kind, card, root / name, way, origin)
    return None


def refuse_folders(folder: Path, suffixes: tuple[str, ...], what: str) -> None:
    """Refuse folders with the suffix of a file, which would be skipped silently.

    Args:
        folder: searched with everything below it.
        suffixes: suffixes of the files that are read.
        what: name of the data, for the message.
    """
    for root, names, _ in os.walk(folder, followlinks=True):
        for name in names:
            if name.lower().endswith(suffixes) and not name.startswith("."):
                raise DataError(
                    f"{what}: {Path(root) / name} is a folder with the suffix of a file: replace it by the file, or"
                    " remove it."
                )


def warn_of_unread_files(folder: Path, read: Collection[Path], what: str) -> None:
    """Warn of files in a folder, and below it, that are not read, except hidden ones.

    Args:
        folder: folder of images.
        read: files that are read.
        what: name of the data, for the warning.
    """
    others = sorted(path for path in set(folder.rglob("[!.]*")).difference(read) if path.is_file())
    if others:
        kinds = Counter(path.suffix.lower() or "no suffix" for path in others)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        warnings.warn(
            f"{what}: {len(others)} files are not read as images ({counted}), such as {others[0]}. Convert images to"
            " PNG, in the folder of their class; ignore this for other files.",
            stacklevel=2,
        )


def _list(
    kind: type[Published], card: ImageCard, folder: Path, way: Mapping[str, tuple[str, ...]], origin: str
) -> Published:
    layout = kind.layout
    suffix, what = _SUFFIXES[layout], f"data set {card.name}"
    remedy = f"{_REMEDIES[layout]}, or remove {folder}"
    parts: dict[str, tuple[str, ...]] = {}
    sizes: list[str] = []
    num_bytes = newest_ns = 0
    for part, names in way.items():
        found: list[str] = []
        for name in names:
            if not (folder / name).is_dir():
                raise DataError(f"{what}: {folder} has a folder {way['train'][0]}, but no {name}: {remedy}.")
            below = _class_folders(card, folder / name, remedy) if layout == "class-folders" else [""]
            for entry in below:
                refuse_folders(folder / name / entry, (suffix,), what)
                files = _files(folder / name / entry, suffix)
                if not files:
                    raise DataError(f"{what}: {folder / name / entry} has no {suffix} files: {remedy}.")
                for file_name, size, changed_ns in files:
                    found.append("/".join(filter(None, (name, entry, file_name))))
                    sizes.append(f"{found[-1]}\0{size}\n")
                    num_bytes += size
                    newest_ns = max(newest_ns, changed_ns)
        parts[part] = tuple(found)
    digest = hashlib.sha256("".join(sizes).encode(errors="surrogateescape")).hexdigest()
    return kind(folder, origin, card=card, parts=parts, num_bytes=num_bytes, listing_sha256=digest, newest_ns=newest_ns)


def _class_folders(card: ImageCard, folder: Path, remedy: str) -> Sequence[str]:
    """Names of the class folders in the order of the classes."""
    present = {entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")}
    if missing := [name for name in card.classes if name not in present]:
        raise DataError(f"data set {card.name}: {folder} has no folder for {', '.join(missing)}: {remedy}.")
    if unknown := sorted(present.difference(card.classes)):
        raise DataError(
            f"data set {card.name}: {folder} has folders {', '.join(unknown)} that are not classes"
            f" ({', '.join(card.classes)}): remove them."
        )
    return card.classes


def _files(folder: Path, suffix: str) -> list[tuple[str, int, int]]:
    """Name, size and time of the latest change of the files with a suffix, except hidden ones, by name."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffix) and not entry.name.startswith(".") and entry.is_file():
                status = entry.stat()
                found.append((entry.name, status.st_size, status.st_mtime_ns))
    return sorted(found)
