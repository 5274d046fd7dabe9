"""Runs a command round by round, and measures from outside what all its processes take. Linux only.

An arm waits after every round (``arms/rounds.py``) until it is told to go on. So arms take turns round by round, and
what else the machine does meanwhile meets all of them alike.
"""

import ctypes
import select
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psutil

MIB = 2**20
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_INTERVAL = 1.0  # seconds; a look at a process takes milliseconds, which the arm loses


@dataclass
class Outcome:
    """What a command did; memory is the largest sum over its processes, resident and with shared pages counted once."""

    started: float
    turns: list[float] = field(default_factory=list)  #: seconds
    processor: list[float] = field(default_factory=list)  #: seconds of processor time in every turn
    slowness: list[float] = field(default_factory=list)  #: of the machine around every turn, see :func:`yardstick`
    exit_code: int | None = None  #: ``None`` while it runs, and if it was stopped when its time was over
    rss_mib: float = 0.0
    pss_mib: float = 0.0
    processes: int = 0


class PausedCommand:
    """A command that runs only in its turns.

    Args:
        command: the words.
        ranks: how many of its processes wait at the end of a round.
        environment: its environment variables.
        folder: where it runs and its output goes.
    """

    all: ClassVar[list["PausedCommand"]] = []

    def __init__(self, command: list[str], ranks: int, *, environment: dict[str, str], folder: Path) -> None:
        # Processes whose parents end become children of this one, so that none is lost from sight.
        ctypes.CDLL(None).prctl(_SUBREAPER, 1)
        self.folder, self.log, self._ranks = folder, folder / "output.log", ranks
        self._processes: set[psutil.Process] = set()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "turns"))
        self._server.listen()
        self._waiting: list[socket.socket] = []
        self.outcome = Outcome(started=time.monotonic())
        self.all.append(self)
        environment = {**environment, "BENCH_TURNS": str(folder / "turns")}
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)

    def turn(self, timeout: float, look: bool = False) -> bool:
        """Let the command go on to the end of a round, or to its own; returns whether it waits for another turn.

        With ``look``, memory is looked at meanwhile; it would count pages that other commands share as theirs too.
        """
        outcome, before, slowness = self.outcome, self._processor_time(), yardstick()
        begin = time.monotonic()
        running, self._waiting = self._waiting, []
        for rank in running:
            rank.sendall(b".")
        while len(self._waiting) < self._ranks and time.monotonic() - begin < timeout:
            ready, _, _ = select.select([self._server, *running], [], [], _INTERVAL)
            for each in ready:
                if each is self._server:
                    running.append(each.accept()[0])
                else:
                    running.remove(each)
                    if each.recv(1):
                        self._waiting.append(each)
            if self._process.poll() is not None:
                outcome.exit_code = self._process.returncode
                break
            if look:
                self._look()
        outcome.turns.append(time.monotonic() - begin)
        outcome.processor.append(self._processor_time() - before)
        outcome.slowness.append(max(slowness, yardstick()))
        return len(self._waiting) == self._ranks

    def close(self) -> None:
        """End whatever is left of the command."""
        self._server.close()
        for _ in range(10):  # what is killed may have started others meanwhile
            self._find()
            alive = [process for process in self._processes if process.is_running()]
            if not alive:
                break
            for process in alive:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(alive, timeout=5)  # a child that has ended stays in the list until it is waited for
        self._process.wait()
        self.all.remove(self)

    def _find(self) -> None:
        """Whatever is new was started by this command: the others wait."""
        self._processes.update(psutil.Process().children(recursive=True))
        self._processes -= set().union(*(other._processes for other in self.all if other is not self))

    def _processor_time(self) -> float:
        self._find()
        total = 0.0
        for process in self._processes:
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def _look(self) -> None:
        self._find()
        rss, pss, processes = 0, 0, 0
        for process in self._processes:
            with suppress(psutil.Error, OSError):
                rss += process.memory_info().rss
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
                pss += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
                processes += 1
        outcome = self.outcome
        outcome.rss_mib, outcome.pss_mib = max(outcome.rss_mib, rss / MIB), max(outcome.pss_mib, pss / MIB)
        outcome.processes = max(outcome.processes, processes)


def yardstick() -> float:
    """Seconds that a fixed amount of arithmetic and copying takes now: what others on the machine make of it."""
    begin = time.perf_counter()
    sum(number * number for number in range(100_000))
    for _ in range(4):
        bytes(bytearray(8 * MIB))
    return time.perf_counter() - begin
