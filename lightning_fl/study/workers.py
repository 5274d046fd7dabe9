"""Loop that runs a study's cells on local processes or on Ray, in an order by the times of finished cells.

Its progress is a live display on a terminal, plain lines elsewhere.
"""

import math
import signal
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lightning_fl.core.errors import ConfigurationError, counted
from lightning_fl.core.escaping import terminal
from lightning_fl.engine.interrupt import InterruptGuard
from lightning_fl.recipe.file import load_recipe
from lightning_fl.study.cells import Cell, Variant

#: Interval of the display's updates.
TICK_SECONDS = 1.0
#: Time in which an interrupted cell finishes its round and saves it.
_GRACE_SECONDS = 60.0


class Runner(Protocol):
    """Executor of cells; a running cell is a hashable job."""

    num_workers: int

    def start(self, cell: Cell) -> Any:
        """Start a cell. An EOFError or OSError counts as an interrupt if a signal has arrived."""

    def ended(self, jobs: Collection[Any]) -> dict[Any, int]:
        """Wait up to a tick for jobs to end; returns those with their exit codes, negative for a signal."""

    def ask_to_stop(self, jobs: Collection[Any]) -> None:
        """Ask jobs to finish their round."""

    def kill(self, jobs: Collection[Any]) -> None:
        """End jobs at once."""

    def close(self, jobs: Collection[Any]) -> None:
        """End jobs, and release what the runner holds."""


def run_cells(
    runner: Runner,
    cells: Sequence[Cell],
    display: "StudyDisplay",
    known: Sequence[Cell],
    commit: str,
    check: Callable[[Cell], None] = lambda cell: None,
    deadline: float | None = None,
) -> int | None:
    """Run cells until all have ended, a signal arrives or the time is over; returns the number of the signal.

    The first SIGINT or SIGTERM, or the deadline, lets cells finish and save their round; a second stops at once.

    Args:
        cells: to run; those that another process runs or has finished are skipped.
        known: all cells of the study, for the estimate of durations.
        check: called for every cell that has ended; an exception kills the running cells.
        deadline: by ``time.monotonic``; cells then start in their order instead of the longest first, and none that
            would end after it.
    """
    pending, asked = list(cells), None
    jobs: dict[Any, tuple[Cell, float]] = {}
    seconds = known_seconds(known)

    def elapsed() -> dict[Cell, float]:
        return {cell: time.monotonic() - began for cell, began in jobs.values()}

    def left() -> float | None:
        return seconds_left(pending, elapsed(), seconds, runner.num_workers)

    def in_time(cell: Cell | None = None) -> bool:
        """Whether a cell would end before the deadline; unknown durations count as the mean of the known ones."""
        usual = statistics.fmean(seconds.values()) if seconds else 0.0
        takes = 0.0 if cell is None else seconds.get(cell.variant, usual)
        return deadline is None or time.monotonic() + takes < deadline

    with InterruptGuard() as guard:

        def stopped() -> str:
            """Why no more cells are started."""
            if guard.signal_number is not None:
                return signal.Signals(guard.signal_number).name
            return "" if in_time() else "time is over"

        try:
            while jobs or (pending and not stopped()):
                while pending and not stopped() and len(jobs) < runner.num_workers:
                    cell = next_cell(pending, list(elapsed()), seconds) if deadline is None else pending[0]
                    pending.remove(cell)
                    if not in_time(cell) or not cell.claim():
                        continue
                    resumed = cell.resumable()
                    cell.record_start(resumed, commit)
                    try:
                        jobs[runner.start(cell)] = (cell, time.monotonic())
                    except BaseException as error:
                        cell.lock.release()
                        if guard.signal_number is None or not isinstance(error, EOFError | OSError):
                            raise
                    else:
                        display.started(cell, resumed)
                for job, code in runner.ended(jobs).items():
                    cell, began = jobs.pop(job)
                    took = time.monotonic() - began
                    if code == 0 or not stopped():  # a cell that was stopped did not fail
                        cell.record_end(took, code)
                    cell.lock.release()
                    seconds = known_seconds(known)
                    display.ended(cell, took, left())
                    check(cell)
                if stopped() and asked is None and jobs:
                    asked = time.monotonic()
                    runner.ask_to_stop(jobs)
                    display.stopping(stopped())
                elif asked is not None and time.monotonic() > asked + _GRACE_SECONDS:
                    runner.kill(jobs)
                display.tick(elapsed(), left())
        finally:
            runner.close(jobs)
    return guard.signal_number


