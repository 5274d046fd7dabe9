"""Progress of a study: a live display on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.terminal import terminal
from lightning_fl.recipe.file import load_recipe
from lightning_fl.study.cells import Cell

__all__ = ["StudyDisplay"]


class StudyDisplay:
    """Context manager that shows finished, running and failed cells and the remaining time.

    Args:
        cells: of the study.
        num_workers: concurrent cells.
        console: defaults to standard output.
    """

    def __init__(self, cells: Sequence[Cell], num_workers: int, console: Console | None = None) -> None:
        self._console = console or terminal()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_interactive else None
        self._total = len(cells)
        self._done = sum(cell.finished() is not None for cell in cells)
        self._failed = 0
        self._began = time.monotonic()
        self._max_rounds: dict[Cell, int | None] = {}
        workers = f"{num_workers} {'worker' if num_workers == 1 else 'workers'}"
        self._print(f"{self._total} cells, {self._done} done, {workers}")

    def __enter__(self) -> "StudyDisplay":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def started(self, cell: Cell, resumed: bool) -> None:
        """Report that a cell started."""
        if self._live is None:
            self._print(f"{cell.name}: {'resumed' if resumed else 'started'}")

    def ended(self, cell: Cell, seconds: float, left: float | None) -> None:
        """Report how a cell ended."""
        failure = cell.failure()
        if failure is not None:
            self._failed += 1
            text = f"failed after {_duration(seconds)}: {failure}"
        elif cell.finished() is None:
            text = "stopped"
        else:
            self._done += 1
            text = f"done in {_duration(seconds)}"
        counts = f"{self._done}/{self._total} done" + (f", {self._failed} failed" if self._failed else "")
        self._print(f"{cell.name}: {text} | {counts}, {_left(left)}")

    def tick(self, running: Mapping[Cell, float], left: float | None) -> None:
        """Redraw the display."""
        if self._live is not None:
            self._live.update(self._renderable(running, left), refresh=True)

    def stopping(self, signal_name: str) -> None:
        """Report that the study was interrupted."""
        self._print(f"{signal_name}: running cells finish their round and save it (repeat to stop at once)")

    def _renderable(self, running: Mapping[Cell, float], left: float | None) -> Group:
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        failed = f", {self._failed} failed" if self._failed else ""
        elapsed = _duration(time.monotonic() - self._began)
        bar.add_row(
            f"{self._done}/{self._total} cells done{failed}",
            ProgressBar(total=self._total, completed=self._done, complete_style="cyan"),
            f"{elapsed} elapsed, {_left(left)}",
        )
        lines = [Text(f"  {cell.name}: {self._rounds(cell)}{_duration(took)}") for cell, took in running.items()]
        return Group(bar, *lines)

    def _rounds(self, cell: Cell) -> str:
        rounds = cell.rounds()
        if rounds is None:
            return ""
        if cell not in self._max_rounds:
            self._max_rounds[cell] = _max_rounds(cell.versions()[-1] / "config.yaml")
        total = self._max_rounds[cell]
        return f"round {rounds}{'' if total is None else f'/{total}'}, "

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _max_rounds(path: Path) -> int | None:
    try:
        rounds = load_recipe(path)["trainer"]["max_rounds"]
    except (ConfigurationError, KeyError, TypeError):
        return None
    return rounds if isinstance(rounds, int) else None


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _left(seconds: float | None) -> str:
    return "remaining time unknown" if seconds is None else f"{_duration(seconds)} left"
