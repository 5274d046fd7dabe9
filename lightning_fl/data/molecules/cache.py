"""What is computed of molecules once and kept on disk."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.core.errors import DataError
from lightning_fl.files.atomic import remove_leftovers, whole_file
from lightning_fl.files.tensors import read_torch

__all__ = ["load_or_make"]

T = TypeVar("T")


def load_or_make(
    cache: Path | None, key: str, make: Callable[[], T], pack: Callable[[T], Any], unpack: Callable[[Any], T]
) -> T:
    """A value from the cache, else made and kept there.

    A damaged entry is made again, a folder that cannot be written is done without; both are said.

    Args:
        cache: folder; ``None`` to keep nothing.
        key: name of the entry.
        make: computes the value.
        pack: the value as tensors and plain values.
        unpack: the value of what ``pack`` gave; an error says that it is damaged.
    """
    if cache is None:
        return make()
    path = cache / f"{key}.pt"
    try:
        if not path.exists():
            raise FileNotFoundError(path)
        return unpack(read_torch(path, "a file of features", "They are made again.", error=DataError))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # nothing is there yet; what is wrong with the folder is said below
    except Exception as error:  # whatever its bytes lead to
        rank_zero_warn(f"cached features {path} are damaged ({type(error).__name__}) and are made again.")
    value = make()
    content = io.BytesIO()  # torch.save says in words of its own what is wrong with a disk
    torch.save(pack(value), content)
    try:
        remove_leftovers(cache)
        with whole_file(path, by_several=True) as file:
            file.write(content.getbuffer())
    except OSError as error:
        rank_zero_warn(
            f"cannot keep features in {cache} ({error}), so they are computed in every run: set LIGHTNING_FL_CACHE to "
            "a folder that can be written."
        )
    return value
