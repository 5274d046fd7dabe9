"""Worker processes of a study on this machine.

Each cell is a fresh process, forked from a server that has imported :mod:`lightning_fl.study.warm`, so that it starts
within a fraction of a second.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from lightning_fl.core.environment import usable_cores
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, checked
from lightning_fl.engine.interrupt import end_with_this_process
from lightning_fl.recipe.error_messages import error_text, exit_code
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import parse
from lightning_fl.recipe.run import run
from lightning_fl.study.cells import Cell
from lightning_fl.study.claims import cell_name
from lightning_fl.study.workers import TICK_SECONDS


class _Server:
    """The fork server, which would otherwise finish its imports after the study has ended."""

    def kill(self) -> None:
        if (pid := getattr(forkserver._forkserver, "_forkserver_pid", None)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class LocalWorkers:
    """Processes that run cells, a :class:`~lightning_fl.study.workers.Runner`.

    If cells may use GPUs, these are distributed over the workers; a single worker has all of them. The default number
    of workers is that of the GPUs, or of the cores if cells use no GPU.
    """

    @checked
    def __init__(self, num_workers: Count | None, cells: Sequence[Cell] = ()) -> None:
        if "forkserver" not in multiprocessing.get_all_start_methods():
            raise ConfigurationError("lightning-fl study forks its workers: use Linux or macOS.")
        if os.getcwd() not in sys.path:  # for the user's own modules
            sys.path.append(os.getcwd())
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["lightning_fl.study.warm"])
        end_with_this_process([_Server()])
        gpus: list[str] = []
        if any(cell.accelerator != "cpu" for cell in cells):
            # In another process: forks cannot use a GPU that their parent has opened.
            with self._pool(1) as pool:
                gpus = pool.submit(visible_gpus).result()
        self.num_workers = num_workers or len(gpus) or usable_cores()
        shared = gpus if self.num_workers > 1 else []
        self._free_gpus = [shared[worker % len(shared)] if shared else None for worker in range(self.num_workers)]
        self._gpu_of: dict[ForkServerProcess, str | None] = {}

    def _pool(self, num_workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(num_workers, self._context, _start_worker, (Path(os.devnull),))

    def check(self, cells: Sequence[Cell]) -> None:
        """Parse and instantiate one cell of every variant before any is run, and report all faults, one per line."""
        variants = list({cell.variant: cell for cell in reversed(cells)}.values())[::-1]
        with TemporaryDirectory() as scratch:
            firsts = [replace(cell, folder=Path(scratch, str(number))) for number, cell in enumerate(variants)]
            for cell in firsts:
                cell.prepare()
            try:
                with self._pool(min(self.num_workers, usable_cores(), len(firsts))) as pool:
                    faults = list(pool.map(find_faults, [cell.arguments() for cell in firsts]))
            except BrokenProcessPool as error:
                raise ConfigurationError(f"a worker died while checking the recipes ({error}).") from error
        lines = [
            f"{cell_name(cell.arm, cell.place)}: {line}"
            for cell, fault in zip(firsts, faults, strict=True)
            for line in (fault or "").splitlines()
        ]
        if lines:
            raise ConfigurationError("\n".join(lines))

    def start(self, cell: Cell) -> ForkServerProcess:
        gpu = self._free_gpus.pop(0)
        process = self._context.Process(target=run_cell, args=(cell.arguments(), cell.log, gpu), name=cell.name)
        process.start()
        self._gpu_of[process] = gpu
        return process

    def ended(self, jobs: Collection[ForkServerProcess]) -> dict[ForkServerProcess, int]:
        wait([job.sentinel for job in jobs], TICK_SECONDS)
        found = {job: job.exitcode or 0 for job in jobs if not job.is_alive()}
        self._free_gpus = [*(self._gpu_of.pop(job) for job in found), *self._free_gpus]
        return found

    def ask_to_stop(self, jobs: Collection[ForkServerProcess]) -> None:
        for job in jobs:
            job.terminate()

    def kill(self, jobs: Collection[ForkServerProcess]) -> None:
        for job in jobs:
            job.kill()

    def close(self, jobs: Collection[ForkServerProcess]) -> None:
        self.kill(jobs)
        for job in jobs:
            job.join()


def _start_worker(output: Path) -> None:
    """Set up a worker: it ends with the study, ignores Ctrl-C, and appends its output to a file."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.setpgid(0, 0)
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


def visible_gpus() -> list[str]:
    """GPUs that this process may use, as named in ``CUDA_VISIBLE_DEVICES``."""
    import torch

    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return given[:count] if given else [str(number) for number in range(count)]


def run_cell(arguments: list[str], log: Path, gpu: str | None = None) -> None:
    """Run ``lightning-fl ARGUMENTS`` on a GPU (default: all), append its output to a log, and exit with its code."""
    from lightning_fl.study.warm import PARSER

    _start_worker(log)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    # Fabric starts the processes of further devices with these arguments.
    sys.argv = ["lightning-fl", *arguments]
    sys.modules["__main__"].__spec__ = find_spec("lightning_fl.__main__")
    print(f"$ lightning-fl {' '.join(arguments)}", flush=True)
    command, *rest = arguments
    sys.exit(exit_code(lambda: run(command, parse(command, PARSER, rest), PARSER, rest)))


def find_faults(arguments: list[str]) -> str | None:
    """Parse and instantiate a cell's recipe without reading data; returns the error message, ``None`` if valid."""
    from lightning_fl.study.warm import PARSER

    try:
        instantiate(PARSER, parse(arguments[0], PARSER, arguments[1:]))
    except Exception as error:
        return error_text(error) or type(error).__name__
    return None
