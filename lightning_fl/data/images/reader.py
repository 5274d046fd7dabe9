"""Readers: images that were found in one layout, and how to read them.

Torch is imported only where images are read, so that the command line lists data sets quickly.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.kinds import ImageCard

if TYPE_CHECKING:
    from lightning_fl.data.images.dataset import ImageDataset
    from lightning_fl.data.module import Split


@dataclass(frozen=True)
class ImageReader(ABC):
    """Images that were found."""

    path: Path  #: the file or folder
    origin: str  #: "data_root", "LIGHTNING_FL_DATA", "cache", "download", "path" or "scikit-learn"
    verified: bool = False  #: by a sum of the card, or by torchvision's checked download
    sha256: dict[str, str] = field(default_factory=dict)  #: file -> its sum; empty for a published folder

    #: Name of the layout: "npz", "torchvision", "leaf", "class-folders" or "scikit-learn".
    layout: ClassVar[str]

    @classmethod
    def find(cls, card: ImageCard, folder: Path, origin: str) -> Self | None:
        """Find a card's images in a folder, if they are there in this layout."""
        return None

    @abstractmethod
    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        """Read the parts, "train" first, with the superclasses instead of the classes for ``coarse_labels``."""

    @property
    def place(self) -> str:
        return str(self.path)

    @property
    def sums(self) -> str:
        return ", ".join(self.sha256.values())

    def record(self) -> dict[str, Any]:
        return {
            "file": ", ".join(self.sha256) or None,
            "sha256": next(iter(self.sha256.values()), None) if len(self.sha256) < 2 else dict(self.sha256),
            "verified": self.verified,
            "layout": self.layout,
        }


@dataclass(frozen=True, kw_only=True)
class PublishedImages(ImageReader):
    """A published folder, listed (names and sizes) without opening any of perhaps hundreds of thousands of files."""

    card: ImageCard
    parts: "dict[Split, list[Path]]"  #: "train", and "test" if separate -> files, in the order of reading
    num_bytes: int
    listing_sha256: str  #: sum of the list of names and sizes, the same wherever the folder is
    newest_ns: int  #: time of the latest change of a file

    #: Suffix of the files, and how to get them again.
    suffix: ClassVar[str]
    remedy: ClassVar[str]

    @classmethod
    def find(cls, card: ImageCard, folder: Path, origin: str) -> Self | None:
        """List the card's folder, if it has this layout and the first training folder of one of its divisions."""
        if card.folder is None or card.folder.layout != cls.layout:
            return None
        for root in (folder / name for name in card.folder.names):
            for way in card.folder.parts:
                if (root / way["train"][0]).is_dir():
                    parts: Any = {
                        part: [path for name in names for path in cls._list(card, root / name)]
                        for part, names in way.items()
                    }
                    states = {path: path.stat() for paths in parts.values() for path in paths}
                    lines = [f"{path.relative_to(root).as_posix()}\0{one.st_size}\n" for path, one in states.items()]
                    return cls(
                        root,
                        origin,
                        card=card,
                        parts=parts,
                        num_bytes=sum(one.st_size for one in states.values()),
                        listing_sha256=hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest(),
                        newest_ns=max(one.st_mtime_ns for one in states.values()),
                    )
        return None

    @classmethod
    def _list(cls, card: ImageCard, folder: Path) -> list[Path]:
        files = sorted(folder.glob(f"[!.]*{cls.suffix}"))
        if not files:
            what = f"{folder} has no {cls.suffix} files"
            raise DataError(f"data set {card.name}: {what}: {cls.remedy}, or remove the data set.")
        return files

    @property
    def num_files(self) -> int:
        return sum(map(len, self.parts.values()))

    @property
    def place(self) -> str:
        return f"{self.path} ({self.num_files:,} files)"

    @property
    def sums(self) -> str:
        return f"{self.listing_sha256} (of names and sizes)"

    def record(self) -> dict[str, Any]:
        return {
            **super().record(),
            "file": self.path.name,
            "names_and_sizes_sha256": self.listing_sha256,
            "num_files": self.num_files,
            "num_bytes": self.num_bytes,
        }
