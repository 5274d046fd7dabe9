"""Progress of a study: a live display on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import terminal
from lightning_fl.recipe.file import load_recipe
from lightning_fl.study.cells import Cell


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
        workers = f"{num_workers} {'worker' if num_workers == 1 else 'workers'}"
        self._print(f"{self._total} cells, {self._done} done, {workers}")

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

    def stopping(self, signal_name: str) -> None:
        self._print(f"{signal_name}: running cells finish their round and save it (repeat to stop at once)")

    def _counts(self, done: str) -> str:
        return f"{self._done}/{self._total} {done}" + (f", {self._failed} failed" if self._failed else "")

    def _rounds(self, cell: Cell) -> str:
        rounds = cell.rounds()
        if rounds is None:
            return ""
        if cell not in self._max_rounds:
            try:
                self._max_rounds[cell] = f"/{load_recipe(cell.versions()[-1] / 'config.yaml')['trainer']['max_rounds']}"
            except (ConfigurationError, KeyError, TypeError):
                self._max_rounds[cell] = ""
        return f"round {rounds}{self._max_rounds[cell]}, "

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _left(seconds: float | None) -> str:
    return "remaining time unknown" if seconds is None else f"{_duration(seconds)} left"
