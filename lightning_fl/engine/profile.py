"""Where a round's time goes: a profiler of Lightning's kind whose times exclude each other, and add up to the round.

Lightning's own profilers count a part inside another in both. Here time belongs to the part that began last and has not
ended, so every moment of a round is counted once. While a profiled fit runs, the methods that the parts stand for are
replaced, on their objects, by timed ones; without ``FederatedTrainer(profile=True)`` nothing of this file runs.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning.pytorch.profilers import Profiler
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.stacked.loop import StackedLoop
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.terminal import terminal

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AGGREGATION",
    "LOGGERS",
    "RoundProfiler",
    "profile_of_ranks",
    "profile_table",
    "timed_evaluation",
    "timed_rounds",
]

T = TypeVar("T")

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

#: What a callback or an evaluation does by way of the engine's parts is its own: leaving it out would save all of that.
_ABSORBED = frozenset({DATA, SET_UP, FORWARD, BACKWARD, OPTIMIZER, HOOKS, BOOKKEEPING, AGGREGATION, EVALUATION})
#: Called inside other hooks, to gather a state.
_NOT_TIMED = frozenset({"state_dict", "load_state_dict"})
_COLLECTIVES = ("exchange", "broadcast_bytes_", "all_reduce", "broadcast", "barrier")


class RoundProfiler(Profiler):
    """Seconds of every round by category, each moment counted in one category alone.

    A module may time parts of its own with ``self.trainer.profiler.profile("name")``, as under Lightning's Trainer.
    Outside of the rounds nothing is recorded.

    Args:
        clock: tells the time in seconds.

    Attributes:
        rounds: round (1 for the first) -> category -> seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = clock
        self.rounds: dict[int, dict[str, float]] = {}
        self._seconds: dict[str, float] = {}
        #: Action, category that its time belongs to, whether it absorbs; the innermost last.
        self._running: list[tuple[str, str, bool]] = []
        self._since = 0.0

    def begin_round(self, number: int) -> None:
        """The round before, if there is one, ends now; what was left running in it has ended."""
        now = self._count()
        self._running[:] = [(REST, REST, False)]
        self._seconds, self._since = self.rounds.setdefault(number, defaultdict(float)), now

    def end_rounds(self) -> None:
        """The last round ends now."""
        self._count()
        self._running.clear()

    def start(self, action_name: str, absorbs: bool = False) -> None:
        """Time is from now on that of an action; ``absorbs`` takes the engine's parts inside it as its own."""
        if not self._running:
            return
        self._since = self._count()
        _, outer, absorbing = self._running[-1]
        absorbed = absorbing and action_name in _ABSORBED
        self._running.append((action_name, outer, True) if absorbed else (action_name, action_name, absorbs))

    def stop(self, action_name: str) -> None:
        """An action ends; one that is not running, because it began outside of the rounds, is ignored."""
        for place in range(len(self._running) - 1, 0, -1):
            if self._running[place][0] == action_name:
                self._since = self._count()
                del self._running[place]
                return

    def timed(self, category: str, function: Callable[..., T], absorbs: bool = False) -> Callable[..., T]:
        """The function, its time counted; what is left running inside it, by an error say, ends with it."""

        def run(*args: Any, **kwargs: Any) -> T:
            depth = len(self._running)
            self.start(category, absorbs)
            try:
                return function(*args, **kwargs)
            finally:
                self._since = self._count()
                del self._running[depth:]

        return run

    def iterate(self, category: str, items: Iterable[T]) -> Iterator[T]:
        """The items, the time of making each counted."""
        following: Callable[[], T] = self.timed(category, iter(items).__next__)
        while True:
            try:
                item = following()
            except StopIteration:
                return
            yield item

    def _count(self) -> float:
        """Give the innermost action the time since the last change; returns what time it is."""
        now = self.clock()
        if self._running:
            self._seconds[self._running[-1][1]] += now - self._since
        return now

    def summary(self) -> str:
        """This rank's table as text."""
        console = terminal(width=80, color_system=None)
        with console.capture() as captured:
            console.print(profile_table(_frame({0: self.rounds})))
        return captured.get()


