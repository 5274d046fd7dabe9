"""Atomic writes: a file is complete or absent, whatever interrupts. Imports nothing heavy."""

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

_PREFIX, _SUFFIX = ".", ".tmp"


@contextlib.contextmanager
def whole_file(path: Path, *, by_several: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces ``path`` in one step when the block ends. Creates the folder.

    A kill leaves at most ``.NAME.tmp`` in the folder, which the next writer replaces. With ``by_several``, several
    processes may write the file at once, and the last wins; then only :func:`remove_leftovers` removes what a kill
    leaves. After an ``OSError`` the previous file is untouched.
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
    """Write or replace a file in one step; lone surrogates, which UTF-8 cannot encode, are escaped as in Python."""
    with whole_file(path) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def link_whole(source: Path, target: Path) -> None:
    """Write or replace a file as a hard link to another, or as a copy where links do not work."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(target)
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # no hard links here, or another file system
        with source.open("rb") as content, whole_file(target) as file:
            shutil.copyfileobj(content, file)
        return
    os.replace(temporary, target)
    temporary.unlink(missing_ok=True)  # os.replace keeps it if both were links to one file


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed writers in a folder and below it."""
    for temporary in folder.rglob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError), temporary.open("rb") as file:
            if _claim(file):
                temporary.unlink(missing_ok=True)


def _temporary(path: Path, writer: str = "") -> Path:
    return path.with_name(f"{_PREFIX}{path.name}{writer}{_SUFFIX}")


def _claim(file: IO[bytes]) -> bool:
    """Lock a file until this process ends or closes it; false if another process holds the lock."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
