"""Runs the cells of a study on Ray (the extra ``lightning-fl[ray]``): a cluster that there is, or one on this machine.

All nodes see the study's folder under the same path, and have the same Python environment.
"""

import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lightning_fl.errors import ConfigurationError, cut
from lightning_fl.extras import expect_extra
from lightning_fl.study.cells import Cell
from lightning_fl.study.ray_task import run_words
from lightning_fl.study.schedule import known_seconds, next_cell, seconds_left
from lightning_fl.study.workers import Watcher, Workers, usable_cores

__all__ = ["RayWorkers"]

_TICK_SECONDS = 1.0
_ANSWER_SECONDS = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Of this process's environment what a run's result or data depend on.
_PASSED_ON = ("PYTHONPATH", "LIGHTNING_FL_DATA", "LIGHTNING_FL_CACHE", "LIGHTNING_FL_OFFLINE")


@dataclass
class _Job:
    cell: Cell
    ref: Any
    began: float


class RayWorkers:
    """Ray tasks that run cells, with the interface of :class:`~lightning_fl.study.workers.Workers`.

    Each takes a CPU, and a GPU where the cluster has some and its cell may use one.

    Args:
        address: of a cluster, ``auto`` for the one of this machine or of ``RAY_ADDRESS``, ``local`` for a new one.
        num_workers: cells at once; ``None`` for as many as the cluster has GPUs, or CPUs where cells use none.
        cells: what is to be run.
        out: the study's folder.

    Raises:
        ConfigurationError: Ray is not installed, no cluster answers, or ``num_workers`` is below 1.
    """

    def __init__(self, address: str, num_workers: int | None, cells: Sequence[Cell], out: Path) -> None:
        expect_extra("ray", "ray", f"--ray {address}")
        self._local = Workers(1 if num_workers is None else num_workers)
        self.interrupted_by: int | None = None
        self._again = False
        self._jobs: list[_Job] = []
        self._stop = out.absolute() / f".stop-{secrets.token_hex(4)}"
        # Under `uv run` Ray would send the working directory to every node and build the environment there anew, which
        # takes longer than it waits for a worker. Nodes have the environment.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray

        self._ray = ray
        new = {"num_cpus": usable_cores(), "include_dashboard": False} if address == "local" else {"address": address}
        try:
            if ":" in address:  # Ray itself waits long for one that does not answer
                host, _, port = address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
            ray.init(**new, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        except Exception as error:  # of several kinds, from a wrong address to another version of Ray there
            raise ConfigurationError(
                f"--ray {address}: no Ray cluster answers: {cut(' '.join(str(error).split()), 200)} Start one with `ray"
                " start --head`, or take --ray local."
            ) from error
        there = ray.cluster_resources()
        self._gpus = bool(there.get("GPU")) and any(cell.accelerator != "cpu" for cell in cells)
        self.num_workers = num_workers or max(1, int(there.get("GPU" if self._gpus else "CPU", 1)))

    def check(self, cells: Sequence[Cell]) -> None:
        """As :meth:`~lightning_fl.study.workers.Workers.check`, on this machine."""
        self._local.check(cells)

    def run(
        self,
        cells: Sequence[Cell],
        watcher: Watcher,
        known: Sequence[Cell],
        commit: str,
        check: Callable[[Cell], None] = lambda cell: None,
    ) -> None:
        """As :meth:`~lightning_fl.study.workers.Workers.run`. A cell whose node is lost counts as killed."""
        pending = list(cells)
        seconds = known_seconds(known)
        with self._signals(watcher):
            try:
                while self._jobs or (pending and not self.interrupted_by):
                    while pending and not self.interrupted_by and len(self._jobs) < self.num_workers:
                        cell = next_cell(pending, [job.cell for job in self._jobs], seconds)
                        pending.remove(cell)
                        if cell.finished() is None:
                            self._start(cell, watcher, commit)
                    self._pass_signals_on(watcher)
                    for job in self._ended():
                        self._jobs.remove(job)
                        took = time.monotonic() - job.began
                        code = self._code(job)
                        if code == 0 or not self.interrupted_by:  # one that was asked to stop did not fail
                            job.cell.note_end(took, code)
                        seconds = known_seconds(known)
                        watcher.ended(job.cell, took, self._left(pending, seconds))
                        check(job.cell)
                    watcher.tick(self._running(), self._left(pending, seconds))
            finally:
                for job in self._jobs:
                    self._ray.cancel(job.ref, force=True)
                self._jobs.clear()
                self._stop.unlink(missing_ok=True)
                self._ray.shutdown()

    def _start(self, cell: Cell, watcher: Watcher, commit: str) -> None:
        cell.prepare()
        resumed = cell.resumable()
        cell.note_start(resumed, commit)
        gpus = 1 if self._gpus and cell.accelerator != "cpu" else 0
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"OMP_NUM_THREADS": "1"}
        task = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_on_node)
        ref = task.remote(cell.words(), str(cell.log), os.getcwd(), environment, str(self._stop))
        self._jobs.append(_Job(cell, ref, time.monotonic()))
        watcher.started(cell, resumed)

    def _ended(self) -> list[_Job]:
        refs = [job.ref for job in self._jobs]
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=_TICK_SECONDS) if refs else ([], [])
        return [job for job in self._jobs if job.ref in ready]

    def _code(self, job: _Job) -> int:
        try:
            return int(self._ray.get(job.ref))
        except self._ray.exceptions.RayTaskError:
            raise  # a mistake of ours, not of the run
        except self._ray.exceptions.RayError:
            return -int(signal.SIGKILL)

    def _running(self) -> dict[Cell, float]:
        now = time.monotonic()
        return {job.cell: now - job.began for job in self._jobs}

    def _left(self, pending: Sequence[Cell], seconds: Mapping[Any, float]) -> float | None:
        return seconds_left(pending, self._running(), seconds, self.num_workers)

    def _pass_signals_on(self, watcher: Watcher) -> None:
        """The first signal asks every run to finish its round, by a file that tasks look for; a second ends them."""
        if self.interrupted_by and not self._stop.exists():
            self._stop.touch()
            watcher.stopping(signal.Signals(self.interrupted_by).name)
        if self._again:
            for job in self._jobs:
                self._ray.cancel(job.ref, force=True)

    @contextlib.contextmanager
    def _signals(self, watcher: Watcher) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self._again = self.interrupted_by is not None
            self.interrupted_by = self.interrupted_by or number

        before = {number: signal.signal(number, handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _on_node(words: list[str], log: str, folder: str, environment: dict[str, str], stop: str) -> int:
    import ray

    return run_words(words, log, folder, environment, stop, ray.get_runtime_context().get_node_id())