def known_seconds(cells: Sequence[Cell]) -> dict[Variant, float]:
    """Variant -> median wall time of its finished cells in seconds, all attempts included."""
    found: dict[Variant, list[float]] = {}
    for cell in cells:
        if (run := cell.finished()) is not None:
            attempts = sum(attempt.get("seconds", 0.0) for attempt in cell.attempts())
            found.setdefault(cell.variant, []).append(max(attempts, run.seconds or 0.0))
    return {variant: statistics.median(times) for variant, times in found.items()}


def next_cell(pending: Sequence[Cell], running: Sequence[Cell], seconds: Mapping[Variant, float]) -> Cell:
    """The cell to start next: an interrupted one, else the longest; unknown durations count as infinite."""
    started = [cell.variant for cell in running]

    def priority(cell: Cell) -> tuple[bool, float, int]:
        return cell.resumable(), seconds.get(cell.variant, math.inf), -started.count(cell.variant)

    return max(pending, key=priority)


def seconds_left(
    pending: Sequence[Cell], running: Mapping[Cell, float], seconds: Mapping[Variant, float], num_workers: int
) -> float | None:
    """Estimate the seconds until all cells end; ``running`` has those spent so far. ``None`` without a known duration.

    Unknown durations count as the mean of the known ones.
    """
    if not seconds:
        return None
    usual = statistics.fmean(seconds.values())
    started = [max(0.0, seconds.get(cell.variant, usual) - elapsed) for cell, elapsed in running.items()]
    total = sum(started) + sum(seconds.get(cell.variant, usual) for cell in pending)
    return max([total / num_workers, *started])


class StudyDisplay(ExitStack):
    """Context manager that shows finished, running and failed cells and the remaining time."""

    def __init__(self, cells: Sequence[Cell], num_workers: int, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or terminal()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._total = len(cells)
        self._done = sum(cell.finished() is not None for cell in cells)
        self._failed = 0
        self._began = time.monotonic()
        self._max_rounds: dict[Cell, str] = {}
        self._print(f"{counted(self._total, 'cell')}, {self._done} done, {counted(num_workers, 'worker')}")

    def __enter__(self) -> "StudyDisplay":
        if self._console.is_interactive:
            self.enter_context(self._live)
        return self

    def started(self, cell: Cell, resumed: bool) -> None:
        if not self._live.is_started:
            self._print(f"{cell.name}: {'resumed' if resumed else 'started'}")

    def ended(self, cell: Cell, seconds: float, left: float | None) -> None:
        failure = cell.failure()
        if failure is not None:
            self._failed += 1
            text = f"failed after {_duration(seconds)}: {failure}"
        elif cell.finished() is None:
            text = "stopped"
        else:
            self._done += 1
            text = f"done in {_duration(seconds)}"
        self._print(f"{cell.name}: {text} | {self._counts('done')}, {_left(left)}")

    def tick(self, running: Mapping[Cell, float], left: float | None) -> None:
        if self._live.is_started:
            bar = Table.grid("", "", "", padding=(0, 1), expand=True)
            bar.columns[1].ratio = 1
            elapsed = _duration(time.monotonic() - self._began)
            bar.add_row(
                self._counts("cells done"),
                ProgressBar(total=self._total, completed=self._done, complete_style="cyan"),
                f"{elapsed} elapsed, {_left(left)}",
            )
            lines = [Text(f"  {cell.name}: {self._rounds(cell)}{_duration(took)}") for cell, took in running.items()]
            self._live.update(Group(bar, *lines), refresh=True)

    def stopping(self, reason: str) -> None:
        self._print(f"{reason}: running cells finish their round and save it (repeat to stop at once)")

    def _counts(self, done: str) -> str:
        return f"{self._done}/{self._total} {done}" + (f", {self._failed} failed" if self._failed else "")

    def _rounds(self, cell: Cell) -> str:
        rounds = cell.rounds()
        if rounds is None:
            return ""
        if cell not in self._max_rounds:
            self._max_rounds[cell] = ""
            with suppress(ConfigurationError, KeyError, TypeError):
                self._max_rounds[cell] = f"/{load_recipe(cell.versions()[-1] / 'config.yaml')['trainer']['max_rounds']}"
        return f"round {rounds}{self._max_rounds[cell]}, "

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _left(seconds: float | None) -> str:
    return "remaining time unknown" if seconds is None else f"{_duration(seconds)} left"
