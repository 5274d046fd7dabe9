"""Processes that tests start: waited for by what they do, never by a clock, and none is left when its test ends.

:func:`start` starts a command; the fixture ``start_warm`` does the same for the words of ``python`` in a fork of a
process that has imported everything already (``warm.py``), which saves the seconds that imports take. What is started
either way is a :class:`Process`.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from pathlib import Path
from select import select
from typing import NamedTuple

import psutil
import pytest

__all__ = [
    "LIMIT",
    "SUPPORT",
    "Ended",
    "Process",
    "WarmPython",
    "no_process_left",
    "nothing_left",
    "reserved_port",
    "run",
    "start",
    "start_warm",
    "succeed",
    "succeed_as_two_ranks",
    "warm_python",
]

#: Seconds: a net for what would never end. Nothing in a test that passes is waited for by time.
LIMIT = 900.0
#: The folder of the modules that tests share.
SUPPORT = Path(__file__).parent
_ROOT = SUPPORT.parents[1]


class Ended(NamedTuple):
    """What is left of a process that has ended."""

    code: int
    out: str
    err: str


class Process:
    """A process that was started, and its output.

    Args:
        pid: its number.
        out: the end of a pipe from which its standard output is read.
        err: the same for its standard error.
        exit_code: waits for its end.
    """

    def __init__(self, pid: int, out: int, err: int, exit_code: Callable[[], int]) -> None:
        self.pid = pid
        self.exit_code = exit_code
        self._out, self._err = bytearray(), bytearray()
        self.open = {out: self._out, err: self._err}

    @property
    def out(self) -> str:
        """What has been read of its standard output."""
        return self._out.decode(errors="replace")

    @property
    def err(self) -> str:
        """What has been read of its standard error."""
        return self._err.decode(errors="replace")

    def until_it_prints(self, words: str) -> None:
        """Wait until its standard output holds the words."""
        _read([self], lambda: words in self.out)
        assert words in self.out, f"it ended without printing {words!r}\n{self}"

    def until_it_says(self, words: str) -> None:
        """Wait until its standard error holds the words."""
        _read([self], lambda: words in self.err)
        assert words in self.err, f"it ended without saying {words!r}\n{self}"

    def until_it_connects(self, server: socket.socket) -> socket.socket:
        """Wait until it, or a process that it started, connects to a socket."""
        connections: list[socket.socket] = []
        _read([self], lambda: bool(connections), server, connections)
        assert connections, f"it ended without a connection\n{self}"
        return connections[0]

    def end(self) -> Ended:
        """Wait until it has ended, and with it all processes that share its output."""
        _read([self])
        return Ended(self.exit_code(), self.out, self.err)

    def send_signal(self, number: int) -> None:
        """Send it, and only it, a signal."""
        os.kill(self.pid, number)

    def __str__(self) -> str:
        return f"-- standard output --\n{self.out[-3000:]}\n-- standard error --\n{self.err[-6000:]}"


def succeed(*processes: Process) -> None:
    """Wait until all have ended well; the first that does not is an error at once, though others may wait for it."""
    left = list(processes)
    while left:
        _read(left, lambda: not all(process.open for process in left))
        for process in [process for process in left if not process.open]:
            left.remove(process)
            code = process.exit_code()
            assert code == 0, f"process {processes.index(process)} ended with exit code {code}\n{process}"


def _read(
    processes: Sequence[Process],
    enough: Callable[[], bool] = lambda: False,
    server: socket.socket | None = None,
    connections: list[socket.socket] | None = None,
) -> None:
    """Read what processes print until it is enough or all have ended; meanwhile take a server's connections."""
    deadline = time.monotonic() + LIMIT
    with selectors.DefaultSelector() as selector:
        for process in processes:
            for stream in process.open:
                selector.register(stream, selectors.EVENT_READ, process)
        if server is not None:
            selector.register(server, selectors.EVENT_READ)
        while any(process.open for process in processes) and not enough():
            events = selector.select(deadline - time.monotonic())
            assert events, "\n".join([f"nothing came of it for {LIMIT} s", *map(str, processes)])
            for key, _ in events:
                if key.data is None:
                    assert server is not None
                    assert connections is not None
                    connections.append(server.accept()[0])
                elif chunk := os.read(key.fd, 1 << 16):
                    key.data.open[key.fd] += chunk
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    del key.data.open[key.fd]


