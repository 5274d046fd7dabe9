"""One study at a time in a folder."""

import os
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from lightning_fl.errors import ConfigurationError

__all__ = ["StudyLock"]


class StudyLock:
    """Holds a study's folder while it is run; a context. The lock of a process that was killed is free again.

    Args:
        out: the study's folder; it is made.

    Raises:
        ConfigurationError: another study is run in the folder, or the folder cannot be written.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._lock = FileLock(out / ".lock")
        self._holder = out / ".lock.pid"

    def __enter__(self) -> "StudyLock":
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            self._holder.write_text(f"{os.getpid()}\n", encoding="utf-8")
        except Timeout as error:
            holder = self._holder.read_text(encoding="utf-8").strip() if self._holder.is_file() else "unknown"
            raise ConfigurationError(
                f"{self._out} is in use by the study of process {holder}: wait for it, or give another folder with"
                " --out."
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"{self._out} cannot be written: {error}. Give another folder with --out."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holder.unlink(missing_ok=True)
        self._lock.release()
