"""Files that are there whole or not at all, whatever interrupts their writing. Imports nothing heavy."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["link_whole", "remove_leftovers", "whole_file", "write_whole"]

_PREFIX, _SUFFIX = ".", ".tmp"


@contextlib.contextmanager
def whole_file(path: Path, *, by_several: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to that takes its name, in one step, when all of it is on the disk; its folder is made.

    A kill meanwhile leaves at most ``.NAME.tmp`` beside it, which the next to write the file replaces.

    Args:
        path: of the file.
        by_several: other processes may be writing the same file: the last of them has it. What a kill leaves then goes
            by :func:`remove_leftovers`.

    Raises:
        OSError: the disk is full or the folder cannot be written; what was there before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path, f".{secrets.token_hex(4)}" if by_several else "")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("wb") as file:
            _claim(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, or replace it, in one step; see :func:`whole_file`.

    What UTF-8 cannot say of a text, as of a name that was no text, is written as Python escapes it.

    Raises:
        OSError: the disk is full or the folder cannot be written; what was there before is untouched.
    """
    with whole_file(path) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def link_whole(source: Path, target: Path) -> None:
    """Make a file, or replace it, by another name for a file that is there, or by a copy where disks have no links.

    Raises:
        OSError: the disk is full or the folder cannot be written; what was there before is untouched.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(target)
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links, or another one
        with source.open("rb") as content, whole_file(target) as file:
            shutil.copyfileobj(content, file)
        return
    os.replace(temporary, target)
    temporary.unlink(missing_ok=True)  # it stays where both were names of one file


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed left in a folder and below it; nothing that is being written.

    Raises:
        OSError: the folder cannot be written.
    """
    for temporary in folder.rglob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError), temporary.open("rb") as file:
            if _claim(file):
                temporary.unlink(missing_ok=True)


def _temporary(path: Path, writer: str = "") -> Path:
    return path.with_name(f"{_PREFIX}{path.name}{writer}{_SUFFIX}")


def _claim(file: IO[bytes]) -> bool:
    """Make this process the one that writes a file; whether no other one does. The system ends it with the process."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
