"""SIGINT and SIGTERM: the first asks a fit to finish its round, the second ends the process at once.

Nothing needs to be closed: every round can be resumed, and a kill leaves no damaged file to resume from. In a notebook,
where the process is more than a run, the second signal is Python's KeyboardInterrupt.
"""

import atexit
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from lightning_fl.core.escaping import printable
from lightning_fl.files.generated_modules import remove_generated_files
from lightning_fl.files.user_file import near

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GUARDS: list["InterruptGuard"] = []
_CHILDREN: list[Iterable[Any]] = []
#: Sockets from which a run's signals are read and to which they are written, and the lock of the reading thread.
_WAKEUP: list[socket.socket] = []
_READING = threading.RLock()


class InterruptGuard(ExitStack):
    """Context in which the first SIGINT or SIGTERM prints ``answer`` and is only noted, in :attr:`signal_number`."""

    last_checkpoint: Path | None = None

    def __init__(self, answer: str = "", checkpoint: Path | None = None) -> None:
        super().__init__()
        self.signal_number: int | None = None
        self.answer = answer
        InterruptGuard.last_checkpoint = checkpoint or InterruptGuard.last_checkpoint

    def __enter__(self) -> "InterruptGuard":
        _GUARDS.append(self)
        self.callback(_GUARDS.remove, self)
        self.enter_context(_handled(_SIGNALS))
        return self


def end_with_this_process(children: Iterable[Any]) -> None:
    """Kill these processes in :func:`end_process`; more may be added to the collection later."""
    _CHILDREN.append(children)


def end_process(code: int, reason: str) -> NoReturn:
    """End this process and its children at once, with one line on the reason and on how to resume."""
    with suppress(Exception):
        for child in chain(*_CHILDREN, multiprocessing.active_children()):
            child.kill()
        remove_generated_files()
    last = InterruptGuard.last_checkpoint
    _say(reason.rstrip(".") + ("" if last is None or not last.exists() else f": resume with --ckpt_path {near(last)}"))
    os._exit(code)


def end_fork(code: int) -> NoReturn:
    """End this process without taking modules apart, which takes half a second and copies what a fork shares."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say(line: str) -> None:
    """Print a line on the first rank of a machine, past the buffers of ``sys.stderr``, which may be in use."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with suppress(OSError):
            os.write(2, f"{printable(line)}\n".encode())


def _answer(number: int) -> None:
    guard = _GUARDS[-1] if _GUARDS else None
    if guard is not None and guard.signal_number is None:
        guard.signal_number = number
        if guard.answer:
            _say(f"{signal.Signals(number).name}: {guard.answer}")
    elif hasattr(sys, "ps1"):
        raise KeyboardInterrupt
    else:
        end_process(128 + number, "interrupted")


def _read() -> None:
    """Handle the pending signals of a run."""
    with _READING, suppress(BlockingIOError):
        while _WAKEUP and (number := _WAKEUP[0].recv(1, socket.MSG_DONTWAIT)):
            if signal.getsignal(number[0]) is _handle:
                _answer(number[0])


def _handle(number: int, _: object) -> None:
    if _WAKEUP:
        own = _WAKEUP[1].fileno()
        found = signal.set_wakeup_fd(own, warn_on_full_buffer=False)  # a signal meanwhile is read as a further one
        if found == own:
            _read()
            return
        signal.set_wakeup_fd(found, warn_on_full_buffer=False)
    _answer(number)  # also where user code, such as an event loop, took the descriptor


@contextmanager
def _handled(signals: Sequence[int]) -> Iterator[None]:
    """Install the handler if this is the main thread, the only one that can."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, _handle) for number in signals if main}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def ends_on_signals() -> AbstractContextManager[None]:
    """Context of a command, which a signal ends; signals that the program handles or ignores itself are left alone."""
    plain = (signal.default_int_handler, signal.SIG_DFL, _handle)
    return _handled([number for number in _SIGNALS if signal.getsignal(number) in plain])


@contextmanager
def signals_of_a_run() -> Iterator[None]:
    """Answer signals even while the main thread is in C++, for example waiting for other ranks."""
    main = threading.current_thread() is threading.main_thread() and hasattr(socket, "MSG_DONTWAIT")
    if _WAKEUP or not main or hasattr(sys, "ps1"):
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    _WAKEUP.extend((reading, writing))

    def watch() -> None:
        while reading.recv(1, socket.MSG_PEEK):
            _read()

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        _WAKEUP.clear()
        signal.set_wakeup_fd(before)
        writing.close()  # ends the watcher
        watcher.join()
        reading.close()


def _in_fork() -> None:
    """Leave Ctrl-C to this process, and end on SIGTERM, in forks such as workers of data loaders."""
    if _WAKEUP:
        signal.set_wakeup_fd(-1)
    for number, action in zip(_SIGNALS, (signal.SIG_IGN, signal.SIG_DFL), strict=True):
        if signal.getsignal(number) is _handle:
            signal.signal(number, action)
    for state in (_WAKEUP, _GUARDS, _CHILDREN):
        state.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)
