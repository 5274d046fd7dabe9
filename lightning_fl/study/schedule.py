"""Which cell of a study is started next, and how long the rest takes: from what cells took that are done."""

import math
import statistics
from collections.abc import Mapping, Sequence

from lightning_fl.study.cells import Cell, Variant

__all__ = ["known_seconds", "next_cell", "seconds_left"]


def known_seconds(cells: Sequence[Cell]) -> dict[Variant, float]:
    """Variant -> median wall time of its cells that are done, seconds, over all attempts at each."""
    found: dict[Variant, list[float]] = {}
    for cell in cells:
        run = cell.finished()
        if run is not None:
            attempts = sum(attempt.seconds or 0.0 for attempt in cell.attempts())
            found.setdefault(cell.variant, []).append(max(attempts, run.seconds or 0.0))
    return {variant: statistics.median(times) for variant, times in found.items()}


def next_cell(pending: Sequence[Cell], running: Sequence[Cell], seconds: Mapping[Variant, float]) -> Cell:
    """The cell to start: one that was cut off, else the longest; a variant that is not known yet counts as long.

    Args:
        pending: the choice, not empty.
        running: those at work.
        seconds: of the variants that are known.
    """
    at_work = [cell.variant for cell in running]

    def priority(cell: Cell) -> tuple[bool, float, int]:
        return cell.resumable(), seconds.get(cell.variant, math.inf), -at_work.count(cell.variant)

    return max(pending, key=priority)


def seconds_left(
    pending: Sequence[Cell], running: Mapping[Cell, float], seconds: Mapping[Variant, float], num_workers: int
) -> float | None:
    """Seconds until all is done; a variant that is not known counts as the mean of those that are.

    Args:
        pending: not started.
        running: with the seconds since they started.
        seconds: of the variants that are known; ``None`` is returned if there is none.
        num_workers: at once.
    """
    if not seconds:
        return None
    usual = statistics.fmean(seconds.values())
    started = [max(0.0, seconds.get(cell.variant, usual) - elapsed) for cell, elapsed in running.items()]
    total = sum(started) + sum(seconds.get(cell.variant, usual) for cell in pending)
    return max([total / num_workers, *started])
