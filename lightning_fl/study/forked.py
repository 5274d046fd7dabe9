"""Functions of a study's worker processes.

Workers are forked from a server that has imported :mod:`lightning_fl.study.warm`: a cell starts within a fraction of a
second, in a fresh process.
"""

import os
import signal
import sys
import threading
from importlib.util import find_spec
from multiprocessing import parent_process
from pathlib import Path

from lightning_fl.recipe.error_messages import error_text, exit_code
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import parse
from lightning_fl.recipe.run import run

__all__ = ["find_faults", "run_cell", "start_worker", "visible_gpus"]


def start_worker(output: Path) -> None:
    """Set up a worker: it ends with the study, ignores Ctrl-C, and appends its output to a file."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.setpgid(0, 0)
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


def visible_gpus() -> list[str]:
    """GPUs that this process may use, as named in ``CUDA_VISIBLE_DEVICES``."""
    import torch

    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return given[:count] if given else [str(number) for number in range(count)]


def run_cell(arguments: list[str], log: Path, gpu: str | None = None) -> None:
    """Run ``lightning-fl ARGUMENTS`` and exit with its code.

    Args:
        arguments: of the command line.
        log: its output is appended to this file.
        gpu: the only visible one, as named in ``CUDA_VISIBLE_DEVICES``; ``None`` for all.
    """
    from lightning_fl.study.warm import PARSER

    start_worker(log)
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
