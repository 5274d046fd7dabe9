"""SIGINT and SIGTERM: a fit finishes its round and saves; once more, or outside of its rounds, all ends in seconds.

What ends a run is a :class:`KeyboardInterrupt`, so that everything is closed and other ranks are told. Python would
raise it at any line: in the middle of a queue of TensorBoard's, say, whose lock nobody gives back then, and closing the
logger waits for it for ever. So it is raised where the main thread is not inside of such code, and a process that has
not ended some seconds later ends without closing anything.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

from lightning_fl.generated_modules import remove_generated_files

__all__ = [
    "InterruptGuard",
    "Interrupted",
    "ends_at_once",
    "ends_on_signals",
    "ends_with_this_process",
    "signals_of_a_run",
    "signals_wait",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Modules whose locks and queues an exception at any line can leave unusable; imports that it can leave half done.
_DELICATE = frozenset(("threading", "queue", "logging", "tensorboard", "multiprocessing", "concurrent", "importlib"))
_OWN_DELICATE = ("lightning_fl.strategies.peers", "lightning_fl.strategies.fork_launcher")
#: Seconds: between two looks, until it is raised anywhere, and until the process ends whatever it is in.
_LOOK = 0.02
_PATIENCE = 1.0
_LAST_RESORT = 6.0


class Interrupted(KeyboardInterrupt):
    """A signal ends what runs.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class InterruptGuard:
    """Notes the first SIGINT or SIGTERM; a second one ends the run.

    The fit loop looks at :attr:`signal_number` after every round, so that all ranks stop after the same one.
    """

    signals = _SIGNALS

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._process = os.getpid()
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> "InterruptGuard":
        self._handlers.enter_context(_handled_by(self.note))
        self._outer, _THIS.guard = _THIS.guard, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _THIS.guard = self._outer
        self._handlers.close()
        if not _THIS.answers:
            _THIS.end = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """A handler."""
        if os.getpid() != self._process:  # a loader's worker: the first is the run's to answer
            signal.signal(number, signal.SIG_DFL)
        elif self.signal_number is not None:
            end(number, frame)
        else:
            _THIS.answered += 1
            self.signal_number = number
            if _speaks():
                name = signal.Signals(number).name
                _say(f"{name}: finishing the round, then saving a checkpoint (once more stops at once).")


class _End:
    """That a signal ends what this process does.

    Args:
        number: the signal.

    Attributes:
        raised: the main thread has got its exception.
        asked_again: by this process itself.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = time.monotonic()
        self.raised = False
        self.asked_again = False

    @property
    def seconds(self) -> float:
        """Since when."""
        return time.monotonic() - self.began

    def see_through(self) -> None:
        """Ask the main thread until it raises; end the process where that does not end by itself."""
        main = threading.main_thread().ident
        assert main is not None
        while self.seconds < _LAST_RESORT:
            time.sleep(_LOOK)
            if _THIS.end is not self:
                return
            if not self.raised:
                self.asked_again = True
                signal.pthread_kill(main, self.number)
        if not hasattr(sys, "ps1"):  # a notebook's process is more than this run
            _exit(self.number)


class Child(Protocol):
    """A process that this one has started."""

    def kill(self) -> None:
        """End it at once."""


class _Process:
    """What this process is at."""

    def __init__(self) -> None:
        self.end: _End | None = None
        self.guard: InterruptGuard | None = None
        #: Whoever is to be killed before this process ends without a word.
        self.children: list[Child] = []
        #: The calls around what ends: in a worker of ``multiprocessing``, say, whose own code is not interrupted.
        self.around: set[FrameType] = set()
        #: A command or a run answers signals, and within a run.
        self.answers = False
        self.runs = False
        #: Signals of a run: those that came, and those that the main thread has answered.
        self.received = 0
        self.answered = 0


_THIS = _Process()


def begin_end(number: int) -> _End:
    """From now on a signal ends this process."""
    if _THIS.end is None:
        _THIS.end = _End(number)
        start_new_thread(_THIS.end.see_through, ())  # threading.Thread has a lock that this may have interrupted
    return _THIS.end


def end(number: int, frame: FrameType | None) -> None:
    """A handler: raise where nothing breaks by it.

    Raises:
        Interrupted: always, but now or later.
    """
    _THIS.answered += 1
    ending = begin_end(number)
    again, ending.asked_again = ending.asked_again, False
    if ending.raised:
        if not again:
            _exit(number)
        return
    inside = _delicate(frame)
    if inside == "importlib" and not _THIS.runs:  # nothing is lost yet
        _exit(number)
    if not inside or ending.seconds > _PATIENCE:
        ending.raised = True
        raise Interrupted(ending.number)


def _delicate(frame: FrameType | None) -> str:
    """The delicate module that a frame is inside of, if any."""
    while frame is not None and frame not in _THIS.around:
        name = str(frame.f_globals.get("__name__", ""))
        top = name.partition(".")[0]
        if top in _DELICATE or name in _OWN_DELICATE:
            return top
        frame = frame.f_back
    return ""


def _exit(number: int) -> NoReturn:
    """End this process and those that it started, whatever they are in."""
    for child in _THIS.children:
        with contextlib.suppress(OSError):
            child.kill()
    with contextlib.suppress(OSError):
        remove_generated_files()
    if _speaks():
        _say("interrupted")
    os._exit(128 + number)


def _speaks() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _say(line: str) -> None:
    """A line past the buffers of ``sys.stderr``, in which the signal may have come."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


