"""Search for the images of a card: the user's folders, then the cache, then torchvision's download.

A folder may hold the card's ``.npz`` file, torchvision's files or the published folder, in this order of precedence.
"""

import os
import pickle
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from filelock import FileLock

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.kinds import ImageCard, TorchvisionData
from lightning_fl.data.cards.lookup import (
    cache_folder,
    dataset_cache,
    file_in_folder,
    file_sha256,
    user_folders,
    why_not_fetched,
)
from lightning_fl.data.images.reader import ImageReader, PublishedImages

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_fl.data.images.dataset import ImageDataset
    from lightning_fl.data.module import Split

_SILENCE_SECONDS = 10.0


@dataclass(frozen=True)
class NpzImages(ImageReader):
    """A ``.npz`` file in MedMNIST's layout, of a card or (``card`` is ``None``) of the user."""

    card: ImageCard | None = None

    layout = "npz"

    @classmethod
    def find(cls, card: ImageCard, folder: Path, origin: str) -> Self | None:
        file = file_in_folder(card, card.file, folder, origin)
        return None if file is None else cls(file.path, origin, file.verified, {file.path.name: file.sha256}, card)

    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        """Read the arrays; validation images are training images where the card joins these parts."""
        from lightning_fl.data.images.dataset import ImageDataset, read_npz

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
            what = f"{folder} has folders {', '.join(sorted(unknown))} that are not classes"
            raise DataError(f"data set {card.name}: {what} ({', '.join(card.classes)}): remove them.")
        return [path for name in card.classes for path in super(ClassFolderImages, cls)._list(card, folder / name)]

    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        from lightning_fl.data.images.file import read_class_folders

        return read_class_folders(self)


class DigitImages(ImageReader):
    """The digits in scikit-learn."""

    layout = "scikit-learn"

    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        from lightning_fl.data.images.standin import read_digits

        return {"train": read_digits()}


def find_images(card: ImageCard, *, data_root: str | Path | None = None, allow_download: bool = True) -> ImageReader:
    """Find images in ``data_root``, ``$LIGHTNING_FL_DATA`` or the cache, or let torchvision download them."""
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
        from lightning.fabric.utilities.rank_zero import rank_zero_info  # late: listing cards must not wait for torch

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


def torchvision_cache() -> Path:
    """The folder of torchvision's data sets in the cache, each in its own layout."""
    return cache_folder() / "datasets" / "torchvision"


@dataclass(frozen=True, kw_only=True)
class TorchvisionImages(ImageReader):
    """Files in torchvision's layout; ``path`` is the folder given to torchvision's class."""

    card: ImageCard
    data: TorchvisionData

    layout = "torchvision"

    @classmethod
    def find(cls, card: ImageCard, folder: Path, origin: str) -> Self | None:
        """Find the files, all of them, in a folder; those of the cache are in one for all data sets."""
        data, root = card.torchvision, torchvision_cache() if origin == "cache" else folder
        if data is None or not _holds(root, data):
            return None
        sums = {name: file_sha256(root / name) for name in data.files}
        return cls(root, origin, origin in ("cache", "download"), sums, card=card, data=data)

    @property
    def place(self) -> str:
        return f"{self.path} ({', '.join(self.sha256)})"

    def read(self, *, coarse_labels: bool = False) -> "dict[Split, ImageDataset]":
        import torch
        import torchvision

        from lightning_fl.data.images.dataset import ImageDataset

        kind, classes = getattr(torchvision.datasets, self.data.dataset), self.card.classes
        place, first_label = f"{self.data.dataset} in {self.path}", self.data.first_label
        if coarse_labels:
            classes, first_label = self.card.coarse_classes, 0
        parts: dict[Any, ImageDataset] = {}
        for split, arguments in self.data.parts.items():
            try:
                data = kind(self.path, **arguments)
                labels = _labels(data, coarse_labels)
            except Exception as error:  # torchvision's parsers raise anything for damaged files, even AssertionError
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise DataError(f"{place} cannot be read ({reason}): fetch it again.") from error
            images = torch.as_tensor(data.data)  # [n, H, W], [n, H, W, C] or (SVHN) [n, C, H, W]
            if images.ndim == 3:
                images = images[:, None]
            elif images.shape[1] != self.card.channels:
                images = images.permute(0, 3, 1, 2)
            where = f"{place}, {split} part"
            parts[split] = ImageDataset(images.contiguous(), labels - first_label, classes, place=where)
        return parts


def _labels(data: Any, coarse: bool) -> "Tensor":
    """Classes [n], or superclasses of CIFAR-100, which torchvision's class omits (but it has checked the sums)."""
    import torch

    if not coarse:
        return torch.as_tensor(data.targets if hasattr(data, "targets") else data.labels)
    labels: list[int] = []
    for name, _ in data.train_list if data.train else data.test_list:
        with (Path(data.root) / data.base_folder / name).open("rb") as stream:
            content: Mapping[str, Any] = pickle.load(stream, encoding="latin1")
        labels += content["coarse_labels"]
    return torch.tensor(labels)


def _holds(root: Path, data: TorchvisionData) -> bool:
    return all((root / name).is_file() for name in data.files)


def download(card: ImageCard) -> TorchvisionImages:
    """Download into a temporary folder, and move only complete files with torchvision's sums into the cache."""
    data, root = card.torchvision, torchvision_cache()
    assert data is not None
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{data.dataset}.lock"):
            if not _holds(root, data):  # else another process was faster
                _fill(root, data)
    except Exception as error:  # torchvision's are of any class
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        remedy = "check the network and the free disk space, or set LIGHTNING_FL_CACHE to a writable folder"
        raise DataError(f"torchvision's download of {data.dataset} to {root} failed ({reason}): {remedy}.") from error
    found = TorchvisionImages.find(card, root, "download")
    assert found is not None
    return found


def _fill(root: Path, data: TorchvisionData) -> None:
    import torchvision

    part, silence = root / f"{data.dataset}.part", socket.getdefaulttimeout()
    shutil.rmtree(part, ignore_errors=True)  # torchvision takes a truncated file for a complete one
    part.mkdir()
    socket.setdefaulttimeout(_SILENCE_SECONDS)  # torchvision's download has no time limit
    try:
        for arguments in data.parts.values():
            getattr(torchvision.datasets, data.dataset)(part, download=True, **arguments)
        if not _holds(part, data):
            raise DataError(f"it did not bring {', '.join(data.files)}")
        for path in part.iterdir():
            shutil.rmtree(root / path.name, ignore_errors=True)  # of another part of the same data set
            os.replace(path, root / path.name)
    finally:
        socket.setdefaulttimeout(silence)
        shutil.rmtree(part, ignore_errors=True)
