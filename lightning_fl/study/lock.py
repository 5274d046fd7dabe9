"""One study at a time in a folder, or several shares of one."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from lightning_fl.core.errors import ConfigurationError

__all__ = ["StudyLock"]

_WHOLE = ".lock"


class StudyLock:
    """Holds a study's folder while it is run; a context. The lock of a process that was killed is free again.

    Args:
        out: the study's folder; it is made.
        share: the name of a share's lock; ``None`` to hold the whole folder.
        is_beside: whether a share of some name may be run at the same time.

    Raises:
        ConfigurationError: another study is run in the folder, or the folder cannot be written.
    """

    def __init__(
        self, out: Path, share: str | None = None, is_beside: Callable[[str], bool] = lambda name: False
    ) -> None:
        self._out = out
        self._path = out / (_WHOLE if share is None else f"{_WHOLE}-{share}")
        self._lock = FileLock(self._path)
        self._is_beside = is_beside

    def __enter__(self) -> "StudyLock":
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            with self.moment():
                self._check_others()
                self._acquire(self._lock, self._path)
                _pid_file(self._path).write_text(f"{os.getpid()}\n", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"{self._out} cannot be written: {error}. Give another folder with --out."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _pid_file(self._path).unlink(missing_ok=True)
        self._lock.release()

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Be alone in the folder with what takes a moment: no other study begins, no other share does the same."""
        with FileLock(self._out / ".moment.lock"):
            yield

    def _check_others(self) -> None:
        for path in sorted(self._out.glob(f"{_WHOLE}*")):
            name = path.name.removeprefix(f"{_WHOLE}-")
            if path.suffix != ".pid" and path != self._path and not self._is_beside(name):
                other = FileLock(path)
                self._acquire(other, path)
                other.release()

    def _acquire(self, lock: FileLock, path: Path) -> None:
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ConfigurationError(
                f"{self._out} is in use by the study of process {_holder(path)}: wait for it, or give another folder"
                " with --out."
            ) from error


def _pid_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.pid")


def _holder(path: Path) -> str:
    """The process that holds a lock."""
    try:
        return _pid_file(path).read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"
