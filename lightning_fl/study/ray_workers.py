"""Ray workers of a study (the extra ``lightning-fl[ray]``), on an existing or a local cluster.

All nodes need the study's folder under the same path and the same Python environment.
"""

import os
import secrets
import signal
import socket
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lightning_fl.core.environment import usable_cores
from lightning_fl.core.errors import ConfigurationError, cut, expect_extra
from lightning_fl.study.cells import Cell
from lightning_fl.study.ray_task import run_command
from lightning_fl.study.workers import TICK_SECONDS

_ANSWER_SECONDS = 10.0
#: Environment variables that a run depends on.
_PASSED_ON = ("PYTHONPATH", "LIGHTNING_FL_DATA", "LIGHTNING_FL_CACHE", "LIGHTNING_FL_OFFLINE")


class RayWorkers:
    """Ray tasks that run cells, a :class:`~lightning_fl.study.workers.Runner`.

    A task takes a CPU, and a GPU if the cluster has some and its cell may use one. The default number of workers is
    that of the GPUs, or of the CPUs if cells use no GPU. ``address`` is that of a cluster; ``auto`` for this machine's
    or ``RAY_ADDRESS``, ``local`` for a new one.
    """

    def __init__(self, address: str, num_workers: int | None, cells: Sequence[Cell], out: Path) -> None:
        expect_extra("ray", "ray", f"--ray {address}")
        self._stop = out.absolute() / f".stop-{secrets.token_hex(4)}"
        # Under `uv run` Ray would send the working directory to every node and rebuild the environment there, which
        # takes longer than it waits for a worker. Nodes have the environment.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray

        self._ray = ray
        new = {"num_cpus": usable_cores(), "include_dashboard": False} if address == "local" else {}
        try:
            if ":" in address:  # Ray's own timeout is long
                host, _, port = address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
            ray.init(address=address, **new, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        except Exception as error:  # many types, from a wrong address to another version of Ray
            reason = cut(" ".join(str(error).split()), 200).rstrip(".")
            remedy = "Run `ray start --head`, or use --ray local."
            raise ConfigurationError(f"--ray {address}: no cluster responds: {reason}. {remedy}") from error
        resources = ray.cluster_resources()
        self._use_gpus = bool(resources.get("GPU")) and any(cell.accelerator != "cpu" for cell in cells)
        self.num_workers = num_workers or max(1, int(resources.get("GPU" if self._use_gpus else "CPU", 1)))

    def start(self, cell: Cell) -> Any:
        gpus = 1 if self._use_gpus and cell.accelerator != "cpu" else 0
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"OMP_NUM_THREADS": "1"}
        task = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(run_command)
        return task.remote(cell.arguments(), str(cell.log), os.getcwd(), environment, str(self._stop))

    def ended(self, jobs: Collection[Any]) -> dict[Any, int]:
        """Tasks that have ended, with the exit codes of their runs; a lost node counts as a kill."""
        ready, _ = self._ray.wait(list(jobs), num_returns=1, timeout=TICK_SECONDS) if jobs else ([], [])
        return {job: self._exit_code(job) for job in ready}

    def _exit_code(self, job: Any) -> int:
        try:
            return int(self._ray.get(job))
        except self._ray.exceptions.RayTaskError:
            raise  # a bug of this package, not of the run
        except self._ray.exceptions.RayError:
            return -int(signal.SIGKILL)

    def ask_to_stop(self, jobs: Collection[Any]) -> None:
        self._stop.touch()

    def kill(self, jobs: Collection[Any]) -> None:
        for job in jobs:
            self._ray.cancel(job, force=True)

    def close(self, jobs: Collection[Any]) -> None:
        self.kill(jobs)
        self._stop.unlink(missing_ok=True)
        self._ray.shutdown()
