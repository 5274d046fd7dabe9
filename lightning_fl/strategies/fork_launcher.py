"""Starts the other processes of a run as forks of the one that has imported and instantiated everything.

A fork starts in a quarter of a second and shares the code's memory; Fabric's own launcher runs the command again, which
imports torch and reads the recipe in every process: two processes started in 0.3 s against 10 s and more on a busy
machine of two cores, with 0.55 GB against 1.05 GB. Fabric's multiprocessing launcher forks too, but runs a function in
the forks only, so that the trainer of this process would have no results.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.fabric.utilities.distributed import _destroy_dist_connection, _set_num_threads_if_needed

from lightning_fl.strategies.rendezvous import INTERFACE_VARIABLES

__all__ = ["ForkLauncher", "end_fork", "forks_end_here"]

#: What Fabric reads ranks from, and what ranks listen on.
_ENVIRONMENT = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", *INTERFACE_VARIABLES)


class ForkedProcess:
    """Forked child ``pid``, with methods of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal, or ``None`` while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def kill(self) -> None:
        """Kill it if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkLauncher(_SubprocessScriptLauncher):
    """Fabric's launcher for processes on one machine, with forks instead of commands.

    A fork continues where ``launch`` was called, as rank 1, 2, ...; nothing before may depend on the rank, and no other
    thread or accelerator may be in use. Linux only: elsewhere system libraries do not survive a fork.

    Args:
        cluster_environment: source of ranks.
        num_processes: number of processes, including this one.

    Attributes:
        ended: the forks have ended, and this process continues alone.
    """

    procs: list[Any]
    ended = False

    def __init__(self, cluster_environment: ClusterEnvironment, num_processes: int) -> None:
        super().__init__(cluster_environment, num_processes, num_nodes=1)

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Fork, then call the function; other ranks are watched by :class:`.Peers`, which names one that is gone."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=1)
        self._check_can_spawn_children()
        environment = self.cluster_environment
        values = (environment.main_address, str(environment.main_port), "0", "0", str(self.num_processes))
        os.environ.update(zip(_ENVIRONMENT, values, strict=False))
        sys.stdout.flush()
        sys.stderr.flush()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)  # children are started and not yet known
        try:
            for rank in range(1, self.num_processes):
                pid = os.fork()
                if not pid:
                    for number, handler in handlers.items():  # other forks than a rank's have none
                        signal.signal(number, handler)
                    os.environ["LOCAL_RANK"] = str(rank)
                    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch's optimisers ask for a GPU's stream in every step
                    self.procs = []
                    break
                self.procs.append(ForkedProcess(pid))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


@contextmanager
def forks_end_here(is_rank_zero: Callable[[], bool], launcher: ForkLauncher) -> Iterator[None]:
    """End the launcher's forks with the block, so that they do not run what follows a notebook's cell.

    Afterwards others may be started from this process. The error raised is rank zero's, which has those of the others.

    Args:
        is_rank_zero: whether this is the process that continues.
        launcher: starts the forks inside the block.
    """
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    try:
        yield
        if is_rank_zero():
            while any(process.poll() is None for process in launcher.procs):
                time.sleep(0.01)
    finally:
        if not is_rank_zero():
            end_fork(0)
        for process in launcher.procs:
            process.kill()
        launcher.ended = True
        _destroy_dist_connection()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def end_fork(code: int) -> NoReturn:
    """End a forked process as ``multiprocessing`` ends its own.

    Python's own end would take every module apart, and so copy the hundreds of megabytes that are shared with rank 0.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