# -- a run's rounds ----------------------------------------------------------------------------------------------


@contextmanager
def timed_evaluation(profiler: Profiler) -> Iterator[None]:
    """Times an evaluation with all that the engine does in it."""
    if not isinstance(profiler, RoundProfiler):
        yield
        return
    profiler.start(EVALUATION, absorbs=True)
    try:
        yield
    finally:
        profiler.stop(EVALUATION)


@contextmanager
def timed_rounds(
    profiler: Profiler, loop: LocalLoop, stacked: StackedLoop | None, others: Sequence[tuple[object, str, str]]
) -> Iterator[Callable[[int], None]]:
    """Times the rounds of a fit, where the profiler is a :class:`RoundProfiler`.

    Args:
        profiler: of the run.
        loop: takes the clients' turns.
        stacked: takes several at once.
        others: further methods: their object, their name, the category of their time.

    Yields:
        What to call when a round begins, with its number (1 for the first).
    """
    if not isinstance(profiler, RoundProfiler):
        yield lambda number: None
        return
    profiler.rounds.clear()
    if loop.processes.device.type == "cuda":
        profiler.clock = _after_kernels(loop.processes.device)
    with ExitStack() as restoring:
        restoring.callback(profiler.end_rounds)
        for owner, name, timed in _timed_methods(profiler, loop, stacked, others):
            restoring.callback(_restore, owner, name, vars(owner).get(name))
            setattr(owner, name, timed)
        yield profiler.begin_round


def _timed_methods(
    profiler: RoundProfiler, loop: LocalLoop, stacked: StackedLoop | None, others: Sequence[tuple[object, str, str]]
) -> Iterator[tuple[object, str, Callable[..., Any]]]:
    """What is timed: an object, its method, and the timed one."""
    shim, optimization, processes = loop.module_trainer, loop.optimization, loop.processes
    methods: list[tuple[object, str, str]] = [
        (loop, "move", DATA),
        (loop, "load", SET_UP),
        (loop, "seed", SET_UP),
        (optimization, "begin", SET_UP),
        (optimization, "end", SET_UP),
        (loop, "training_output", FORWARD),
        (loop, "loss", FORWARD),
        (optimization, "_backward", BACKWARD),
        (optimization, "step", OPTIMIZER),
        (loop, "call", HOOKS),
        (loop, "train", BOOKKEEPING),
        *others,
    ]
    if stacked is not None:
        methods += [
            (stacked, "train", BOOKKEEPING),
            (stacked, "_rows", DATA),
            (stacked, "_gather", DATA),
            (stacked.visits, "next_batch", DATA),
            (stacked.visits, "stack", DATA),
            (stacked, "_begin", SET_UP),
            (stacked, "_forward", FORWARD),
            (stacked, "_backward", BACKWARD),
            (stacked, "_step", OPTIMIZER),
        ]
    if loop.around:  # the module's step inside the callbacks around it
        methods.append((loop, "step", FORWARD))
    if not loop.module.automatic_optimization:  # called from within training_step
        methods += [(shim.strategy, "backward", BACKWARD), (shim.strategy, "optimizer_step", OPTIMIZER)]
    if processes.several:
        methods += [(processes.transport, name, WAITING) for name in _COLLECTIVES]
    for owner, name, category in methods:
        yield owner, name, profiler.timed(category, getattr(owner, name))

    open_batches = profiler.timed(DATA, loop.batches)

    def batches(*args: Any) -> "_TimedBatches | None":
        found = open_batches(*args)
        return None if found is None else _TimedBatches(found, profiler)

    yield loop, "batches", batches
    for hook in loop.hooks.every():
        if hook.name not in _NOT_TIMED:
            around = hook.name == "around_training_step"  # the step inside is not the listener's
            yield hook.listener, hook.name, profiler.timed(hook.owner, getattr(hook.listener, hook.name), not around)


def _restore(owner: object, name: str, own: object) -> None:
    """Put back an object's own attribute; the class's shows again where it had none."""
    delattr(owner, name)
    if own is not None:
        setattr(owner, name, own)


