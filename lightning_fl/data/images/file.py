"""Reading of image files, of folders per class (cached as one ``.npz`` file), and of new images without labels.

CINIC-10 is published as 270,000 PNG files: opening them takes a minute from a fast disk and far longer from a slow one,
the ``.npz`` file (uncompressed, 0.8 GB) a second.
"""

import hashlib
import math
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.cards.lookup import dataset_cache
from lightning_fl.data.images.dataset import (
    REMEDY,
    ImageDataset,
    convert_channels,
    read_npz,
    read_npz_images,
    resize_images,
)
from lightning_fl.data.images.reader import PublishedImages
from lightning_fl.data.module import Split
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled
from lightning_fl.files.atomic import remove_leftovers, whole_file
from lightning_fl.files.tensors import read_numpy
from lightning_fl.files.user_file import existing_file

_THREADS = 8
_FILES_PER_TASK = 256
#: Size of a chunk of images.
_MAX_BYTES = 64 << 20


def read_images(paths: Sequence[Path], size: int, channels: int, what: str, *, resize: bool) -> Tensor:
    """Read files as bytes [n, channels, size, size], several at a time; ``what`` names their data set in messages."""
    images = torch.empty(len(paths), channels, size, size, dtype=torch.uint8)

    def read(start: int) -> None:
        for index, path in enumerate(paths[start : start + _FILES_PER_TASK], start):
            image = read_image_file(path, channels, what)
            height, width = image.shape[1:]
            if not resize and (height, width) != (size, size):
                raise DataError(f"{what}: {path} has {width} x {height} pixels, not {size} x {size}: replace it.")
            images[index] = resize_images(image[None], size)[0]

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(read, range(0, len(paths), _FILES_PER_TASK)))  # raises what a thread raised
    return images


