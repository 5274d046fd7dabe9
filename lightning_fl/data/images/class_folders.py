"""Reading of images in a folder per class, cached as one ``.npz`` file.

CINIC-10 is published as 270,000 PNG files: opening them takes a minute from a fast disk and far longer from a slow one,
the ``.npz`` file (uncompressed, 0.8 GB) a second.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.images import ImageCard
from lightning_fl.data.cards.lookup import dataset_cache, rank_zero_info, rank_zero_warn
from lightning_fl.data.images.dataset import ImageDataset, read_npz
from lightning_fl.data.images.file import read_image_file
from lightning_fl.data.images.listing import FolderListing
from lightning_fl.data.module import Split
from lightning_fl.files.atomic import remove_leftovers, whole_file

__all__ = ["cached_images", "read_class_folders"]

_THREADS = 8
_FILES_PER_TASK = 256
_REPORT_FROM = 10_000
_DEADLINE_SECONDS = 1800.0


def cached_images(card: ImageCard, listing: FolderListing) -> Path:
    """Return the file in the cache for a state of the folder: names, sizes and the latest change."""
    state = f"{listing.sha256} {listing.newest_ns}"
    return dataset_cache(card) / "class_folders" / f"{hashlib.sha256(state.encode()).hexdigest()}.npz"


def read_class_folders(card: ImageCard, listing: FolderListing) -> dict[Split, ImageDataset]:
    """Read the images in the order of the listing, from the cache if the folder has not changed.

    Concurrent processes wait for the first, which reads the folder. If the cache cannot be written, each reads it.

    Raises:
        DataError: a file is damaged or has another size than the card's. The message names it.
    """
    if listing.num_files != card.num_rows:
        rank_zero_warn(
            f"{listing.path} has {listing.num_files:,} images, but card {card.name} describes {card.num_rows:,}: check"
            " that the archive is unpacked completely. They are used anyway."
        )
    cached = cached_images(card, listing)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(cached.parent / "lock", timeout=_DEADLINE_SECONDS):
            return _from_cache(card, listing, cached) or _read_and_keep(card, listing, cached)
    except Timeout:
        rank_zero_warn(
            f"another process has been reading {listing.path} for more than {_DEADLINE_SECONDS:g} s, so this one reads"
            f" it too: remove {cached.parent / 'lock'} if there is no such process."
        )
    except OSError as error:
        _warn_of_cache(cached, error)
    return _read_folder(card, listing)


def _from_cache(card: ImageCard, listing: FolderListing, cached: Path) -> dict[Split, ImageDataset] | None:
    if not cached.is_file():
        return None
    try:
        parts = read_npz(cached, classes=card.classes, place=str(listing.path))
    except DataError as error:
        rank_zero_warn(f"{cached} is damaged, so the images are read from {listing.path} again: {error}")
        return None
    return parts


def _read_and_keep(card: ImageCard, listing: FolderListing, cached: Path) -> dict[Split, ImageDataset]:
    parts = _read_folder(card, listing)
    try:
        remove_leftovers(cached.parent)
        for older in cached.parent.glob("*.npz"):  # of earlier states of the folder
            older.unlink()
        with whole_file(cached, by_several=True) as file:  # a process whose wait timed out may write it too
            np.savez(file, **_arrays(parts))  # type: ignore[arg-type]
    except OSError as error:
        _warn_of_cache(cached, error)
    return parts


def _warn_of_cache(cached: Path, error: OSError) -> None:
    rank_zero_warn(
        f"cannot cache images in {cached.parent} ({error}), so every run reads them one by one: free disk space, or set"
        " LIGHTNING_FL_CACHE to a writable folder."
    )


def _read_folder(card: ImageCard, listing: FolderListing) -> dict[Split, ImageDataset]:
    if listing.num_files > _REPORT_FROM:
        rank_zero_info(f"Reading {listing.num_files:,} images in {listing.path}")
    places = {name: number for number, name in enumerate(card.classes)}
    parts: dict[Split, ImageDataset] = {}
    for split, names in listing.parts.items():
        parts[split] = ImageDataset(  # type: ignore[index]
            _read_images(card, listing.path, names),
            torch.tensor([places[name.split("/")[-2]] for name in names]),
            classes=card.classes,
            place=f"{listing.path}, {split} part",
        )
    return parts


def _read_images(card: ImageCard, folder: Path, names: Sequence[str]) -> torch.Tensor:
    """Read files as bytes [n, C, size, size], several at a time, for disks with high latency."""
    images = torch.empty(len(names), card.channels, card.size, card.size, dtype=torch.uint8)

    def read(start: int) -> None:
        for index in range(start, min(start + _FILES_PER_TASK, len(names))):
            image = read_image_file(folder / names[index], card.channels, f"data set {card.name}")
            height, width = image.shape[1:]
            if (height, width) != (card.size, card.size):
                raise DataError(
                    f"data set {card.name}: {folder / names[index]} has {width} x {height} pixels, but must have"
                    f" {card.size} x {card.size}: replace or remove it."
                )
            images[index] = image

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for _ in pool.map(read, range(0, len(names), _FILES_PER_TASK)):
            pass  # raises what a thread raised
    return images


def _arrays(parts: dict[Split, ImageDataset]) -> dict[str, np.ndarray]:
    """Arrays of a file in MedMNIST's layout."""
    arrays: dict[str, np.ndarray] = {}
    for split, part in parts.items():
        arrays[f"{split}_images"] = part.images.permute(0, 2, 3, 1).numpy()
        arrays[f"{split}_labels"] = part.targets.numpy()
    return arrays
