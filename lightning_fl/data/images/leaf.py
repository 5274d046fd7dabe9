"""Reading of the LEAF benchmark's images: JSON files with the images of some writers each.

Caldas et al., "LEAF: A benchmark for federated settings", 2018, https://arxiv.org/abs/1812.01097. A file holds
``users`` (the writers), ``num_samples`` (of each) and ``user_data``: for every writer the images ``x``, lists of grey
values from 0 to 1, and their classes ``y``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.kinds import ImageCard
from lightning_fl.data.images.dataset import ImageDataset
from lightning_fl.data.images.reader import PublishedImages
from lightning_fl.data.module import Split

_REMEDY = "make the files again with LEAF's preprocess.sh"


def read_leaf(found: PublishedImages) -> dict[Split, ImageDataset]:
    """Read all files as images with a column ``writer``, sorted by writer; each writer's images keep their order."""
    rank_zero_info(f"Reading {found.num_files} JSON files ({found.num_bytes / 1e9:.1f} GB) in {found.path}")
    return {split: _read_part(found.card, files, f"{found.path}, {split} part") for split, files in found.parts.items()}


def _read_part(card: ImageCard, files: Sequence[Path], place: str) -> ImageDataset:
    of_writer: dict[str, tuple[np.ndarray, np.ndarray, str]] = {}
    for path in files:
        for writer, images, labels in _read_file(card, path):
            if writer in of_writer:
                raise DataError(f"{path}: writer {writer} is also in {of_writer[writer][2]}: remove one of them.")
            of_writer[writer] = images, labels, path.name
    if not of_writer:
        raise DataError(f"{place}: no writer has an image: {_REMEDY}.")
    writers = sorted(of_writer)
    images = np.concatenate([of_writer[writer][0] for writer in writers])
    return ImageDataset(
        torch.from_numpy(images.reshape(-1, 1, card.size, card.size)),
        torch.from_numpy(np.concatenate([of_writer[writer][1] for writer in writers])),
        classes=card.classes,
        columns={"writer": [writer for writer in writers for _ in of_writer[writer][1]]},
        place=place,
    )


def _read_file(card: ImageCard, path: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the writers of a file that have images: name, bytes [n, size * size] and classes int64 [n]."""
    try:
        with path.open(encoding="utf-8") as stream:
            content = json.load(stream, parse_float=cache(float))  # 256 grey values, each stored once, not per pixel
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({' '.join(str(error).split())}): {_REMEDY}.") from error
    _require(content, {"users": list, "num_samples": list, "user_data": dict}, str(path))
    users, sizes, data = list(map(str, content["users"])), content["num_samples"], content["user_data"]
    if len(users) != len(sizes):
        raise DataError(f"{path} has {len(users)} users and {len(sizes)} num_samples: {_REMEDY}.")
    # LEAF lists writers with fewer than two images only in user_data, without images
    for writer in data.keys() - set(users):
        if not isinstance(data[writer], dict) or data[writer].get("y"):
            raise DataError(f"{path}: writer {writer} is in user_data, but not among the users: {_REMEDY}.")
    for writer, size in zip(users, sizes, strict=True):
        if writer not in data:
            raise DataError(f"{path}: writer {writer} is among the users twice or has no user_data: {_REMEDY}.")
        images, labels = _read_writer(card, data.pop(writer), size, f"{path}, writer {writer}")
        if len(labels):
            yield writer, images, labels


def _read_writer(card: ImageCard, data: Any, size: Any, place: str) -> tuple[np.ndarray, np.ndarray]:
    _require(data, {"x": list, "y": list}, place)
    try:
        values, classes = np.array(data["x"], dtype=np.float32), np.array(data["y"] or np.zeros(0, int))
    except (TypeError, ValueError) as error:
        raise DataError(f"{place}: its images are not lists of numbers of one length ({error}): {_REMEDY}.") from error
    if values.shape != ((len(classes), card.size**2) if len(classes) else (0,)) or len(classes) != size:
        what = f"x of shape {list(values.shape)}, {len(classes)} labels and num_samples {size}"
        raise DataError(f"{place} has {what}, for images of {card.size} x {card.size} values: {_REMEDY}.")
    outside = ~((values >= 0) & (values <= 1))  # NaN is outside too
    if outside.any():
        number, pixel = np.argwhere(outside)[0]
        raise DataError(f"{place}: image {number} has the value {values[number, pixel]:g}, not in 0..1: {_REMEDY}.")
    if classes.dtype.kind != "i" or not ((classes >= 0) & (classes < len(card.classes))).all():
        raise DataError(f"{place}: a label is not a whole number in 0..{len(card.classes) - 1}: {_REMEDY}.")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, card.size**2), classes.astype(np.int64)


def _require(content: Any, keys: Mapping[str, type], place: str) -> None:
    for key, kind in keys.items():
        if not isinstance(content, Mapping) or not isinstance(content.get(key), kind):
            raise DataError(f"{place} has no {kind.__name__} {key!r}: LEAF's files have {', '.join(keys)}; {_REMEDY}.")
