"""Starts the other processes of a run as forks of the one that has imported and instantiated everything.

A fork starts in a quarter of a second and shares the code's memory; Fabric's own launcher runs the command again.
Fabric's multiprocessing launcher runs a function in the forks only: this process's trainer would have no results.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.popen_fork import Popen
from typing import Any

from lightning.fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed

from lightning_fl.engine.interrupt import end_fork
from lightning_fl.strategies.peers import INTERFACE_VARIABLES

#: What Fabric reads ranks from, and what ranks listen on.
_ENVIRONMENT = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", *INTERFACE_VARIABLES)


class ForkedProcess(Popen):
    """Forked child that continues from the call; ``pid`` is 0 in the child."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # a process object whose target it would run

    def _launch(self, process_obj: object) -> None:
        self.pid = os.fork()
        if not self.pid:
            gc.freeze()  # an earlier run's process group, freed here, would wait for threads that only its process has


class ScriptLauncher(_SubprocessScriptLauncher):
    """Fabric's launcher without the thread that kills this process if another ends: :class:`.Peers` says which did."""

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the script once more for every other rank, then call the function."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self._call_children_scripts()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


class ForkLauncher(_SubprocessScriptLauncher):
    """Fabric's launcher for processes on one machine, with forks instead of commands.

    A fork continues where ``launch`` was called, as rank 1, 2, ...; nothing before may depend on the rank, and no other
    thread or accelerator may be in use. Linux only: elsewhere system libraries do not survive a fork.
    """

    procs: list[Any]
    ended = False  #: the forks have ended, and this process continues alone

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Fork, then call the function; other ranks are watched by :class:`.Peers`, which names one that is gone."""
        environment = self.cluster_environment
        environment.validate_settings(num_devices=self.num_processes, num_nodes=1)
        self._check_can_spawn_children()
        values = (environment.main_address, str(environment.main_port), "0", "0", str(self.num_processes))
        os.environ.update(zip(_ENVIRONMENT, values, strict=False))
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)  # until all children are known
        for rank in range(1, self.num_processes):
            self.procs.append(ForkedProcess())
            if not self.procs[-1].pid:
                for number, handler in handlers.items():  # other forks than a rank's have none
                    signal.signal(number, handler)
                os.environ["LOCAL_RANK"] = str(rank)
                os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch's optimisers ask for a GPU's stream in every step
                self.procs = []
                break
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


@contextmanager
def end_forks_on_exit(launcher: ForkLauncher, disconnect: Callable[[], None]) -> Iterator[None]:
    """End the launcher's forks with the block, so that they do not run what follows a notebook's cell.

    The error raised is rank zero's, which has those of the others. ``disconnect`` leaves the exchanges.
    """
    own = os.getpid()
    before = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    try:
        yield
        for process in launcher.procs:
            process.wait()
    finally:
        if os.getpid() != own:
            end_fork(0)
        for process in launcher.procs:
            process.kill()
        launcher.ended = True
        disconnect()
        for name in _ENVIRONMENT:
            os.environ.pop(name, None)
        os.environ.update(before)
