"""Commands started as forks of a Python that has imported everything, or as processes of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from select import select

__all__ = ["Started", "WarmPython"]

SERVER = Path(__file__).resolve().parents[2] / "tests" / "support" / "warm.py"

#: Variables of this process that would change what is tried.
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "UV_CACHE_DIR")


class Started:
    """A command, its output in two files, and all processes of its session."""

    def __init__(self, pid: int, folder: Path, name: str) -> None:
        self.pid = pid
        self.code: int | None = None
        #: Where its temporary files go.
        self.temporary = folder / f"{name}.tmp"
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._lines: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has printed to standard error so far."""
        return self._err.read_text(errors="replace")

    def wait(self, seconds: float) -> bool:
        """Wait for its own end, not for that of others in its session; whether it has ended."""
        if self.code is not None:
            return True
        if self._process is not None:
            try:
                self.code = self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return False
            return True
        assert self._lines is not None
        if not select([self._lines], [], [], max(0.0, seconds))[0]:
            return False
        text = os.read(self._lines, 100).decode().strip()
        self.code = int(text) if text else -signal.SIGKILL
        os.close(self._lines)
        return True

    def session(self) -> list[int]:
        """Living processes of its session, which bears its number."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self.pid and fields[0] not in "ZX":
                    found.append(int(name))
        return sorted(found)

    def all_ended(self, seconds: float) -> bool:
        """Wait until no process of the session is left; whether that is so."""
        until = time.monotonic() + seconds
        while self.session():
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def send(self, number: int, *pids: int) -> None:
        """Send a signal to some processes of the session, or to the first."""
        for pid in pids or (self.pid,):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_all(self) -> None:
        """End the whole session at once."""
        while left := self.session():
            self.send(signal.SIGKILL, *left)
            time.sleep(0.005)


class WarmPython:
    """Starts commands of one installation.

    Args:
        python: its interpreter; the package that this one imports is what is tried.
        scratch: where the server lives.
    """

    def __init__(self, python: str, scratch: Path) -> None:
        self.python = python
        self._lock = threading.Lock()
        self._channel, other = socket.socketpair()
        environment = self.environment() | {"PYTHONPATH": ""}
        self._process = subprocess.Popen(
            [python, str(SERVER), str(other.fileno())],
            env=environment,
            cwd=scratch,
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        other.close()
        self._count = 0

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """What commands find in their environment."""
        own = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return own | {"OMP_NUM_THREADS": "1", "LIGHTNING_FL_OFFLINE": "1", **(more or {})}

    def start(
        self,
        words: list[str],
        folder: Path,
        more: dict[str, str] | None = None,
        *,
        real: bool = False,
        inside: str = ".",
    ) -> Started:
        """Start ``python WORDS`` in a folder or ``inside`` one of it, as a fork or as a process of its own."""
        with self._lock:
            self._count += 1
            name = f"command_{self._count}"
        logs = folder.parent / f"{folder.name}.logs"
        logs.mkdir(exist_ok=True)
        temporary = logs / f"{name}.tmp"
        temporary.mkdir(exist_ok=True)
        environment = self.environment({"TMPDIR": str(temporary), **(more or {})})
        out = os.open(logs / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        err = os.open(logs / f"{name}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        try:
            if real:
                process = subprocess.Popen(
                    [self.python, *words],
                    env=environment,
                    cwd=folder / inside,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
                started = Started(process.pid, logs, name)
                started._process = process
                return started
            ours, theirs = os.pipe()
            request = {"words": words, "environment": environment, "folder": str(folder / inside), "cores": None}
            with self._lock:
                line = json.dumps(request).encode() + b"\n"
                socket.send_fds(self._channel, [line[:60000]], [out, err, theirs])
                if line[60000:]:
                    self._channel.sendall(line[60000:])
            os.close(theirs)
        finally:
            os.close(out)
            os.close(err)
        pid = b""
        while not pid.endswith(b"\n"):
            byte = os.read(ours, 1)
            if not byte:
                sys.exit("the warm Python has ended: see what it printed above")
            pid += byte
        started = Started(int(pid), logs, name)
        started._lines = ours
        return started

    def close(self) -> None:
        """End the server."""
        self._channel.close()
        self._process.wait(60)
