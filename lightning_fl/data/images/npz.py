"""Reading of images from a ``.npz`` file in MedMNIST's layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.data.images.dataset import Column, ImageDataset
from lightning_fl.data.module import SPLIT_NAMES, SPLITS, Split
from lightning_fl.files.tensors import read_numpy
from lightning_fl.files.text_table import require_columns

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
    which the images can be grouped.

    Args:
        path: the file.
        classes: names of the classes; ``None`` for numbers up to the largest label.
        labels: entry of the classes, such as ``"coarse_labels"`` for ``train_coarse_labels``.
        place: name of the data, for messages; ``None`` for the path.
    """
    place = str(path) if place is None else place
    found = read_numpy(path, ".npz", REMEDY, error=DataError, place=place, prefixes=(*_PREFIXES, "domain_"))
    arrays = {}
    for name, array in found.items():
        start, _, rest = name.partition("_")
        arrays[_PREFIXES.get(f"{start}_", f"{start}_") + rest] = array
    parts: list[Split] = [
        split for split in SPLITS if split == "train" or any(name.startswith(f"{split}_") for name in arrays)
    ]
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
        raise DataError(
            f"{place}: {name} has shape {list(array.shape)} and type {array.dtype}, but must be uint8 of shape"
            " [N, H, W] (grey) or [N, H, W, C] with 1 or 3 channels."
        )
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2)))


def _labels(arrays: Mapping[str, np.ndarray], name: str, place: str) -> Tensor:
    array = _entry(arrays, name, place)
    if array.dtype.kind not in "iu" or array.size == 0 or array.shape not in ((array.size,), (array.size, 1)):
        raise DataError(
            f"{place}: {name} has shape {list(array.shape)} and type {array.dtype}, but must be integers of shape [N]"
            " or [N, 1], at least one: choose one column of labels if there are several."
        )
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
        if not {*domains} <= {*range(len(names))}:
            raise DataError(
                f"{place}: {prefix}domains must be numbers of the {len(names)} domain_names, counted from 0."
            )
        columns["domains"] = [str(names[int(number)]) for number in domains]
    return columns
