"""Starts the other processes of a run as forks of the one that has imported and instantiated everything.

Fabric's own launcher runs the command again in each process: every one imports torch and reads the recipe anew, for
seconds, and holds hundreds of megabytes of code of its own. A fork starts at once and shares them.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from lightning.fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.fabric.utilities.distributed import _destroy_dist_connection

from lightning_fl.strategies.rendezvous import INTERFACE_VARIABLES

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

__all__ = ["ForkLauncher", "end_fork", "forks_end_here"]

#: What Fabric reads ranks from, and what ranks listen on.
_ENVIRONMENT = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", *INTERFACE_VARIABLES)


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

    def wait(self) -> None:
        """Until it has ended."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

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

    Attributes:
        ended: the forks are gone, and this process goes on without them.
    """

    procs: list[Any]
    ended = False

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
                    return
                self.procs.append(ForkedProcess(pid))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def forks_end_here(is_rank_zero: Callable[[], bool], launcher: ForkLauncher) -> Iterator[None]:
    """End the forks of a launcher with the block: in a notebook they must not go on to what follows its cell.

    Afterwards this process is as it was, so that others may be started from it. An error of rank zero's is raised; it
    has those of the others by then.

    Args:
        is_rank_zero: whether this is the process that goes on.
        launcher: starts the forks inside of the block.
    """
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    try:
        yield
    except BaseException:
        if not is_rank_zero():
            end_fork(0)  # another code would make Fabric end rank zero, and the notebook with it
        for process in launcher.procs:
            process.kill()
        raise
    else:
        if not is_rank_zero():
            end_fork(0)
        for process in launcher.procs:
            process.wait()
    finally:
        launcher.ended = True
        _destroy_dist_connection()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def end_fork(code: int) -> NoReturn:
    """End a forked process, as ``multiprocessing`` ends its own.

    Python's own end would take every module apart, and so copy the hundreds of megabytes that are shared with rank 0.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
