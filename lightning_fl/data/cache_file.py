"""Files of the cache, which are there whole or not at all."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

__all__ = ["write_cached"]

_ENDING = ".tmp"
#: Nothing is written for so long: what is older was left by a process that was killed.
_LEFT_AFTER_SECONDS = 86_400.0


def write_cached(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file of the cache in one step, and remove what killed processes have left beside it.

    Args:
        path: of the file; its folder is made.
        write: writes the content to a stream.

    Raises:
        OSError: the disk is full or the folder cannot be written; what was there before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"*{_ENDING}"):
        if left.stat().st_mtime < time.time() - _LEFT_AFTER_SECONDS:
            left.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=_ENDING, delete=False) as stream:
        try:
            write(stream)
            stream.flush()
            os.replace(stream.name, path)
        except BaseException:
            os.unlink(stream.name)
            raise
