"""Tiny image files of every kind that is read."""

import struct
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
