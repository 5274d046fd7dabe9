"""Search for the images of a card: the user's folders, then the cache, then torchvision's download.

A folder may hold the card's ``.npz`` file, torchvision's files in its own layout, or the published folder, in this
order of precedence.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.images import ImageCard
from lightning_fl.data.cards.lookup import (
    dataset_cache,
    file_in_folder,
    file_sha256,
    rank_zero_info,
    user_folders,
    why_not_fetched,
)
from lightning_fl.data.images.reader import ImageReader, PublishedImages
from lightning_fl.data.images.torchvision_files import TorchvisionImages, download, torchvision_cache

if TYPE_CHECKING:
    from lightning_fl.data.images.dataset import ImageDataset
    from lightning_fl.data.module import Split


@dataclass(frozen=True)
class NpzImages(ImageReader):
    """A ``.npz`` file in MedMNIST's layout, of a card or (``card`` is ``None``) of the user."""

    card: ImageCard | None = None

    layout = "npz"

    @classmethod
    def find(cls, card: ImageCard, folder: Path, origin: str) -> Self | None:
        file = file_in_folder(card, card.file, folder, origin)
        return None if file is None else cls(file.path, origin, file.verified, {file.path.name: file.sha256}, card)

    @classmethod
    def of_user(cls, path: Path) -> Self:
        """The user's own file."""
        return cls(path, "path", False, {path.name: file_sha256(path)})

    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        """Read the arrays; validation images are training images where the card joins these parts."""
        from lightning_fl.data.images.dataset import ImageDataset
        from lightning_fl.data.images.npz import read_npz

        labels = "coarse_labels" if coarse_labels else "labels"
        if self.card is None:
            return read_npz(self.path, labels=labels)
        classes = self.card.coarse_classes if coarse_labels else self.card.classes
        parts = read_npz(self.path, classes=classes, labels=labels)
        if "val" in parts and self.card.folder is not None and self.card.folder.joins_parts:
            joined = [parts["train"], parts.pop("val")]
            parts["train"] = ImageDataset.joined(joined, place=f"{self.path}, train and val parts")
        return parts


class LeafImages(PublishedImages):
    """JSON files of the LEAF benchmark."""

    layout, suffix, remedy = "leaf", ".json", "run LEAF's preprocess.sh again"

    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        from lightning_fl.data.images.leaf import read_leaf

        return read_leaf(self)


class ClassFolderImages(PublishedImages):
    """A folder of PNG files for every class."""

    layout, suffix, remedy = "class-folders", ".png", "unpack the archive again"

    @classmethod
    def _list(cls, card: ImageCard, folder: Path) -> list[Path]:
        if unknown := {entry.name for entry in folder.glob("[!.]*/")}.difference(card.classes):
            raise DataError(
                f"data set {card.name}: {folder} has folders {', '.join(sorted(unknown))} that are not classes"
                f" ({', '.join(card.classes)}): remove them."
            )
        return [path for name in card.classes for path in super(ClassFolderImages, cls)._list(card, folder / name)]

    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        from lightning_fl.data.images.class_folders import read_class_folders

        return read_class_folders(self)


class DigitImages(ImageReader):
    """The digits in scikit-learn."""

    layout = "scikit-learn"

    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        from lightning_fl.data.images.standin import read_digits

        return {"train": read_digits()}


def find_images(card: ImageCard, *, data_root: str | Path | None = None, allow_download: bool = True) -> ImageReader:
    """Find images in ``data_root``, ``$LIGHTNING_FL_DATA`` or the cache, or let torchvision download them.

    Nothing is downloaded without ``allow_download``, or with ``$LIGHTNING_FL_OFFLINE``. The error names the folders
    searched, the failure, and where to put which file.
    """
    if not card.files:
        return DigitImages(Path("scikit-learn"), "scikit-learn", True)
    own = dataset_cache(card)
    folders = [*user_folders(data_root, card.file.name), ("cache", own)]
    for origin, folder in folders:
        for kind in (NpzImages, TorchvisionImages, LeafImages, ClassFolderImages):
            if (found := kind.find(card, folder, origin)) is not None:
                return found
    failure = why_not_fetched(True, card, allow_download)
    if card.torchvision is None:
        failure = f"torchvision does not have it (its card, {card.path}, describes where to get it)"
    elif not failure:
        rank_zero_info(f"Downloading {card.title} with torchvision to {torchvision_cache()}")
        try:
            return download(card)
        except DataError as error:
            failure = str(error).rstrip(".")
    looked = ", ".join(f"{folder} ({'the cache' if origin == 'cache' else origin})" for origin, folder in folders)
    names = card.file.name
    remedy = f"Put {names} in {own}, or name its folder in data_root or LIGHTNING_FL_DATA"
    if card.torchvision is not None:
        names += f" (or {card.torchvision.files[0]} etc. in torchvision's layout)"
    if card.folder is not None:
        names += f" (or {card.folder.description})"
        remedy += f"; the folder {card.folder.names[0]} may be in any of these too"
    raise DataError(f"{names} of data set {card.name} was not found in {looked}; {failure}. {remedy}.")