class _TimedBatches:
    """A client's batches, the making of each timed."""

    def __init__(self, batches: ClientBatches, profiler: RoundProfiler) -> None:
        self._batches = batches
        self._profiler = profiler

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._batches, name)
        if name == "loaders":
            return [self if loader is self._batches else _TimedBatches(loader, self._profiler) for loader in found]
        if name not in ("once", "shuffled", "passes", "some", "singly"):
            return found
        made = self._profiler.timed(DATA, found)
        return lambda *args, **kwargs: self._profiler.iterate(DATA, made(*args, **kwargs))


def _after_kernels(device: torch.device) -> Callable[[], float]:
    """A clock that waits for a GPU first: what was launched belongs to the part that launched it."""

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


# -- what is shown and kept --------------------------------------------------------------------------------------


def profile_of_ranks(profiler: Profiler, processes: Processes) -> "pd.DataFrame | None":
    """Seconds by rank, round and category, where rounds were timed. Called on every rank."""
    if not isinstance(profiler, RoundProfiler) or not profiler.rounds:
        return None
    return _frame(processes.exchange({processes.rank: profiler.rounds}))


def _frame(of_ranks: dict[int, dict[int, dict[str, float]]]) -> "pd.DataFrame":
    import pandas as pd  # takes a second to import

    rows = [
        (rank, number, category, seconds)
        for rank, rounds in of_ranks.items()
        for number, categories in rounds.items()
        for category, seconds in categories.items()
    ]
    return pd.DataFrame(rows, columns=["rank", "round", "category", "seconds"])


def profile_table(frame: "pd.DataFrame") -> Table:
    """A row per category, the costliest first, and their sum; means over ranks.

    The first round, which warms up, has a column of its own; milliseconds and per cent are of the rounds after it,
    where there are any.

    Args:
        frame: columns rank, round, category and seconds.
    """
    first, numbers = frame["round"].min(), frame["round"].nunique()
    later = frame[frame["round"] > first]
    steady = frame if later.empty else later
    in_all, warm_up = _per_rank(frame).mean(axis=1), _per_rank(frame[frame["round"] == first]).mean(axis=1)
    of_ranks = _per_rank(steady) / steady["round"].nunique()
    several, means = of_ranks.shape[1] > 1, of_ranks.mean(axis=1)

    title = f"where the time of {numbers} round{'s' if numbers > 1 else ''} went"
    if several:
        title += f", mean over {of_ranks.shape[1]} ranks; least and most of a rank"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    table.add_column("", overflow="fold")
    headers = ["in all\ns", f"round {first}\nms", *(["%"] if later.empty else ["later\nms each", "later\n%"])]
    for header in [*headers, *(["least\nms", "most\nms"] if several else [])]:
        table.add_column(header, justify="right", no_wrap=True)

    def add(name: str, seconds: float, warming: float, mean: float, *spread: float) -> None:
        per_round = [] if later.empty else [f"{1e3 * mean:.2f}"]
        share = f"{100 * mean / means.sum():.1f}"
        table.add_row(
            Text(name), f"{seconds:.2f}", f"{1e3 * warming:.2f}", *per_round, share, *(f"{1e3 * s:.2f}" for s in spread)
        )

    order = sorted(in_all.index, key=lambda name: (name == REST, -means.get(name, 0.0), -in_all[name]))
    for name in order:
        spread = (of_ranks.loc[name].min(), of_ranks.loc[name].max()) if name in of_ranks.index else (0.0, 0.0)
        add(name, in_all[name], warm_up.get(name, 0.0), means.get(name, 0.0), *(spread if several else ()))
    table.add_section()
    totals = of_ranks.sum()
    add("sum", in_all.sum(), warm_up.sum(), means.sum(), *((totals.min(), totals.max()) if several else ()))
    return table


def _per_rank(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Seconds by category and rank, 0 where a rank spent none."""
    return frame.pivot_table(index="category", columns="rank", values="seconds", aggfunc="sum", fill_value=0.0)
