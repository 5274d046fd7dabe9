"""Protocol of readers: images that were found in one layout, and how to read them.

Neither this module nor those of the readers import torch before images are read, so that the command line lists data
sets quickly.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from lightning_fl.data.images.dataset import ImageDataset
    from lightning_fl.data.module import Split

__all__ = ["ImageReader"]


@dataclass(frozen=True)
class ImageReader(ABC):
    """Images that were found.

    Attributes:
        path: the file or folder.
        origin: ``"data_root"``, ``"LIGHTNING_FL_DATA"``, ``"cache"``, ``"download"``, ``"path"`` or ``"scikit-learn"``.
        verified: whether the card accepts the file's sum, or the files came from torchvision's checked download.
        sha256: name of every file (relative to the folder) -> its sum; empty for a published folder.
    """

    path: Path
    origin: str
    verified: bool = False
    sha256: dict[str, str] = field(default_factory=dict)

    #: Name of the layout: "npz", "torchvision", "leaf", "class-folders" or "scikit-learn".
    layout: ClassVar[str]

    @abstractmethod
    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        """Read the parts, "train" first.

        Args:
            coarse_labels: read the superclasses instead of the classes.

        Raises:
            DataError: the files are damaged, or not what the card describes.
        """

    @property
    def place(self) -> str:
        """Location of the images as text."""
        return f"{self.path} ({', '.join(self.sha256)})"

    @property
    def sums(self) -> str:
        """Sums as text."""
        return ", ".join(self.sha256.values())

    def record(self) -> dict[str, Any]:
        """Return files and sums for a run's record."""
        return {
            "file": ", ".join(self.sha256) or None,
            "sha256": next(iter(self.sha256.values()), None) if len(self.sha256) < 2 else dict(self.sha256),
            "verified": self.verified,
            "layout": self.layout,
        }
