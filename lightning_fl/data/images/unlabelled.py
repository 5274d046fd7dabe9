"""New images without labels: the files of a folder, or the arrays of a ``.npz`` file."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.images.dataset import convert_channels, resize_images
from lightning_fl.data.images.file import read_image_file, warn_of_unread_files
from lightning_fl.data.images.npz import REMEDY, read_npz_images
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled
from lightning_fl.files.tensors import read_numpy
from lightning_fl.files.user_file import existing_file

#: Size of a chunk of images.
_MAX_BYTES = 64 << 20


def unlabelled_images(
    source: NewSamples, reading: Reading, shape: Sequence[int], *, size: int | None, channels: int | None
) -> Iterator[Unlabelled]:
    """Read images in chunks with the column ``file``, or ``array`` and ``index``.

    Args:
        source: a folder, whose image files at any depth are read in the order of their names, or a ``.npz`` file, whose
            arrays with names that end in ``images`` are read.
        reading: largest number of rows of a chunk.
        shape: channels, height and width in the run.
        size: resize images to it; ``None`` if the run did not resize.
        channels: convert images to it; ``None`` if the run did not convert.
    """
    if reading.smiles_column is not None:
        raise ConfigurationError("smiles_column: the run's data are images, not molecules; omit it.")
    rows = max(1, min(reading.rows, _MAX_BYTES // math.prod(shape)))
    if isinstance(source, str | Path) and Path(source).expanduser().is_dir():
        yield from _read_folder(Path(source).expanduser(), rows, shape, size)
    elif isinstance(source, str | Path) and str(source).endswith(".npz"):
        yield from _read_arrays(existing_file(str(source), argument=""), rows, shape, size, channels)
    else:
        given = repr(str(source)) if isinstance(source, str | Path) else f"new samples of type {type(source).__name__}"
        raise ConfigurationError(f"{given}: the run's data are images; give a folder of them, or a .npz file.")


def _read_folder(folder: Path, rows: int, shape: Sequence[int], size: int | None) -> Iterator[Unlabelled]:
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
        raise DataError(
            f"{path} has no images: name one of its arrays images, uint8 of shape [N, H, W] or [N, H, W, C]."
        )
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
    if size is not None and list(images.shape[2:]) != [size, size]:
        images = resize_images(images, size)
    if list(images.shape[1:]) != list(shape):
        raise DataError(
            f"{what} has the shape {list(images.shape[1:])} (channels, height, width), the run's images {list(shape)}."
        )
    return images


def _dataset(images: Tensor) -> TensorDataset:
    return TensorDataset(images, torch.zeros(len(images), dtype=torch.long))
