"""Reading of images in all layouts, and of the digits in scikit-learn."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.images import ImageCard
from lightning_fl.data.images.class_folders import read_class_folders
from lightning_fl.data.images.dataset import ImageDataset, read_npz
from lightning_fl.data.images.leaf import read_leaf
from lightning_fl.data.images.sources import FoundImages
from lightning_fl.data.module import Split

__all__ = ["read_digits", "read_images", "read_torchvision"]


def read_images(card: ImageCard, found: FoundImages, *, coarse_labels: bool = False) -> dict[Split, ImageDataset]:
    """Read the parts of a data set, "train" first.

    Args:
        card: the data set.
        found: location and layout of its images.
        coarse_labels: read the superclasses instead of the classes.

    Raises:
        DataError: the files are damaged, or not what the card describes.
    """
    if found.layout == "scikit-learn":
        return {"train": read_digits()}
    assert found.path is not None
    if found.layout == "torchvision":
        return read_torchvision(card, found.path, coarse_labels=coarse_labels)
    if found.listing is not None:
        return (read_leaf if found.layout == "leaf" else read_class_folders)(card, found.listing)
    classes = card.coarse_classes if coarse_labels else card.classes
    parts = read_npz(found.path, classes=classes, labels="coarse_labels" if coarse_labels else "labels")
    if "val" in parts and card.folder is not None and card.folder.joins_parts:
        joined = [parts["train"], parts.pop("val")]
        parts["train"] = ImageDataset.joined(joined, place=f"{found.path}, train and val parts")
    return parts


def read_digits() -> ImageDataset:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, with 17 grey levels spread over 256."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))[:, None]
    return ImageDataset(
        images,
        torch.from_numpy(digits.target),
        classes=[str(label) for label in range(10)],
        place="scikit-learn's digits",
    )


def read_torchvision(card: ImageCard, root: Path, *, coarse_labels: bool = False) -> dict[Split, ImageDataset]:
    """Read training and test images in torchvision's layout with torchvision.

    Raises:
        DataError: the files are damaged.
    """
    import torchvision

    assert card.torchvision is not None
    kind = getattr(torchvision.datasets, card.torchvision.dataset)
    place = f"{card.torchvision.dataset} in {root}"
    parts: dict[Split, ImageDataset] = {}
    for split, arguments in zip(("train", "test"), card.torchvision.parts.values(), strict=True):
        try:
            data = kind(root, **arguments)
            labels = _coarse_labels(data) if coarse_labels else _labels(data)
        except Exception as error:  # torchvision's parsers raise anything for damaged files, even AssertionError
            raise DataError(
                f"{place} cannot be read ({type(error).__name__}: {' '.join(str(error).split())}): fetch its files"
                " again."
            ) from error
        parts[split] = ImageDataset(  # type: ignore[index]
            _channels_first(data.data, card.channels),
            labels - (0 if coarse_labels else card.torchvision.first_label),
            classes=card.coarse_classes if coarse_labels else card.classes,
            place=f"{place}, {split} part",
        )
    return parts


def _channels_first(data: Any, channels: int) -> Tensor:
    """Convert torchvision's arrays, [n, H, W], [n, H, W, C] or (SVHN) [n, C, H, W], to images [n, C, H, W]."""
    images = torch.as_tensor(data)
    if images.ndim == 3:
        return images[:, None].contiguous()
    if images.shape[1] == channels:
        return images.contiguous()
    return images.permute(0, 3, 1, 2).contiguous()


def _labels(data: Any) -> Tensor:
    return torch.as_tensor(data.targets if hasattr(data, "targets") else data.labels)


def _coarse_labels(data: Any) -> Tensor:
    """Superclasses [n] of CIFAR-100, which torchvision's class omits (but it has checked the files' sums)."""
    labels: list[int] = []
    for name, _ in data.train_list if data.train else data.test_list:
        with (Path(data.root) / data.base_folder / name).open("rb") as stream:
            content: Mapping[str, Any] = pickle.load(stream, encoding="latin1")
        labels += content["coarse_labels"]
    return torch.tensor(labels)
