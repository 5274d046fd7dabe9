"""Lock of a study's folder: one study at a time, or several shards of it, for the jobs of a cluster's array."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.study.cells import Cell

__all__ = ["Shard", "StudyLock"]

_WHOLE = ".lock"


class StudyLock:
    """Context manager that locks a study's folder. Killed processes release their locks.

    Args:
        out: the study's folder; created if missing.
        shard: name of a shard's lock; ``None`` to lock the whole folder.
        is_compatible: whether the shard of a given lock may run at the same time.

    Raises:
        ConfigurationError: the folder is locked or cannot be written.
    """

    def __init__(
        self, out: Path, shard: str | None = None, is_compatible: Callable[[str], bool] = lambda name: False
    ) -> None:
        self._out = out
        self._path = out / (_WHOLE if shard is None else f"{_WHOLE}-{shard}")
        self._lock = FileLock(self._path)
        self._is_compatible = is_compatible

    def __enter__(self) -> "StudyLock":
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            with self.exclusive():
                self._check_others()
                self._acquire(self._lock, self._path)
                _pid_file(self._path).write_text(f"{os.getpid()}\n", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"{self._out} cannot be written: {error}. Choose another folder with --out."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _pid_file(self._path).unlink(missing_ok=True)
        self._lock.release()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Briefly keep other studies from starting and other shards from entering their own ``exclusive`` block."""
        with FileLock(self._out / ".moment.lock"):
            yield

    def _check_others(self) -> None:
        for path in sorted(self._out.glob(f"{_WHOLE}*")):
            name = path.name.removeprefix(f"{_WHOLE}-")
            if path.suffix != ".pid" and path != self._path and not self._is_compatible(name):
                other = FileLock(path)
                self._acquire(other, path)
                other.release()

    def _acquire(self, lock: FileLock, path: Path) -> None:
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ConfigurationError(
                f"{self._out} is in use by the study of process {_holder(path)}: wait for it, or choose another folder"
                " with --out."
            ) from error


def _pid_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.pid")


def _holder(path: Path) -> str:
    """Process id of a lock's owner."""
    try:
        return _pid_file(path).read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class Shard:
    """The shard ``number`` of ``count`` of a study's cells, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse "i/n".

        Raises:
            ConfigurationError: another format, or i is not in 1 to n.
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigurationError(
                f"--shard {text}: write i/n with i from 1 to n, such as 2/8 for the second of eight; with SLURM's"
                " --array=1-8 it is $SLURM_ARRAY_TASK_ID/8."
            )
        return cls(int(match[1]), int(match[2]))

    def select(self, cells: Sequence[Cell]) -> list[Cell]:
        """Its cells, finished ones included: every n-th, starting with the i-th."""
        return list(cells[self.number - 1 :: self.count])

    def lock_name(self, cells: Sequence[Cell]) -> str:
        """Name of its lock, unique among the shards of the same cells."""
        return f"{self._split(cells)}-{self.number}"

    def is_compatible(self, lock_name: str, cells: Sequence[Cell]) -> bool:
        """Whether a lock belongs to another shard of the same cells."""
        split, _, number = lock_name.rpartition("-")
        return split == self._split(cells) and number != str(self.number)

    def _split(self, cells: Sequence[Cell]) -> str:
        names = "\n".join(cell.folder.name for cell in cells)
        return f"{self.count}-{hashlib.blake2b(names.encode(), digest_size=5).hexdigest()}"
