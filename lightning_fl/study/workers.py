"""Worker processes of a study, each forked from a preloaded server for one cell."""

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
from lightning_fl.core.validation import Count, checked
from lightning_fl.engine.interrupt import InterruptGuard, end_with_this_process
from lightning_fl.study.cell_names import cell_name
from lightning_fl.study.cells import Cell
from lightning_fl.study.display import StudyDisplay
from lightning_fl.study.forked import find_faults, run_cell, start_worker, visible_gpus
from lightning_fl.study.schedule import known_seconds, next_cell, seconds_left

__all__ = ["Job", "Workers", "usable_cores"]

#: Interval of the display's updates.
_TICK_SECONDS = 1.0
#: Time in which an interrupted cell finishes its round and saves it.
_GRACE_SECONDS = 60.0


@dataclass
class Job:
    """A running cell with its process or Ray reference, start time and worker number."""

    cell: Cell
    handle: Any
    began: float
    slot: int = 0


class _Server:
    """The fork server, which would otherwise finish its imports after the study has ended."""

    def kill(self) -> None:
        """Kill it if it is running."""
        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Workers:
    """Processes that run cells.

    If cells may use GPUs, these are distributed over the workers; a single worker has all of them.

    Args:
        num_workers: concurrent cells; ``None`` for the number of GPUs, or of cores if cells use no GPU.
        cells: to run.

    Raises:
        ConfigurationError: ``num_workers`` is below 1, or the system cannot fork.
    """

    @checked
    def __init__(self, num_workers: Count | None, cells: Sequence[Cell] = ()) -> None:
        if "forkserver" not in multiprocessing.get_all_start_methods():
            raise ConfigurationError("lightning-fl study forks its workers: use Linux or macOS.")
        if os.getcwd() not in sys.path:  # for the user's own modules
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
        """Ask another process, since forks cannot use a GPU that their parent has opened."""
        with _one_thread_each(), _executor(1, self._context) as executor:
            return executor.submit(visible_gpus).result()

    def check(self, cells: Sequence[Cell]) -> None:
        """Parse and instantiate one cell of every variant before any is run.

        Raises:
            ConfigurationError: all faults, one per line.
        """
        firsts = list({cell.variant: cell for cell in reversed(cells)}.values())[::-1]
        for cell in firsts:
            cell.prepare()
        workers = min(self.num_workers, usable_cores(), len(firsts))
        with _one_thread_each(), _executor(workers, self._context) as executor:
            try:
                faults = list(executor.map(find_faults, [cell.arguments() for cell in firsts]))
            except BrokenProcessPool as error:
                raise ConfigurationError(f"a worker died while checking the recipes ({error}).") from error
        lines = [
            f"{cell_name(cell.arm, cell.place)}: {line}"
            for cell, fault in zip(firsts, faults, strict=True)
            for line in (fault or "").splitlines()
        ]
        if lines:
            raise ConfigurationError("\n".join(lines))

    def run(
        self,
        cells: Sequence[Cell],
        display: StudyDisplay,
        known: Sequence[Cell],
        commit: str,
        check: Callable[[Cell], None] = lambda cell: None,
    ) -> None:
        """Run cells until all have ended or a signal arrives (:attr:`interrupted_by`).

        The first SIGINT or SIGTERM lets running cells finish their round and save it; a second one stops at once.

        Args:
            cells: to run; those that another process finishes meanwhile are skipped.
            display: of the progress.
            known: all cells of the study, for the estimate of durations.
            commit: of the package, recorded with every attempt.
            check: called for every cell that has ended; an exception kills the running cells.
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
                            cell.record_start(resumed, commit)
                            if self._start(cell):
                                display.started(cell, resumed)
                    for job, code in self._ended():
                        self._jobs.remove(job)
                        took = time.monotonic() - job.began
                        if code == 0 or not self.interrupted_by:  # an interrupted cell did not fail
                            job.cell.record_end(took, code)
                        seconds = known_seconds(known)
                        display.ended(job.cell, took, self._left(pending, seconds))
                        check(job.cell)
                    if self.interrupted_by and self._asked is None:
                        self._asked = time.monotonic()
                        self._ask_to_stop()
                        display.stopping(signal.Signals(self.interrupted_by).name)
                    elif self._asked is not None and time.monotonic() > self._asked + _GRACE_SECONDS:
                        self._kill()
                    display.tick(self._running(), self._left(pending, seconds))
            finally:
                self._close()

    @property
    def interrupted_by(self) -> int | None:
        """Number of the signal that interrupted the study."""
        return self._guard.signal_number

    def _start(self, cell: Cell) -> bool:
        """Start a cell; returns whether it runs."""
        slot = min(set(range(len(self._jobs) + 1)) - {job.slot for job in self._jobs})
        gpu = self._gpus[slot % len(self._gpus)] if self._gpus and self.num_workers > 1 else None
        process = self._context.Process(target=run_cell, args=(cell.arguments(), cell.log, gpu), name=cell.name)
        try:
            process.start()
        except (EOFError, OSError):
            if self.interrupted_by:  # the signal has also ended the server
                return False
            raise
        self._jobs.append(Job(cell, process, time.monotonic(), slot))
        return True

    def _ended(self) -> list[tuple[Job, int]]:
        """Wait up to a tick for jobs to end; returns them with their exit codes."""
        wait([job.handle.sentinel for job in self._jobs], _TICK_SECONDS)
        return [(job, job.handle.exitcode or 0) for job in self._jobs if not job.handle.is_alive()]

    def _ask_to_stop(self) -> None:
        """Ask the running cells to finish their round."""
        for job in self._jobs:
            job.handle.terminate()

    def _kill(self) -> None:
        for job in self._jobs:
            job.handle.kill()

    def _close(self) -> None:
        """Kill the running cells and wait for their end."""
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
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _executor(num_workers: int, context: Any) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(num_workers, context, initializer=start_worker, initargs=(Path(os.devnull),))


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set OMP_NUM_THREADS for the server and its workers."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
