"""Reading of images in a folder per class, cached as one ``.npz`` file.

CINIC-10 is published as 270,000 PNG files: opening them takes a minute from a fast disk and far longer from a slow one,
the ``.npz`` file (uncompressed, 0.8 GB) a second.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from lightning_fl.data.cards.lookup import dataset_cache, rank_zero_info, rank_zero_warn
from lightning_fl.data.images.dataset import ImageDataset
from lightning_fl.data.images.file import read_images
from lightning_fl.data.images.npz import read_npz
from lightning_fl.data.images.reader import PublishedImages
from lightning_fl.data.module import Split
from lightning_fl.files.atomic import remove_leftovers, whole_file


def cached_images(found: PublishedImages) -> Path:
    """The file in the cache for a state of the folder: names, sizes and the latest change."""
    state = f"{found.listing_sha256} {found.newest_ns}"
    return dataset_cache(found.card) / "class_folders" / f"{hashlib.sha256(state.encode()).hexdigest()}.npz"


def read_class_folders(found: PublishedImages) -> dict[Split, ImageDataset]:
    """Read the images in the order of the listing, from the cache if the folder has not changed.

    Concurrent processes wait for the first, which reads the folder. If the cache cannot be written, each reads it.
    """
    if found.num_files != found.card.num_rows:
        rank_zero_warn(
            f"{found.path} has {found.num_files:,} images, but card {found.card.name} describes"
            f" {found.card.num_rows:,}: check that the archive is unpacked completely. They are used anyway."
        )
    cached, parts = cached_images(found), None
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(cached.parent / "lock"):
            if cached.is_file():
                return read_npz(cached, classes=found.card.classes)
            parts = _read_folder(found)
            remove_leftovers(cached.parent)
            for older in cached.parent.glob("*.npz"):  # of earlier states of the folder
                older.unlink()
            arrays = {f"{split}_images": part.images.permute(0, 2, 3, 1).numpy() for split, part in parts.items()}
            arrays |= {f"{split}_labels": part.targets.numpy() for split, part in parts.items()}
            with whole_file(cached) as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        rank_zero_warn(
            f"cannot cache images in {cached.parent} ({error}), so every run reads them one by one: free disk space, or"
            " set LIGHTNING_FL_CACHE to a writable folder."
        )
    return parts or _read_folder(found)


def _read_folder(found: PublishedImages) -> dict[Split, ImageDataset]:
    rank_zero_info(f"Reading {found.num_files:,} images in {found.path}")
    card, numbers = found.card, {name: number for number, name in enumerate(found.card.classes)}
    return {
        split: ImageDataset(
            read_images(files, card.size, card.channels, f"data set {card.name}", resize=False),
            torch.tensor([numbers[path.parent.name] for path in files]),
            classes=card.classes,
            place=f"{found.path}, {split} part",
        )
        for split, files in found.parts.items()
    }
