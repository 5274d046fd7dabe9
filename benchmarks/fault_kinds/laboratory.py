"""What trials share: the Python that is tried, folders, and runs that nothing disturbs."""

import shutil
import threading
from pathlib import Path
from typing import Any

from fault_kinds.warm_python import Started, WarmPython

__all__ = ["Laboratory"]


#: Seconds after its end within which what a command has started has ended, too.
_GRACE = 10.0


class Laboratory:
    """Starts commands and sees that none is left.

    Args:
        python: interpreter of the installation that is tried.
        scratch: a folder of its own.
        keep: leave the folders of trials.
    """

    def __init__(self, python: str, scratch: Path, *, keep: bool = False) -> None:
        self.scratch = scratch
        self.keep = keep
        self.python = WarmPython(python, scratch)
        self._started: list[Started] = []
        self._once: dict[str, Any] = {}
        self._lock = threading.Lock()

    def folder(self, kind: str, seed: int) -> Path:
        """A new folder for a trial."""
        path = self.scratch / f"{kind}_{seed}"
        for left in (path, self.logs(path)):
            shutil.rmtree(left, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    @staticmethod
    def logs(folder: Path) -> Path:
        """Where the outputs and temporary files of a folder's commands are."""
        return folder.parent / f"{folder.name}.logs"

    def start(
        self,
        words: list[str],
        folder: Path,
        more: dict[str, str] | None = None,
        *,
        real: bool = False,
        inside: str = ".",
    ) -> Started:
        """Start ``python WORDS`` in a trial's folder, or ``inside`` a folder of it."""
        started = self.python.start(words, folder, more, real=real, inside=inside)
        with self._lock:
            self._started.append(started)
        return started

    def once(self, name: str, make: Any) -> Any:
        """What ``make()`` returns, made once for all trials."""
        with self._lock:
            lock = self._once.setdefault(f"{name} lock", threading.Lock())
        with lock:
            if name not in self._once:
                self._once[name] = make()
            return self._once[name]

    def clean(self, folder: Path) -> list[int]:
        """End what a trial left running and remove its folder; the numbers of processes that were left."""
        with self._lock:
            mine = [one for one in self._started if one._out.parent == self.logs(folder)]
            self._started = [one for one in self._started if one not in mine]
        # Servers that a command has started end when they find that it is gone.
        left = [pid for one in mine if not one.all_ended(_GRACE) for pid in one.session()]
        for one in mine:
            one.kill_all()
        if not self.keep:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(self.logs(folder), ignore_errors=True)
        return left

    def close(self) -> None:
        """End everything."""
        for one in self._started:
            one.kill_all()
        self.python.close()
