"""Find a folder that a card describes and list its files: names and sizes, nothing is opened.

This module imports neither torch nor torchvision.
"""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.images import FolderLayout, ImageCard

__all__ = ["FolderListing", "list_folder", "refuse_folders", "say_left_out"]

#: How the files of a layout end, and how one gets them again.
_ENDINGS: dict[FolderLayout, str] = {"leaf": ".json", "class-folders": ".png"}
_MENDS: dict[FolderLayout, str] = {
    "leaf": "run LEAF's preprocess.sh again",
    "class-folders": "unpack the archive again",
}


@dataclass(frozen=True)
class FolderListing:
    """The files of a folder.

    Attributes:
        path: the folder.
        parts: for "train", and "test" where that is separate, the files, relative to ``path``, in the order in which
            they are read.
        num_bytes: their sizes together.
        sha256: sum of the list of names and sizes; it is the same wherever the folder lies. Contents are not summed
            up: there may be hundreds of thousands of files.
        newest_ns: time of the latest change of a file, in nanoseconds.
    """

    path: Path
    parts: dict[str, tuple[str, ...]]
    num_bytes: int
    sha256: str
    newest_ns: int

    @property
    def num_files(self) -> int:
        """Files in all."""
        return sum(len(names) for names in self.parts.values())


def list_folder(card: ImageCard, root: Path) -> FolderListing | None:
    """The files of a card's folder below ``root``, if the folder is there.

    It is taken to be there if it has the first folder for training of one of the ways to divide it.

    Raises:
        DataError: it is not complete: a part, the folder of a class, or files are missing.
    """
    if card.folder is None:
        return None
    for name in card.folder.names:
        for way in card.folder.parts:
            if (root / name / way["train"][0]).is_dir():
                return _list(card, root / name, way)
    return None


def refuse_folders(folder: Path, endings: tuple[str, ...], what: str) -> None:
    """Refuse folders that are called as a file is, which would be left out.

    Args:
        folder: all in it and below it is looked at.
        endings: of the files that are read.
        what: begins the message.
    """
    for root, names, _ in os.walk(folder, followlinks=True):
        for name in names:
            if name.lower().endswith(endings) and not name.startswith("."):
                raise DataError(
                    f"{what}: {Path(root) / name} is a folder, and called as a file is: put the file in its place, or"
                    " take it away."
                )


def say_left_out(folder: Path, read: Collection[Path], what: str) -> None:
    """Warn of files in a folder, and below it, that are not read, but for hidden ones: how many, and of which kinds.

    Args:
        folder: of images.
        read: what is read of it.
        what: begins the warning.
    """
    others = sorted(path for path in set(folder.rglob("[!.]*")).difference(read) if path.is_file())
    if others:
        kinds = Counter(path.suffix.lower() or "no suffix" for path in others)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        warnings.warn(
            f"{what}: {len(others)} files are not read as images ({counted}), such as {others[0]}. Convert images to"
            " PNG, in the folder of their class; what else is there does no harm.",
            stacklevel=2,
        )


def _list(card: ImageCard, folder: Path, way: Mapping[str, tuple[str, ...]]) -> FolderListing:
    assert card.folder is not None
    layout = card.folder.layout
    mend = f"{_MENDS[layout]}, or take {folder} away"
    parts: dict[str, tuple[str, ...]] = {}
    sizes: list[str] = []
    num_bytes = newest_ns = 0
    for part, names in way.items():
        found: list[str] = []
        for name in names:
            if not (folder / name).is_dir():
                raise DataError(
                    f"data set {card.name}: {folder} has a folder {way['train'][0]}, but no {name}: {mend}."
                )
            below = _class_folders(card, folder / name, mend) if layout == "class-folders" else [""]
            for entry in below:
                refuse_folders(folder / name / entry, (_ENDINGS[layout],), f"data set {card.name}")
                files = _files(folder / name / entry, _ENDINGS[layout])
                if not files:
                    raise DataError(
                        f"data set {card.name}: {folder / name / entry} holds no {_ENDINGS[layout]} files: {mend}."
                    )
                for file_name, size, changed_ns in files:
                    found.append("/".join(filter(None, (name, entry, file_name))))
                    sizes.append(f"{found[-1]}\0{size}\n")
                    num_bytes += size
                    newest_ns = max(newest_ns, changed_ns)
        parts[part] = tuple(found)
    digest = hashlib.sha256("".join(sizes).encode(errors="surrogateescape")).hexdigest()
    return FolderListing(folder, parts, num_bytes, digest, newest_ns)


def _class_folders(card: ImageCard, folder: Path, mend: str) -> Sequence[str]:
    """The names of the class folders in the order of the classes."""
    present = {entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")}
    missing = [name for name in card.classes if name not in present]
    if missing:
        raise DataError(f"data set {card.name}: {folder} has no folder for {', '.join(missing)}: {mend}.")
    unknown = sorted(present.difference(card.classes))
    if unknown:
        raise DataError(
            f"data set {card.name}: {folder} has folders {', '.join(unknown)} that are none of the classes"
            f" {', '.join(card.classes)}: take them away."
        )
    return card.classes


def _files(folder: Path, ending: str) -> list[tuple[str, int, int]]:
    """Name, size and time of the latest change of the files with this ending, but for hidden ones, by name."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(ending) and not entry.name.startswith(".") and entry.is_file():
                status = entry.stat()
                found.append((entry.name, status.st_size, status.st_mtime_ns))
    return sorted(found)
