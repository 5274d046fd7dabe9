"""Tiny image files of every kind that is read."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def pictures(count: int, size: int = 8, channels: int = 1, seed: int = 0) -> np.ndarray:
    """Random bytes [count, size, size] or [count, size, size, 3]."""
    shape = (count, size, size) if channels == 1 else (count, size, size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def cycle(count: int, num_classes: int = 3) -> np.ndarray:
    """Labels 0, 1, 2, 0, ..."""
    return np.arange(count, dtype=np.uint8) % num_classes


def write_npz(
    path: Path, train: int = 60, test: int = 30, *, size: int = 8, channels: int = 1, **extra: object
) -> Path:
    """A file in MedMNIST's layout with three classes."""
    arrays: dict[str, object] = {
        "train_images": pictures(train, size, channels),
        "train_labels": cycle(train)[:, None],
    }
    if test:
        arrays |= {"test_images": pictures(test, size, channels, 1), "test_labels": cycle(test)[:, None]}
    np.savez(path, **(arrays | extra))  # type: ignore[arg-type]
    return path


def write_idx(path: Path, array: np.ndarray) -> None:
    """A file in MNIST's format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes())


def write_mnist(root: Path, name: str = "MNIST", train: int = 12, test: int = 6) -> None:
    """MNIST's files in torchvision's layout."""
    for part, count in (("train", train), ("t10k", test)):
        write_idx(root / name / "raw" / f"{part}-images-idx3-ubyte", pictures(count, 28, seed=count))
        write_idx(root / name / "raw" / f"{part}-labels-idx1-ubyte", cycle(count, 10))


def leaf_content(writers: Mapping[str, int], seed: int = 0, num_classes: int = 62) -> dict[str, object]:
    """A file of LEAF's FEMNIST: so many images of every writer, which depend on the writer and the seed only."""
    data = {}
    for writer, count in writers.items():
        grey = pictures(count, 28, seed=sum(writer.encode()) + seed).reshape(count, 784)
        labels = [(number + len(writer)) % num_classes for number in range(count)]
        data[writer] = {"x": (grey / 255).tolist(), "y": labels}
    return {"users": list(writers), "num_samples": list(writers.values()), "user_data": data}


def write_leaf(folder: Path, parts: Mapping[str, Sequence[Mapping[str, int]]], **kwargs: int) -> Path:
    """LEAF's folders: for every part the files, each with so many images of its writers."""
    for number, (part, files) in enumerate(parts.items()):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for index, writers in enumerate(files):
            path = folder / part / f"all_data_{index}_niid_0_keep_0_{part}_9.json"
            path.write_text(json.dumps(leaf_content(writers, 1000 * number, **kwargs)))
    return folder


CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_cinic10(folder: Path, per_class: int = 2, size: int = 32) -> Path:
    """CINIC-10's folders; every second image is grey."""
    from PIL import Image

    for number, part in enumerate(("train", "valid", "test")):
        for label, name in enumerate(CINIC_CLASSES):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for index in range(per_class):
                (array,) = pictures(1, size, 1 if index % 2 else 3, seed=100 * number + 10 * label + index)
                Image.fromarray(array).save(folder / part / name / f"n0{index}_{label}.png")
    return folder
