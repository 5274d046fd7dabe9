"""The tests' software device, for trying the phases where there is no GPU."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["standing_in", "waits_so_far"]

_active: list[Any] = []


@contextmanager
def standing_in() -> Iterator[None]:
    """torch has a CUDA device of software, in this process alone."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from cuda_standin.device import StandIn

    with StandIn() as device:
        _active.append(device)
        try:
            yield
        finally:
            _active.pop()


def waits_so_far() -> Counter[str]:
    """Line of the package -> how often the host has waited there for the software device."""
    found: Counter[str] = Counter()
    for wait, count in _active[-1].waits.items():
        found[wait.line] += count
    return found
