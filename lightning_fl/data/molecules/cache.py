"""Cache on disk of values that are computed once per set of molecules."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.core.errors import DataError
from lightning_fl.files.atomic import remove_leftovers, whole_file
from lightning_fl.files.tensors import read_torch

T = TypeVar("T")


def load_or_compute(cache: Path | None, versions: str, smiles: Sequence[str], compute: Callable[[], T]) -> T:
    """Load a value from a folder (``None`` for none), or compute and store it.

    Warns of a damaged entry, which is computed again, and of a folder that cannot be written, which is not used. The
    kind of value, the ``versions`` of the software and the molecules are the key of the entry; ``compute`` returns
    tensors and plain values, as ``torch.save`` stores them without classes.
    """
    if cache is None:
        return compute()
    key = hashlib.sha256(json.dumps([versions, list(smiles)]).encode()).hexdigest()
    path = cache / f"{key}.pt"
    try:
        if not path.exists():
            raise FileNotFoundError(path)
        return read_torch(path, "a file of features", "They are computed again.", error=DataError)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # there is no entry yet; writing it reports what is wrong with the folder
    except DataError as error:
        rank_zero_warn(f"cached features {path} are damaged ({type(error).__name__}) and are computed again.")
    value = compute()
    content = io.BytesIO()  # in memory first: torch.save hides errors of the disk behind its own
    torch.save(value, content)
    try:
        remove_leftovers(cache)
        with whole_file(path, by_several=True) as file:
            file.write(content.getbuffer())
    except OSError as error:
        rank_zero_warn(
            f"cannot write features to {cache} ({error}), so every run computes them again: set LIGHTNING_FL_CACHE to a"
            " writable folder."
        )
    return value
