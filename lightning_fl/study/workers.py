"""Runs the cells of a study, several at once, each in a process of its own that is forked from a warm server."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.interrupt import InterruptGuard, end_with_this_process
from lightning_fl.study.cells import Cell
from lightning_fl.study.display import StudyDisplay
from lightning_fl.study.forked import check_settings, run_cell, start_worker, visible_gpus
from lightning_fl.study.schedule import known_seconds, next_cell, seconds_left

__all__ = ["Job", "Workers", "usable_cores"]

#: How often the watcher is told how far the running cells are.
_TICK_SECONDS = 1.0
#: How long a cell that was asked to stop may take to finish its round and save it.
_GRACE_SECONDS = 60.0


@dataclass
class Job:
    """A cell that runs: what runs it, since when, and which of so many at once it is."""

    cell: Cell
    handle: Any
    began: float
    slot: int = 0


class _Server:
    """The process from which workers are forked; it would import to its end, for seconds, after the study is gone."""

    def kill(self) -> None:
        """End it at once, if it runs."""
        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Workers:
    """Processes that run cells.

    Where there are GPUs, and some cell may use one, each of several workers has one of them to itself or shares it with
    others, in turn; a single worker has all.

    Args:
        num_workers: cells at once; ``None`` for as many as there are GPUs, or cores where cells use none.
        cells: what is to be run.

    Raises:
        ConfigurationError: ``num_workers`` is below 1, or the system cannot fork.
    """

    def __init__(self, num_workers: int | None, cells: Sequence[Cell] = ()) -> None:
        if num_workers is not None and num_workers < 1:
            raise ConfigurationError(f"--workers={num_workers}: give a number of at least 1.")
        if "forkserver" not in multiprocessing.get_all_start_methods():
            raise ConfigurationError(
                "lightning-fl study forks its workers, which this system cannot: use Linux or macOS."
            )
        if os.getcwd() not in sys.path:  # modules of the user's own, which workers find as `fit` does
            sys.path.append(os.getcwd())
        self._guard = InterruptGuard()
        self._asked: float | None = None
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["lightning_fl.study.warm"])
        self._jobs: list[Job] = []
        end_with_this_process([_Server()])
        self._gpus = self._find_gpus() if any(cell.accelerator != "cpu" for cell in cells) else []
        self.num_workers = num_workers or len(self._gpus) or usable_cores()

    def _find_gpus(self) -> list[str]:
        """Asked in a process of its own: a GPU that is open here or in the server would be of no use to forks."""
        with _one_thread_each(), _executor(1, self._context) as executor:
            return executor.submit(visible_gpus).result()

    def check(self, cells: Sequence[Cell]) -> None:
        """Parse and instantiate one cell of every variant: a fault in the last is known before the first is run.

        Raises:
            ConfigurationError: what is wrong, a fault a line.
        """
        firsts = list({cell.variant: cell for cell in reversed(cells)}.values())[::-1]
        for cell in firsts:
            cell.prepare()
        workers = min(self.num_workers, usable_cores(), len(firsts))
        with _one_thread_each(), _executor(workers, self._context) as executor:
            try:
                faults = list(executor.map(check_settings, [cell.words() for cell in firsts]))
            except BrokenProcessPool as error:
                raise ConfigurationError(f"the recipes cannot be checked: a worker died ({error}).") from error
        said = [
            f"{cell.name.rpartition(', ')[0]}: {line}"
            for cell, fault in zip(firsts, faults, strict=True)
            for line in (fault or "").splitlines()
        ]
        if said:
            raise ConfigurationError("\n".join(said))

    def run(
        self,
        cells: Sequence[Cell],
        watcher: StudyDisplay,
        known: Sequence[Cell],
        commit: str,
        check: Callable[[Cell], None] = lambda cell: None,
    ) -> None:
        """Run cells until all have ended or a signal came (:attr:`interrupted_by`).

        The first SIGINT or SIGTERM lets the running cells finish their round and save it; a second one ends all.

        Args:
            cells: what to run; one that is done meanwhile is left out.
            watcher: is told what happens.
            known: whose times tell how long others take; all cells of the study.
            commit: of the package, put down with every attempt.
            check: looks at every cell that has ended; what it raises ends the study, and kills what runs.
        """
        pending = list(cells)
        seconds = known_seconds(known)
        with _one_thread_each(), self._guard:
            try:
                while self._jobs or (pending and not self.interrupted_by):
                    while pending and not self.interrupted_by and len(self._jobs) < self.num_workers:
                        cell = next_cell(pending, [job.cell for job in self._jobs], seconds)
                        pending.remove(cell)
                        if cell.finished() is None:
                            cell.prepare()
                            resumed = cell.resumable()
                            cell.note_start(resumed, commit)
                            if self._start(cell):
                                watcher.started(cell, resumed)
                    for job, code in self._ended():
                        self._jobs.remove(job)
                        took = time.monotonic() - job.began
                        if code == 0 or not self.interrupted_by:  # one that was asked to stop did not fail
                            job.cell.note_end(took, code)
                        seconds = known_seconds(known)
                        watcher.ended(job.cell, took, self._left(pending, seconds))
                        check(job.cell)
                    if self.interrupted_by and self._asked is None:
                        self._asked = time.monotonic()
                        self._ask_to_stop()
                        watcher.stopping(signal.Signals(self.interrupted_by).name)
                    elif self._asked is not None and time.monotonic() > self._asked + _GRACE_SECONDS:
                        self._kill()
                    watcher.tick(self._running(), self._left(pending, seconds))
            finally:
                self._close()

    @property
    def interrupted_by(self) -> int | None:
        """The signal that ended the study early."""
        return self._guard.signal_number

    def _start(self, cell: Cell) -> bool:
        """Start a cell; whether that worked."""
        slot = min(set(range(len(self._jobs) + 1)) - {job.slot for job in self._jobs})
        gpu = self._gpus[slot % len(self._gpus)] if self._gpus and self.num_workers > 1 else None
        process = self._context.Process(target=run_cell, args=(cell.words(), cell.log, gpu), name=cell.name)
        try:
            process.start()
        except (EOFError, OSError):
            if self.interrupted_by:  # a signal to all processes at once has ended the server
                return False
            raise
        self._jobs.append(Job(cell, process, time.monotonic(), slot))
        return True

    def _ended(self) -> list[tuple[Job, int]]:
        """The cells that have ended, within a second or so, and their exit codes."""
        wait([job.handle.sentinel for job in self._jobs], _TICK_SECONDS)
        return [(job, job.handle.exitcode or 0) for job in self._jobs if not job.handle.is_alive()]

    def _ask_to_stop(self) -> None:
        """Ask every running cell to finish its round."""
        for job in self._jobs:
            job.handle.terminate()

    def _kill(self) -> None:
        """End what runs."""
        for job in self._jobs:
            job.handle.kill()

    def _close(self) -> None:
        """End what runs, and wait for it."""
        self._kill()
        for job in self._jobs:
            job.handle.join()
        self._jobs.clear()

    def _running(self) -> dict[Cell, float]:
        now = time.monotonic()
        return {job.cell: now - job.began for job in self._jobs}

    def _left(self, pending: Sequence[Cell], seconds: Mapping[Any, float]) -> float | None:
        return seconds_left(pending, self._running(), seconds, self.num_workers)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _executor(num_workers: int, context: Any) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(num_workers, context, initializer=start_worker, initargs=(Path(os.devnull),))


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """The environment of the workers, which the server takes over when it starts."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
