"""SIGINT and SIGTERM during a fit: finish the round, save, stop."""

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["InterruptGuard"]


class InterruptGuard:
    """Notes the first SIGINT or SIGTERM instead of dying of it; a second one is not held back.

    The fit loop looks at :attr:`signal_number` after every round, so that all ranks stop after the same one.
    """

    signals = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "InterruptGuard":
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.signal_number = number
        name = signal.Signals(number).name
        print(f"{name}: finishing the round, then saving a checkpoint (once more stops at once).", file=sys.stderr)
