"""SIGINT and SIGTERM: the first asks a fit to finish its round; a second one, or one outside of rounds, ends all.

It ends at once, whatever it is in: files are written whole or not at all and every round can be resumed, so nothing
needs to be closed. A notebook's process is more than a run: there the second is Python's KeyboardInterrupt.
"""

import contextlib
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Protocol

from lightning_fl.files.generated_modules import remove_generated_files
from lightning_fl.files.user_file import near

__all__ = ["InterruptGuard", "Interrupted", "end_with_this_process", "ends_on_signals", "signals_of_a_run"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal ends what this process waits for.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Child(Protocol):
    """A process that this one has started."""

    def kill(self) -> None:
        """End it at once."""


class InterruptGuard:
    """Notes the first SIGINT or SIGTERM in :attr:`signal_number`, at which what it guards looks from time to time.

    Args:
        answer: what is said to the first signal; nothing by default.
        checkpoint: the file to go on from, which the second signal names if it is there by then.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handlers.close()
        _THIS.guards.remove(self)

    def note(self, number: int) -> None:
        """The first signal came."""
        self.signal_number = number
        if self._answer:
            _say(f"{signal.Signals(number).name}: {self._answer}")


class _Process:
    """What the answer to a signal depends on in this process."""

    def __init__(self) -> None:
        self.guards: list[InterruptGuard] = []
        self.children: list[Iterable[Child]] = []
        self.checkpoint: Path | None = None
        #: Each signal of a run is a byte in this connection, which whoever reads it answers.
        self.wakers: tuple[socket.socket, socket.socket] | None = None
        self.answering = threading.RLock()


_THIS = _Process()


def end_with_this_process(children: Iterable[Child]) -> None:
    """Have processes killed when a signal ends this one; further ones may join the list later."""
    _THIS.children.append(children)


def _answer(number: int) -> None:
    guard = _THIS.guards[-1] if _THIS.guards else None
    if guard is not None and guard.signal_number is None:
        guard.note(number)
    elif hasattr(sys, "ps1"):
        raise Interrupted(number)
    else:
        _exit(number)


def _exit(number: int) -> NoReturn:
    """End this process and those that it started, whatever they are in."""
    with contextlib.suppress(Exception):
        for child in chain(*_THIS.children, multiprocessing.active_children()):
            with contextlib.suppress(OSError):
                child.kill()
        remove_generated_files()
    last = _THIS.checkpoint
    _say("interrupted" if last is None or not last.exists() else f"interrupted: go on with --ckpt_path {near(last)}")
    os._exit(128 + number)


def _say(line: str) -> None:
    """A line past the buffers of ``sys.stderr``, in which the signal may have come."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with contextlib.suppress(OSError):
            os.write(2, f"{line}\n".encode())


def _handle(number: int, frame: FrameType | None) -> None:
    """The handler, in the main thread."""
    own = -1 if _THIS.wakers is None else _THIS.wakers[1].fileno()
    current = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
    if current == own != -1:
        _answer_all()
    else:  # not in a run, or what the main thread is in has another connection there
        signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        _answer(number)


def _answer_all() -> bool:
    """Answer the signals of a run that have come; whether more may come."""
    with _THIS.answering:
        assert _THIS.wakers is not None
        try:
            numbers = _THIS.wakers[0].recv(64)
        except BlockingIOError:
            return True
        for number in numbers:
            if number in _SIGNALS and signal.getsignal(number) is _handle:
                _answer(number)
        return bool(numbers)


@contextlib.contextmanager
def _handled(signals: Sequence[int]) -> Iterator[None]:
    """Answer signals as this module does, in the main thread, the only one that can."""
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
    """Around a command: a signal ends the process. Those that the program handles or ignores itself are left alone."""
    plain = (signal.default_int_handler, signal.SIG_DFL, _handle)
    return _handled([] if hasattr(sys, "ps1") else [one for one in _SIGNALS if signal.getsignal(one) in plain])


@contextlib.contextmanager
def signals_of_a_run() -> Iterator[None]:
    """Meanwhile signals are answered even while the main thread is in C++, waiting for other ranks say."""
    mine = threading.current_thread() is threading.main_thread() and not hasattr(sys, "ps1")
    if not mine or _THIS.wakers is not None:
        yield
        return
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    _THIS.wakers = reading, writing
    watcher = threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writing.shutdown(socket.SHUT_WR)  # ends the watcher
        watcher.join()
        _THIS.wakers = None
        reading.close()
        writing.close()


def _watch(reading: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while selector.select() and _answer_all():
            pass


def _in_fork() -> None:
    """A forked process, a loader's worker say, leaves Ctrl-C to this one."""
    with contextlib.suppress(ValueError):
        if _THIS.wakers is not None:
            signal.set_wakeup_fd(-1)
        for number, action in zip(_SIGNALS, (signal.SIG_IGN, signal.SIG_DFL), strict=True):
            if signal.getsignal(number) is _handle:
                signal.signal(number, action)
    _THIS.__dict__ = vars(_Process())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)
