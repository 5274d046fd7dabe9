"""Progress of a fit: a live display on a terminal and in a notebook, plain lines elsewhere."""

import io
import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lightning_fl.callbacks.callback import Callback, method_of
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.core.errors import counted
from lightning_fl.core.escaping import encodable, terminal
from lightning_fl.core.metrics import MetricSummary, curve_name, default_metric
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.runtime.surface import TrainerSurface

_REFRESH_SECONDS = 0.1
_PLAIN_SECONDS = 10.0
_MOST_METRICS = 4
_CELL = '<pre style="white-space:pre-wrap;line-height:normal">{code}</pre>'


@checked_fields
class ProgressDisplay(Callback):
    """Shows rounds, the current client, losses, the worst client, elapsed and remaining time on standard output.

    On a terminal and in a notebook, a display is redrawn in place at most ten times a second, without a thread (so that
    data loaders may fork). Elsewhere, plain lines are written for the first and the last round, and in between after a
    hundredth of all rounds or ten seconds. Only rank zero shows anything.

    Args:
        every_n_rounds: write plain lines only for rounds divisible by this number.
    """

    only_shows = True

    every_n_rounds: Count = 1

    def __post_init__(self) -> None:
        self._live: Live | _NotebookDisplay | None = None
        self._started: tuple[int, float] | None = None  # rounds done, and seconds of a monotonic clock
        self._clients_done, self._doing = 0, ""
        self._line_round, self._line_time = 0, 0.0

    def on_round_start(self, trainer: TrainerSurface) -> None:
        if not trainer.is_global_zero:
            return
        if self._started is None:
            self._start(trainer)
        self._clients_done, self._doing = 0, ""

    def on_client_start(self, trainer: TrainerSurface, client: int) -> None:
        if self._live is not None:
            self._doing = self._names[client]
            self._refresh(trainer)

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        self._clients_done += 1
        self._refresh(trainer)

    def on_round_end(self, trainer: TrainerSurface) -> None:
        if self._started is None:
            return
        now, done = time.monotonic(), trainer.federation.current_round
        self._clients_done, self._doing, self._ended = 0, "", (done, now)
        self._refresh(trainer)
        first_or_last = done == trainer.max_rounds or done == self._started[0] + 1
        late = (done - self._line_round) * 100 >= trainer.max_rounds or now - self._line_time >= _PLAIN_SECONDS
        if self._live is None and (first_or_last or (done % self.every_n_rounds == 0 and late)):
            self._line_round, self._line_time = done, now
            clients = f"clients {len(trainer.round.survivors)}/{trainer.num_clients}"
            elapsed, left = self._times(trainer, now)
            parts = [f"round {done}/{trainer.max_rounds}", clients, *self._metrics(trainer)]
            _print_plain(" | ".join([*parts, f"{elapsed} elapsed", f"{left} left"]))

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if self._started is None:
            return
        elapsed, _ = self._times(trainer, time.monotonic())
        done, rounds = trainer.federation.current_round, trainer.max_rounds
        how = "interrupted" if trainer.federation.interrupted_by else "stopped"
        if self._live is not None:
            self._live.update(self._renderable(trainer, ended=True))
        self.teardown(trainer, "fit")
        ended = f"finished {counted(rounds, 'round')} in {elapsed}"
        reason = f". {trainer.stop_reason}" if trainer.should_stop and trainer.stop_reason else ""
        _print_plain(ended if done >= rounds else f"{how} after round {done}/{rounds}, {elapsed}{reason}")

    def on_exception(self, trainer: TrainerSurface, exception: BaseException) -> None:
        self.teardown(trainer, "fit")

    def teardown(self, trainer: TrainerSurface, stage: str) -> None:
        live, self._live, self._started = self._live, None, None
        if live is not None:
            live.stop()

    def _start(self, trainer: TrainerSurface) -> None:
        now, done = time.monotonic(), trainer.federation.current_round
        self._started = self._ended = done, now
        self._before = trainer.federation.wall_time_seconds  # of earlier processes of a resumed run
        self._names = trainer.client_names
        self._line_round, self._line_time, self._next_refresh = done, now, 0.0
        console = terminal()
        if console.is_jupyter:
            self._live = _NotebookDisplay()
        elif console.is_interactive:
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
            self._live.start()
        else:
            if trainer.datamodule.source == "stand-in":
                _print_plain(STAND_IN_LABEL)
            _print_plain(_title(trainer) + (f", from round {done}" if done else ""))
        self._refresh(trainer)

    def _refresh(self, trainer: TrainerSurface) -> None:
        if self._live is not None and (now := time.monotonic()) >= self._next_refresh:
            self._live.update(self._renderable(trainer), refresh=True)
            self._next_refresh = now + _REFRESH_SECONDS

    def _renderable(self, trainer: TrainerSurface, ended: bool = False) -> Group:
        done, rounds = trainer.federation.current_round, trainer.max_rounds
        title = Text(_title(trainer), style="bold")
        if trainer.datamodule.source == "stand-in":
            title = Text.assemble((f" {STAND_IN_LABEL} ", "bold black on yellow"), " ", title)
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        elapsed, left = self._times(trainer, time.monotonic())
        shown = ProgressBar(total=rounds, completed=done, complete_style="cyan")
        bar.add_row(f"round {done}/{rounds}", shown, f"{elapsed} elapsed, {left} left")
        lines: list[Any] = [title, bar]
        if not ended and done < rounds:  # also between clients, so that the display does not jump
            where = "" if trainer.fabric.world_size == 1 else f" on process 0 of {trainer.fabric.world_size}"
            work = f", at work: {self._doing}" if self._doing else ""
            lines.append(Text(f"round {done + 1}{where}: {self._clients_done} clients done{work}"))
        return Group(*lines, *map(Text, self._metrics(trainer)))

    def _times(self, trainer: TrainerSurface, now: float) -> tuple[str, str]:
        """Elapsed and remaining time, the latter at the mean pace of this process's whole rounds; "?" before one."""
        assert self._started is not None
        (at_start, began), (rounds, ended) = self._started, self._ended
        elapsed, left = str(timedelta(seconds=round(self._before + now - began))), "?"
        if rounds > at_start:
            left = str(timedelta(seconds=round((ended - began) * (trainer.max_rounds - rounds) / (rounds - at_start))))
        return elapsed, left

    def _metrics(self, trainer: TrainerSurface) -> list[str]:
        """Texts of the training loss, the monitored validation metric, and those logged with ``prog_bar``."""
        monitor = getattr(trainer.callback(ModelCheckpoint), "monitor", None)
        train: Mapping[str, MetricSummary] = trainer.federation.metrics.get("train", {})
        validation: Mapping[str, MetricSummary] = trainer.federation.metrics.get("val", {})
        measured = {**train, **validation}
        leading = [displayed_metric(train), displayed_metric(validation, monitor)]
        shown = dict.fromkeys(name for name in leading if name is not None)
        shown |= dict.fromkeys(name for name, metric in measured.items() if metric.prog_bar)
        texts = []
        for name in list(shown)[:_MOST_METRICS]:
            metric = measured[name]
            texts.append(f"{name} {metric.mean:.4g}")
            if len(self._names) > 1 and not math.isnan(metric.worst):
                texts[-1] += f" (worst {metric.worst:.4g}: {self._names[metric.worst_client]})"
        return texts


