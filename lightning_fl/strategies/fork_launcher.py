"""Starts the other processes of a run as forks of the one that has imported and instantiated everything.

Fabric's own launcher runs the command again in each process: every one imports torch and reads the recipe anew, for
seconds, and holds hundreds of megabytes of code of its own. A fork starts at once and shares them.
"""

import atexit
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from lightning.fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

__all__ = ["ForkLauncher", "end_fork"]


class ForkedProcess:
    """A child that was forked, as much of ``subprocess.Popen`` as Fabric asks for.

    Args:
        pid: the child.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative after a signal; ``None`` while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class ForkLauncher(_SubprocessScriptLauncher):
    """Fabric's launcher for processes on one machine, with forks in place of commands.

    A fork goes on where ``launch`` was called, as rank 1, 2, ...; nothing before may depend on the rank, no other
    thread may be at work and no accelerator in use. Linux only: elsewhere system libraries do not survive a fork.

    Args:
        cluster_environment: where ranks are read from.
        num_processes: with this one.
    """

    procs: list[Any]

    def __init__(self, cluster_environment: "ClusterEnvironment", num_processes: int) -> None:
        super().__init__(cluster_environment, num_processes, num_nodes=1)

    def _call_children_scripts(self) -> None:
        self._check_can_spawn_children()
        os.environ["MASTER_ADDR"] = self.cluster_environment.main_address
        os.environ["MASTER_PORT"] = str(self.cluster_environment.main_port)
        os.environ["NODE_RANK"] = "0"
        os.environ["LOCAL_RANK"] = "0"
        os.environ["WORLD_SIZE"] = str(self.num_processes)
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(1, self.num_processes):
            pid = os.fork()
            if not pid:
                os.environ["LOCAL_RANK"] = str(rank)
                self.procs = []
                return
            self.procs.append(ForkedProcess(pid))


def end_fork(code: int) -> NoReturn:
    """End a forked process, as ``multiprocessing`` ends its own.

    Python's own end would take every module apart, and so copy the hundreds of megabytes that are shared with rank 0.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
