"""Lightning profiler of a round's time; nested phases count once, so that categories add up to the round."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import torch
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from lightning_fl.engine.processes import Processes

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

_NOTHING = nullcontext()

DATA = "data"
SET_UP = "turn set-up"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimiser steps"
HOOKS = "module's hooks"
BOOKKEEPING = "turn bookkeeping"
AGGREGATION = "aggregation"
EVALUATION = "evaluation"
LOGGERS = "loggers"
WAITING = "waiting for ranks"
REST = "rest"
#: Prefix of callback hooks, before class and method: ``[Callback]LocalMixup.around_training_step``.
CALLBACK = "[Callback]"

#: Phases that count as part of a callback or evaluation around them, which causes them.
_ABSORBED = frozenset({DATA, SET_UP, FORWARD, BACKWARD, OPTIMIZER, HOOKS, BOOKKEEPING, AGGREGATION, EVALUATION})


class Unprofiled(PassThroughProfiler):
    """Profiler that does nothing, at a tenth of the cost of Lightning's, because phases are marked in every step."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return _NOTHING


class RoundProfiler(Profiler):
    """Seconds of every round by exclusive categories; a module may add some, as with Lightning's profilers."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = clock
        self.rounds: dict[int, dict[str, float]] = {}  #: round (1 for the first) -> category -> seconds
        self._seconds: dict[str, float] = {}
        #: Action, category of its time, whether it absorbs phases; the innermost is last.
        self._running: list[tuple[str, str, bool]] = []
        self._since = 0.0

    def begin_round(self, number: int) -> None:
        """Begin a round, which ends the previous one and all its running actions."""
        now = self._count()
        self._running[:] = [(REST, REST, False)]
        self._seconds, self._since = self.rounds.setdefault(number, defaultdict(float)), now

    def end_rounds(self) -> None:
        self._count()
        self._running.clear()

    def start(self, action_name: str) -> None:
        """Start an action, whose time may belong to an absorbing action around it."""
        if not self._running:
            return
        self._since = self._count()
        _, outer, absorbing = self._running[-1]
        if absorbing and action_name in _ABSORBED:
            self._running.append((action_name, outer, True))
            return
        category, absorbs = action_name, action_name == EVALUATION
        if action_name.startswith(CALLBACK):
            category, _, hook = action_name.removeprefix(CALLBACK).partition(".")
            absorbs = hook != "around_training_step"  # the step inside does not belong to the callback
        self._running.append((action_name, category, absorbs))

    def stop(self, action_name: str) -> None:
        """Stop an action; one that started outside of rounds is ignored."""
        for place in range(len(self._running) - 1, 0, -1):
            if self._running[place][0] == action_name:
                self._since = self._count()
                del self._running[place]
                return

    def _count(self) -> float:
        """Add the time since the last change to the innermost action; returns the present time."""
        now = self.clock()
        if self._running:
            self._seconds[self._running[-1][1]] += now - self._since
        return now


def timed_items(profiler: Profiler, items: Iterable[T]) -> Iterator[T]:
    """Iterate over batches, counting their creation as data."""
    following = iter(items)
    while True:
        with profiler.profile(DATA):
            try:
                item = next(following)
            except StopIteration:
                return
        yield item


@contextmanager
def timed_rounds(profiler: Profiler, device: torch.device) -> Iterator[Callable[[int], None]]:
    """Context of a fit's rounds; yields a function to call when a round begins, with its number (1 for the first)."""
    if not isinstance(profiler, RoundProfiler):
        yield lambda number: None
        return
    profiler.rounds.clear()
    if device.type == "cuda":
        profiler.clock = _after_kernels(device)
    try:
        yield profiler.begin_round
    finally:
        profiler.end_rounds()


def _after_kernels(device: torch.device) -> Callable[[], float]:
    """A clock that first waits for a GPU, so that kernels count for the phase that launched them."""

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def profile_of_ranks(profiler: Profiler, processes: Processes) -> "pd.DataFrame | None":
    """Seconds by rank, round and category; ``None`` without timed rounds. Every rank must call it."""
    if not isinstance(profiler, RoundProfiler) or not profiler.rounds:
        return None
    import pandas as pd  # takes a second to import

    rows = [
        (rank, number, category, seconds)
        for rank, rounds in processes.exchange({processes.rank: profiler.rounds}).items()
        for number, categories in rounds.items()
        for category, seconds in categories.items()
    ]
    return pd.DataFrame(rows, columns=["rank", "round", "category", "seconds"])


def profile_table(frame: "pd.DataFrame") -> Table:
    """Table of categories, the costliest first, and their sum; means over ranks, the first round apart."""
    first, numbers = frame["round"].min(), frame["round"].nunique()
    later = frame[frame["round"] > first]
    steady = frame if later.empty else later
    in_all, warm_up = (_per_rank(of).mean(axis=1) for of in (frame, frame[frame["round"] == first]))
    of_ranks = 1e3 * _per_rank(steady) / steady["round"].nunique()
    several, means = of_ranks.shape[1] > 1, of_ranks.mean(axis=1)
    columns = {"in all\ns": in_all, f"round {first}\nms": 1e3 * warm_up}
    columns |= {"%": 100 * means / means["sum"]} if later.empty else {"later\nms each": means}
    columns |= {} if later.empty else {"later\n%": 100 * means / means["sum"]}
    columns |= {"least\nms": of_ranks.min(axis=1), "most\nms": of_ranks.max(axis=1)} if several else {}

    title = f"where the time of {numbers} round{'s' if numbers > 1 else ''} went"
    if several:
        title += f", mean over {of_ranks.shape[1]} ranks; least and most of a rank"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    table.add_column("", overflow="fold")
    for header in columns:
        table.add_column(header, justify="right", no_wrap=True)
    order = sorted(in_all.index, key=lambda name: (name == "sum", name == REST, -means.get(name, 0.0), -in_all[name]))
    for name in order:
        values = [f"{of.get(name, 0.0):.{1 if '%' in header else 2}f}" for header, of in columns.items()]
        table.add_row(Text(name), *values, end_section=name == order[-2])
    return table


def _per_rank(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Seconds by category and rank, and their sum."""
    table = frame.pivot_table(index="category", columns="rank", values="seconds", aggfunc="sum", fill_value=0.0)
    table.loc["sum"] = table.sum()
    return table