def _environment(more: dict[str, str] | None) -> dict[str, str]:
    """This process's environment with more variables, and with this package found first."""
    result = {**os.environ, **(more or {})}
    result["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [result.get("PYTHONPATH")])])
    return result


def start(*command: object, environment: dict[str, str] | None = None, cores: list[int] | None = None) -> Process:
    """Start a command in a session of its own.

    Args:
        command: its words.
        environment: variables besides this process's own.
        cores: those that it may use; ``None`` for all.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        env=_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
    process.stdout.close()
    process.stderr.close()
    return Process(process.pid, out, err, lambda: process.wait(LIMIT))


def run(*command: object, environment: dict[str, str] | None = None, cores: list[int] | None = None) -> Ended:
    """Start a command and wait for its end."""
    return start(*command, environment=environment, cores=cores).end()


class WarmPython:
    """A process of ``warm.py``: forks of it start without importing anything."""

    def __init__(self) -> None:
        self._channel, other = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("warm.py")), str(other.fileno())],
            env=_environment({"OMP_NUM_THREADS": "1", "LIGHTNING_FL_OFFLINE": "1"}),
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        other.close()

    def start(
        self, *words: object, environment: dict[str, str] | None = None, cores: list[int] | None = None
    ) -> Process:
        """What ``start(sys.executable, *words)`` does, in a fork; arguments as there."""
        request = {
            "words": [str(word) for word in words],
            "environment": _environment(environment),
            "folder": str(Path.cwd()),
            "cores": cores,
        }
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(self._channel, [json.dumps(request).encode() + b"\n"], [theirs for _, theirs in pipes])
        for _, theirs in pipes:
            os.close(theirs)
        out, err, told = (ours for ours, _ in pipes)
        # The process's number at once, its exit code when it has ended; nothing if what forks it has failed.
        lines = os.fdopen(told)
        pid = lines.readline()
        assert pid, "the process that forks others has ended"

        def exit_code() -> int:
            with lines:
                assert select([lines], [], [], LIMIT)[0], f"process {pid} has closed its output and does not end"
                return int(lines.readline())

        return Process(int(pid), out, err, exit_code)

    def close(self) -> None:
        """End it."""
        self._channel.close()
        self._process.wait(LIMIT)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """One for all tests of this process, from when a test needs it first."""
    python = WarmPython()
    yield python
    python.close()


@pytest.fixture
def start_warm(warm_python: WarmPython) -> Callable[..., Process]:
    """Start a Python that has imported everything, with arguments as for :func:`start`."""
    return warm_python.start


@contextmanager
def nothing_left(failed: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """See that all processes that are started meanwhile end, those too that they start themselves.

    Args:
        failed: whether something went wrong anyhow, so that what runs is not waited for but ended at once.

    Raises:
        AssertionError: some did not end by themselves. None is running any more.
    """
    if sys.platform == "linux":
        CDLL(None).prctl(
            36, 1, 0, 0, 0
        )  # PR_SET_CHILD_SUBREAPER: whose parent has ended becomes a child of this process
    this = psutil.Process()
    before = set(this.children(recursive=True))
    hopeless = True
    try:
        yield
        hopeless = failed()
    finally:
        _, left = psutil.wait_procs(_started(this, before), timeout=0 if hopeless else LIMIT)
        lines = [_line(process) for process in left]
        while left:  # whoever is ended may have started another one meanwhile
            for process in left:
                process.kill()
            psutil.wait_procs(left)
            left = _started(this, before)
        assert hopeless or not lines, f"left behind: {lines}"


def _started(this: psutil.Process, before: set[psutil.Process]) -> list[psutil.Process]:
    return [process for process in this.children(recursive=True) if process not in before]


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return f"process {process.pid}"


@pytest.fixture(autouse=True)
def no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test with the mark ``processes`` starts ends with it."""
    if request.node.get_closest_marker("processes") is None:
        yield
        return
    failures = request.session.testsfailed
    with nothing_left(failed=lambda: request.session.testsfailed > failures):
        yield


def succeed_as_two_ranks(begin: Callable[..., Process], *words: object) -> None:
    """Start the words of ``python`` twice, each time with another rank of two, and wait until both have ended well."""
    with reserved_port() as port:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "WORLD_SIZE": "2"}
        shared["OMP_NUM_THREADS"] = "1"
        succeed(*(begin(*words, environment={**shared, "LOCAL_RANK": rank}) for rank in ("0", "1")))


@contextmanager
def reserved_port() -> Iterator[str]:
    """A port that this process's children can listen at and nobody else is given.

    A socket that is bound but does not listen keeps the system from handing out its port, and lets others that say
    ``SO_REUSEADDR``, as torch's do, bind to it too.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield str(reserved.getsockname()[1])