class _NotebookDisplay:
    """Replacement of rich's ``Live`` for notebooks, where rich needs ipywidgets."""

    _COLUMNS = 100

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, renderable: Group, *, refresh: bool = False) -> None:
        from IPython.display import HTML, display

        console = terminal(
            file=io.StringIO(), record=True, width=self._COLUMNS, force_jupyter=False, color_system="truecolor"
        )
        console.print(renderable)
        html = HTML(console.export_html(inline_styles=True, code_format=_CELL))
        if self._handle is None:
            self._handle = display(html, display_id=True)
        else:
            self._handle.update(html)

    def stop(self) -> None:
        """Keep the output."""


def displayed_metric(metrics: Mapping[str, MetricSummary], monitor: str | None = None) -> str | None:
    """The metric to show: the monitored one (NAME, "NAME/mean" or "NAME/worst"), else the first loss or metric."""
    if monitor is not None:
        for name in (curve_name(metrics, monitor), curve_name(metrics, monitor.rpartition("/")[0])):
            if name in metrics:
                return name
    return default_metric(metrics)


def _title(trainer: TrainerSurface) -> str:
    method = method_of(type(trainer.strategy).__name__, trainer.callbacks)
    source = trainer.datamodule.source
    return f"{type(trainer.module).__name__} by {method} on {trainer.num_clients} clients, data: {source}"


def _print_plain(text: str) -> None:
    encodable(sys.stdout)  # names may have characters that the output's encoding lacks
    print(text, flush=True)
