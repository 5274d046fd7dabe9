"""SIGINT and SIGTERM: the first asks a fit to finish its round, the second ends the process at once.

Nothing needs to be closed: files are written whole or not at all, and every round can be resumed. In a notebook, where
the process is more than a run, the second signal is Python's KeyboardInterrupt.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

from lightning_fl.core.escaping import printable
from lightning_fl.files.generated_modules import remove_generated_files
from lightning_fl.files.user_file import near

__all__ = [
    "InterruptGuard",
    "Interrupted",
    "end_process",
    "end_with_this_process",
    "ends_on_signals",
    "signals_of_a_run",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Signal ``number`` ends what this process waits for."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Child(Protocol):
    """A process that this one started."""

    def kill(self) -> None:
        """End it at once."""


class InterruptGuard:
    """Context in which the first SIGINT or SIGTERM is only noted, in :attr:`signal_number`.

    Args:
        answer: printed at the first signal.
        checkpoint: file to resume from, named when this process ends at once and the file exists by then.
    """

    def __init__(self, answer: str = "", checkpoint: Path | None = None) -> None:
        self.signal_number: int | None = None
        self._answer = answer
        self._checkpoint = checkpoint
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> "InterruptGuard":
        _THIS.checkpoint = self._checkpoint or _THIS.checkpoint
        _THIS.guards.append(self)
        self._handlers.enter_context(_handled(_SIGNALS))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()
        _THIS.guards.remove(self)

    def note(self, number: int) -> None:
        """Note the first signal."""
        self.signal_number = number
        if self._answer:
            _say(f"{signal.Signals(number).name}: {self._answer}")


class _Process:
    """What the answer to a signal depends on. ``wakeup``: descriptor that each signal of a run is written to, or -1;
    ``handled`` and ``answered``: signals that the main thread and the watcher have met."""

    def __init__(self) -> None:
        self.guards: list[InterruptGuard] = []
        self.children: list[Iterable[Child]] = []
        self.checkpoint: Path | None = None
        self.wakeup = -1
        self.handled = self.answered = 0


_THIS = _Process()


def end_with_this_process(children: Iterable[Child]) -> None:
    """Kill these processes in :func:`end_process`; more may be added to the collection later."""
    _THIS.children.append(children)


def end_process(code: int, reason: str) -> NoReturn:
    """End this process and its children at once, with one line on the reason and on how to resume."""
    with contextlib.suppress(Exception):
        for child in chain(*_THIS.children, multiprocessing.active_children()):
            with contextlib.suppress(OSError):
                child.kill()
        remove_generated_files()
    last = _THIS.checkpoint
    resume = "" if last is None or not last.exists() else f": resume with --ckpt_path {near(last)}"
    _say(reason.rstrip(".") + resume)
    os._exit(code)


def _say(line: str) -> None:
    """Print a line on the first rank of a machine, past the buffers of ``sys.stderr``, which may be in use."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with contextlib.suppress(OSError):
            os.write(2, f"{printable(line)}\n".encode())


def _answer(number: int) -> None:
    guard = _THIS.guards[-1] if _THIS.guards else None
    if guard is not None and guard.signal_number is None:
        guard.note(number)
    elif hasattr(sys, "ps1"):
        raise Interrupted(number)
    else:
        end_process(128 + number, "interrupted")


def _handle(number: int, frame: FrameType | None) -> None:
    """Signal handler, in the main thread; during a run the watcher answers, unless user code took its descriptor."""
    if _THIS.wakeup != -1:
        current = signal.set_wakeup_fd(_THIS.wakeup, warn_on_full_buffer=False)
        if current == _THIS.wakeup:
            _THIS.handled += 1
            late = time.monotonic() + 1
            while _THIS.answered < _THIS.handled and time.monotonic() < late:
                time.sleep(0.001)  # so that a round that ends now knows of the signal
            return
        signal.set_wakeup_fd(current, warn_on_full_buffer=False)
    _answer(number)


@contextlib.contextmanager
def _handled(signals: Sequence[int]) -> Iterator[None]:
    """Install the handler if this is the main thread, the only one that can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _handle) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def ends_on_signals() -> contextlib.AbstractContextManager[None]:
    """Context of a command, which a signal ends; signals that the program handles or ignores itself are left alone."""
    plain = (signal.default_int_handler, signal.SIG_DFL, _handle)
    return _handled([] if hasattr(sys, "ps1") else [one for one in _SIGNALS if signal.getsignal(one) in plain])


@contextlib.contextmanager
def signals_of_a_run() -> Iterator[None]:
    """Answer signals even while the main thread is in C++, for example waiting for other ranks."""
    mine = threading.current_thread() is threading.main_thread() and not hasattr(sys, "ps1")
    if not mine or _THIS.wakeup != -1:
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    _THIS.wakeup, _THIS.handled, _THIS.answered = writing.fileno(), 0, 0
    watcher = threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        _THIS.wakeup = -1
        writing.close()  # ends the watcher
        watcher.join()
        reading.close()


def _watch(reading: socket.socket) -> None:
    while number := reading.recv(1):
        if number[0] in _SIGNALS and signal.getsignal(number[0]) is _handle:
            _answer(number[0])
            _THIS.answered += 1


def _in_fork() -> None:
    """Leave Ctrl-C to this process, and end on SIGTERM, in forks such as workers of data loaders."""
    with contextlib.suppress(ValueError):
        if _THIS.wakeup != -1:
            signal.set_wakeup_fd(-1)
        for number, action in zip(_SIGNALS, (signal.SIG_IGN, signal.SIG_DFL), strict=True):
            if signal.getsignal(number) is _handle:
                signal.signal(number, action)
    _THIS.__dict__ = vars(_Process())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)
