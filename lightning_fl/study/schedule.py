"""Order of a study's cells and estimate of the remaining time, from the times of finished cells."""

import math
import statistics
from collections.abc import Mapping, Sequence

from lightning_fl.study.cells import Cell, Variant

__all__ = ["known_seconds", "next_cell", "seconds_left"]


def known_seconds(cells: Sequence[Cell]) -> dict[Variant, float]:
    """Variant -> median wall time of its finished cells in seconds, all attempts included."""
    found: dict[Variant, list[float]] = {}
    for cell in cells:
        run = cell.finished()
        if run is not None:
            attempts = sum(attempt.seconds or 0.0 for attempt in cell.attempts())
            found.setdefault(cell.variant, []).append(max(attempts, run.seconds or 0.0))
    return {variant: statistics.median(times) for variant, times in found.items()}


def next_cell(pending: Sequence[Cell], running: Sequence[Cell], seconds: Mapping[Variant, float]) -> Cell:
    """The cell to start next: an interrupted one, else the longest; unknown durations count as infinite.

    Args:
        pending: candidates, not empty.
        running: started cells.
        seconds: known durations by variant.
    """
    started = [cell.variant for cell in running]

    def priority(cell: Cell) -> tuple[bool, float, int]:
        return cell.resumable(), seconds.get(cell.variant, math.inf), -started.count(cell.variant)

    return max(pending, key=priority)


def seconds_left(
    pending: Sequence[Cell], running: Mapping[Cell, float], seconds: Mapping[Variant, float], num_workers: int
) -> float | None:
    """Seconds until all cells are finished; unknown durations count as the mean of the known ones.

    Args:
        pending: cells that have not started.
        running: cell -> seconds since its start.
        seconds: known durations by variant; without any the result is ``None``.
        num_workers: concurrent cells.
    """
    if not seconds:
        return None
    usual = statistics.fmean(seconds.values())
    started = [max(0.0, seconds.get(cell.variant, usual) - elapsed) for cell, elapsed in running.items()]
    total = sum(started) + sum(seconds.get(cell.variant, usual) for cell in pending)
    return max([total / num_workers, *started])
