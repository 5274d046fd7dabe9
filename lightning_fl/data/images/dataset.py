"""Labelled images in memory, and their reading from ``.npz`` files in MedMNIST's layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from lightning_fl.core.errors import DataError
from lightning_fl.data.module import SPLIT_NAMES, SPLITS, Split
from lightning_fl.files.tensors import read_numpy
from lightning_fl.files.text_table import require_columns

_CHUNK_IMAGES = 4096

#: One value per sample by which samples can be grouped.
Column = Sequence[str | int]


@dataclass(eq=False, repr=False)
class ImageDataset(Dataset):
    """n images of one size with a class each, in memory as bytes."""

    images: Tensor  #: grey values or colours, uint8 [n, C, H, W] with C = 1 or 3
    targets: Tensor  #: classes, integers [n]
    classes: Sequence[str]  #: names of the classes 0, 1, ...
    columns: Mapping[str, Column] = field(default_factory=dict)  #: by which samples can be grouped, such as the writer
    place: str = "the images"  #: name of the data, for messages

    def __post_init__(self) -> None:
        images, targets, classes, place = self.images, self.targets, self.classes, self.place
        what = f"shape {list(images.shape)} and type {images.dtype}"
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
            raise DataError(f"{place}: images have {what}, but must be uint8 of shape [n, C, H, W] with C = 1 or 3.")
        what = f"shape {list(targets.shape)} and type {targets.dtype}"
        if targets.ndim != 1 or targets.is_floating_point() or len(targets) != len(images):
            raise DataError(f"{place}: labels have {what}, but must be one integer for each of {len(images)} images.")
        lowest, highest = int(targets.min()), int(targets.max())
        if lowest < 0 or highest >= len(classes):
            raise DataError(f"{place}: labels go from {lowest} to {highest}; the {len(classes)} classes begin at 0.")
        for name, values in self.columns.items():
            if len(values) != len(images):
                raise DataError(f"{place}: column {name!r} has {len(values)} values for {len(images)} images.")
        self.targets = targets.long()
        self.classes = list(classes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.targets[index]

    def column(self, name: str) -> Column:
        """Values of a column; ``label``, the name of the class, always exists."""
        require_columns([*self.columns, "label"], [name], self.place)
        if name in self.columns:
            return self.columns[name]
        return [self.classes[target] for target in self.targets.tolist()]

    def tensors(self) -> TensorDataset:
        return TensorDataset(self.images, self.targets)

    @classmethod
    def joined(cls, parts: Sequence[Self], place: str) -> Self:
        """Join data sets of the same classes and size; columns that some lack are dropped."""
        common = set.intersection(*(set(part.columns) for part in parts))
        columns = {name: [value for part in parts for value in part.columns[name]] for name in sorted(common)}
        images, targets = torch.cat([part.images for part in parts]), torch.cat([part.targets for part in parts])
        return cls(images, targets, parts[0].classes, columns, place)

    def select(self, indices: Tensor) -> Self:
        chosen: list[int] = indices.tolist()
        columns = {name: [values[index] for index in chosen] for name, values in self.columns.items()}
        return replace(self, images=self.images[indices], targets=self.targets[indices], columns=columns)

    def converted(self, *, size: int | None = None, channels: int | None = None) -> Self:
        """Convert to ``size`` x ``size`` pixels and a number of channels; ``None`` keeps them."""
        images = convert_channels(self.images, 1) if channels == 1 else self.images
        images = resize_images(images, size)
        if channels == 3:  # last, so that grey images are resized once
            images = convert_channels(images, 3)
        return replace(self, images=images)


def resize_images(images: Tensor, size: int | None) -> Tensor:
    """Resize bytes [n, C, H, W] to [n, C, size, size], bilinear with antialiasing, which skips no pixel."""
    if size is None or images.shape[2:] == (size, size):
        return images
    from torchvision.transforms.v2 import functional

    chunks = images.split(_CHUNK_IMAGES)  # resizing works in floats, four times as large
    return torch.cat([functional.resize(chunk, [size, size], antialias=True) for chunk in chunks])


def convert_channels(images: Tensor, channels: int) -> Tensor:
    """Convert colours to grey (luma of ITU-R 601), or grey to three equal channels; bytes [n, C, H, W]."""
    from torchvision.transforms.v2 import functional

    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    return torch.cat([functional.rgb_to_grayscale(chunk) for chunk in images.split(_CHUNK_IMAGES)])


#: What to do about a file that cannot be read.
REMEDY = "fetch it again, or give a file made with numpy.savez."
#: Prefix of an array's name, in any case -> prefix of the split.
_PREFIXES = {
    f"{written}_": f"{split}_"
    for name, split in SPLIT_NAMES.items()
    for written in (name, name.capitalize(), name.upper())
}


def read_npz(
    path: Path, *, classes: Sequence[str] | None = None, labels: str = "labels", place: str | None = None
) -> dict[Split, ImageDataset]:
    """Read the parts of a ``.npz`` file in MedMNIST's layout, "train" first.

    It has ``train_images``, uint8, shape [N, H, W] (grey) or [N, H, W, C], and ``train_labels``, integers, shape [N] or
    [N, 1]; and perhaps ``val_*`` and ``test_*``. Any other entry ``train_NAME`` of shape [N] is a column ``NAME`` by
    which the images can be grouped. ``labels`` is the entry of the classes, such as "coarse_labels" for
    ``train_coarse_labels``; without ``classes`` their names are numbers up to the largest label.
    """
    place = str(path) if place is None else place
    found = read_numpy(path, ".npz", REMEDY, error=DataError, place=place, prefixes=(*_PREFIXES, "domain_"))
    arrays = {}
    for name, array in found.items():
        start, _, rest = name.partition("_")
        arrays[_PREFIXES.get(f"{start}_", f"{start}_") + rest] = array
    present = {"train"}.union(name.partition("_")[0] for name in arrays)
    parts: list[Split] = [split for split in SPLITS if split in present]
    targets = {split: _labels(arrays, f"{split}_{labels}", place) for split in parts}
    if classes is None:
        classes = [str(label) for label in range(max(int(part.max()) for part in targets.values()) + 1)]
    return {
        split: ImageDataset(
            read_npz_images(_entry(arrays, f"{split}_images", place), f"{split}_images", place),
            targets[split],
            classes=classes,
            columns=_columns(arrays, f"{split}_", len(targets[split]), place),
            place=f"{place}, {split} part",
        )
        for split in parts
    }


def read_npz_images(array: np.ndarray, name: str, place: str) -> Tensor:
    """Convert uint8 of shape [N, H, W] or [N, H, W, C] with 1 or 3 channels to images, bytes [N, C, H, W]."""
    channels_last = array[..., None] if array.ndim == 3 else array
    if array.dtype != np.uint8 or channels_last.ndim != 4 or channels_last.shape[3] not in (1, 3):
        what = f"{name} has shape {list(array.shape)} and type {array.dtype}"
        raise DataError(f"{place}: {what}, but must be uint8 [N, H, W] or [N, H, W, C] with C = 1 or 3.")
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2)))


def _labels(arrays: Mapping[str, np.ndarray], name: str, place: str) -> Tensor:
    array = _entry(arrays, name, place)
    if array.dtype.kind not in "iu" or array.size == 0 or array.shape not in ((array.size,), (array.size, 1)):
        what = f"{name} has shape {list(array.shape)} and type {array.dtype}"
        raise DataError(f"{place}: {what}, but must be integers of shape [N] or [N, 1], at least one.")
    return torch.from_numpy(array.astype(np.int64).reshape(-1))


def _entry(arrays: Mapping[str, np.ndarray], name: str, place: str) -> np.ndarray:
    require_columns(arrays, [name], f"{place}, whose parts are images with labels,", "entry")
    return arrays[name]


def _columns(arrays: Mapping[str, np.ndarray], prefix: str, length: int, place: str) -> dict[str, Column]:
    """Other entries of a part with one integer or text per image; domains by their names, if there are any."""
    columns: dict[str, Column] = {
        name.removeprefix(prefix): array.reshape(-1).tolist()
        for name, array in arrays.items()
        if name.startswith(prefix)
        and name.removeprefix(prefix) not in ("images", "labels")
        and array.shape in ((length,), (length, 1))
        and array.dtype.kind in "iuU"
    }
    names, domains = arrays.get("domain_names"), columns.get("domains")
    if names is not None and domains is not None:
        if not {*domains} <= {*range(count := len(names))}:
            raise DataError(f"{place}: {prefix}domains must be numbers of the {count} domain_names, from 0.")
        columns["domains"] = [str(names[int(number)]) for number in domains]
    return columns