def read_image_file(path: str | Path, channels: int, what: str) -> Tensor:
    """Read an image in any format of Pillow as bytes [channels, H, W], colours (3) or grey (1), upright."""
    from PIL import Image, ImageOps
    from torchvision.transforms.v2.functional import pil_to_tensor

    try:
        with Image.open(path) as opened:
            # Pillow clips larger values at 255, and reads only the first of several pictures; MPO is a camera's JPEG.
            if opened.mode.startswith(("I", "F")):
                raise ValueError(f"its values are not bytes but of Pillow's mode {opened.mode}; convert them to 0..255")
            if getattr(opened, "is_animated", False) and opened.format != "MPO":
                raise ValueError(f"it holds {getattr(opened, 'n_frames', 'several')} pictures")
            return pil_to_tensor(ImageOps.exif_transpose(opened).convert("RGB" if channels == 3 else "L"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{what}: {path} cannot be read as an image ({reason}): replace or remove it.") from error


def warn_of_unread_files(folder: Path, read: Collection[Path], what: str) -> None:
    """Warn of files in a folder, and below it, that are not among those read as images, except hidden ones."""
    if others := sorted(path for path in set(folder.rglob("[!.]*")).difference(read) if path.is_file()):
        kinds = Counter(path.suffix.lower() or "no suffix" for path in others)
        each = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        unread = f"files that are not read as images ({each}), such as {others[0]}"
        warnings.warn(f"{what}: {unread}. Convert images to PNG; ignore this for other files.", stacklevel=2)


def cached_images(found: PublishedImages) -> Path:
    """The file in the cache for a state of the folder: names, sizes and the latest change."""
    state = f"{found.listing_sha256} {found.newest_ns} {found.card.channels} {found.card.size}"
    return dataset_cache(found.card) / "class_folders" / f"{hashlib.sha256(state.encode()).hexdigest()}.npz"


def read_class_folders(found: PublishedImages) -> dict[Split, ImageDataset]:
    """Read the images in the order of the listing, from the cache if the folder has not changed.

    Concurrent processes wait for the first, which reads the folder. If the cache cannot be written, each reads it.
    """
    if found.num_files != (described := found.card.num_rows):
        what = f"{found.num_files:,} images, but card {found.card.name} describes {described:,}"
        rank_zero_warn(f"{found.path} has {what}: check that the archive is unpacked completely. They are used anyway.")
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
        what = f"cannot cache images in {cached.parent} ({error}), so every run reads them one by one"
        rank_zero_warn(f"{what}: free disk space, or set LIGHTNING_FL_CACHE to a writable folder.")
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


def unlabelled_images(
    source: NewSamples, reading: Reading, shape: Sequence[int], *, size: int | None, channels: int | None
) -> Iterator[Unlabelled]:
    """Read images in chunks with the column ``file``, or ``array`` and ``index``.

    They are the image files below a folder in the order of their names, or the arrays of a ``.npz`` file whose names
    end in ``images``. ``shape`` is the run's (channels, height, width); ``size`` and ``channels`` are what the run
    converted to, or ``None``.
    """
    if reading.smiles_column is not None:
        raise ConfigurationError("smiles_column: the run's data are images, not molecules; omit it.")
    rows = max(1, min(reading.rows, _MAX_BYTES // math.prod(shape)))
    if isinstance(source, str | Path) and Path(source).expanduser().is_dir():
        yield from _new_images(Path(source).expanduser(), rows, shape, size)
    elif isinstance(source, str | Path) and str(source).endswith(".npz"):
        yield from _read_arrays(existing_file(str(source), argument=""), rows, shape, size, channels)
    else:
        given = repr(str(source)) if isinstance(source, str | Path) else f"new samples of type {type(source).__name__}"
        raise ConfigurationError(f"{given}: the run's data are images; give a folder of them, or a .npz file.")


def _new_images(folder: Path, rows: int, shape: Sequence[int], size: int | None) -> Iterator[Unlabelled]:
    import pandas as pd
    from torchvision.datasets.folder import IMG_EXTENSIONS

    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMG_EXTENSIONS and path.is_file())
    if not files:
        raise DataError(f"{folder} has no images: it must have files that end in {', '.join(IMG_EXTENSIONS)}.")
    warn_of_unread_files(folder, files, str(folder))
    for start in range(0, len(files), rows):
        part = files[start : start + rows]
        images: dict[int, Tensor] = {}
        errors: dict[int, str] = {}
        for row, path in enumerate(part):
            try:
                images[row] = _fitting(read_image_file(path, shape[0], "new images")[None], shape, size, "it")
            except DataError as error:
                errors[row] = str(error)
        frame = pd.DataFrame({"file": [path.relative_to(folder).as_posix() for path in part]}, dtype=object)
        frame.index += start
        data = _dataset(torch.cat(list(images.values()))) if images else None
        yield Unlabelled(frame, data, list(images), errors)


def _read_arrays(
    path: Path, rows: int, shape: Sequence[int], size: int | None, channels: int | None
) -> Iterator[Unlabelled]:
    import pandas as pd

    found = read_numpy(path, ".npz", REMEDY, error=DataError, prefixes=("",))
    arrays = {name: read_npz_images(array, name, str(path)) for name, array in found.items() if name.endswith("images")}
    if not any(map(len, arrays.values())):
        raise DataError(f"{path} has no images: add an array 'images', uint8 [N, H, W] or [N, H, W, C].")
    done = 0
    for name, images in arrays.items():
        for start in range(0, len(images), rows):
            part = images[start : start + rows]
            converted = part if channels is None else convert_channels(part, channels)
            converted = _fitting(converted, shape, size, f"{path}: an image")
            frame = pd.DataFrame({"array": name, "index": range(start, start + len(part))})
            frame.index += done
            done += len(part)
            yield Unlabelled(frame, _dataset(converted), list(range(len(part))))


def _fitting(images: Tensor, shape: Sequence[int], size: int | None, what: str) -> Tensor:
    """Resize images [n, C, H, W] to the run's size; refuse another shape than the run's."""
    images = resize_images(images, size)
    if (given := list(images.shape[1:])) != list(shape):
        raise DataError(f"{what} has the shape {given} (channels, height, width), the run's images {list(shape)}.")
    return images


def _dataset(images: Tensor) -> TensorDataset:
    return TensorDataset(images, torch.zeros(len(images), dtype=torch.long))
