"""New images without labels: the files of a folder, or the arrays of a ``.npz`` file."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.images.dataset import ImageDataset, resize_images
from lightning_fl.data.images.file import read_image_file
from lightning_fl.data.images.listing import warn_of_unread_files
from lightning_fl.data.images.npz import REMEDY, read_npz_images
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled
from lightning_fl.files.tensors import read_numpy
from lightning_fl.files.user_file import existing_file

__all__ = ["unlabelled_images"]

#: Size of a chunk of images.
_MAX_BYTES = 64 << 20


def unlabelled_images(
    source: NewSamples, reading: Reading, shape: Sequence[int], *, size: int | None, channels: int | None
) -> Iterator[Unlabelled]:
    """Read images in chunks.

    Args:
        source: a folder, whose image files at any depth are read in the order of their names, or a ``.npz`` file, whose
            arrays with names that end in ``images`` are read.
        reading: largest number of rows of a chunk.
        shape: channels, height and width in the run.
        size: resize images to it; ``None`` if the run did not resize.
        channels: convert images to it; ``None`` if the run did not convert.

    Yields:
        Chunks with the column ``file``, or ``array`` and ``index``.

    Raises:
        ConfigurationError: the source is of another kind.
        DataError: the folder or file does not exist, is damaged or has no image, or the images have another shape than
            the run's.
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
    names = [path.relative_to(folder).as_posix() for path in files]
    for start in range(0, len(files), rows):
        part = range(start, min(start + rows, len(files)))
        images: list[Tensor] = []
        kept: list[int] = []
        errors: dict[int, str] = {}
        for row, number in enumerate(part):
            try:
                image = _resize(read_image_file(files[number], shape[0], "new images")[None], shape, size)
            except DataError as error:
                errors[row] = str(error)
                continue
            images.append(image[0])
            kept.append(row)
        frame = pd.DataFrame({"file": names[part.start : part.stop]}, index=part, dtype=object)
        yield Unlabelled(frame, _dataset(torch.stack(images)) if images else None, kept, errors)


def _read_arrays(
    path: Path, rows: int, shape: Sequence[int], size: int | None, channels: int | None
) -> Iterator[Unlabelled]:
    import pandas as pd

    arrays = {
        name: read_npz_images(array, name, str(path))
        for name, array in read_numpy(path, ".npz", REMEDY, error=DataError, prefixes=("",)).items()
        if name.endswith("images")
    }
    if not any(map(len, arrays.values())):
        raise DataError(
            f"{path} has no images: name one of its arrays images, uint8 of shape [N, H, W] or [N, H, W, C]."
        )
    done = 0
    for name, images in arrays.items():
        for start in range(0, len(images), rows):
            part = images[start : start + rows]
            labels = torch.zeros(len(part), dtype=torch.long)
            converted = ImageDataset(part, labels, classes=["none"]).converted(size=size, channels=channels).images
            if list(converted.shape[1:]) != list(shape):
                raise DataError(
                    f"{path}: the images have the shape {list(converted.shape[1:])} (channels, height, width), but"
                    f" those of the run {list(shape)}: convert them first."
                )
            frame: pd.DataFrame = pd.DataFrame({"array": name, "index": range(start, start + len(part))})
            frame.index = range(done, done + len(part))  # type: ignore[assignment]
            done += len(part)
            yield Unlabelled(frame, _dataset(converted), list(range(len(part))))


def _resize(image: Tensor, shape: Sequence[int], size: int | None) -> Tensor:
    """Resize an image [1, C, H, W] to the run's size.

    Raises:
        DataError: it has another size, and the run resized none.
    """
    if list(image.shape[1:]) == list(shape):
        return image
    if size is None:
        raise DataError(
            f"it has {image.shape[2]} x {image.shape[3]} pixels, the run's images {shape[1]} x {shape[2]}: resize it"
        )
    return resize_images(image, size)


def _dataset(images: Tensor) -> TensorDataset:
    return TensorDataset(images, torch.zeros(len(images), dtype=torch.long))