@contextlib.contextmanager
def _handled_by(handler: Any, signals: Sequence[int] = _SIGNALS) -> Iterator[None]:
    """Let a handler answer the signals; in the main thread, the only one that can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


@contextlib.contextmanager
def ends_on_signals() -> Iterator[None]:
    """Around a command, or a run where no command is around it: a signal ends it, with :class:`Interrupted`.

    Signals that the program ignores or handles itself are left alone, and all of a notebook's.
    """
    if _THIS.answers:
        yield
        return
    _THIS.answers, _THIS.around = True, set(_calls())
    plain = [number for number in _SIGNALS if signal.getsignal(number) in _PLAIN]
    hook = sys.unraisablehook
    sys.unraisablehook = partial(_raised_in_vain, hook)
    try:
        with _handled_by(end, [] if hasattr(sys, "ps1") else plain):
            yield
    finally:
        _THIS.answers, _THIS.end, _THIS.around = False, None, set()
        sys.unraisablehook = hook


def _calls() -> Iterator[FrameType]:
    """The frames of the calls that are at work, from within."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _raised_in_vain(otherwise: Callable[[Any], Any], what: Any) -> None:
    """Ask again where Python dropped the exception: it came while an object was taken apart."""
    if isinstance(what.exc_value, Interrupted) and _THIS.end is not None:
        _THIS.end.raised = False
    else:
        otherwise(what)


def ends_at_once(code: int | None = None) -> None:
    """From now on signals end this process at once: nothing can be lost before a command and after it.

    Args:
        code: after a command: its exit code, with which the process ends in seconds even if Python's own end does not.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_now)

    def last_resort() -> None:
        time.sleep(_LAST_RESORT)
        os._exit(code or 0)

    if code is not None and code > 128:
        start_new_thread(last_resort, ())


def _end_now(number: int, frame: FrameType | None) -> None:
    _exit(number)


#: Handlers that nobody chose, or chose for the time before and after a command.
_PLAIN = (signal.default_int_handler, signal.SIG_DFL, _end_now)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Hold signals back for the moments in which children are started and not yet known."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ends_with_this_process(child: Child) -> None:
    """Have a process killed where this one ends without closing anything."""
    _THIS.children.append(child)


# -- while the main thread is in C++, waiting for other ranks say, Python calls no handler --------------------------


@contextlib.contextmanager
def signals_of_a_run() -> Iterator[None]:
    """For the time of a run: signals that the main thread does not answer in time end the process nevertheless."""
    mine = threading.current_thread() is threading.main_thread() and not hasattr(sys, "ps1")
    if not mine or _THIS.runs:
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    if before != -1:  # an event loop's
        signal.set_wakeup_fd(before)
        reading.close()
        writing.close()
        yield
        return
    _THIS.received = _THIS.answered = 0
    watcher = threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True)
    watcher.start()
    _THIS.runs = True
    try:
        yield
    finally:
        _THIS.runs = False
        signal.set_wakeup_fd(-1)
        writing.close()  # which ends the watcher
        watcher.join()
        reading.close()


def _watch(reading: socket.socket) -> None:
    while numbers := reading.recv(64):
        for number in numbers:
            if number not in _SIGNALS:
                continue
            _THIS.received += 1
            waiting = _THIS.received - _THIS.answered
            if waiting <= 0:  # the main thread was faster, and may have left the guard that answered
                continue
            guard, handler = _THIS.guard, signal.getsignal(number)
            if guard is not None and handler == guard.note:
                if guard.signal_number is not None or waiting > 1:
                    begin_end(number)
            elif handler is end:
                begin_end(number)


def _in_fork() -> None:
    """A forked process has signals of its own."""
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
    _THIS.children.clear()
    _THIS.runs = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)
