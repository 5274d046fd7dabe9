"""What a study's worker processes do.

They are forked from a server that has imported :mod:`lightning_fl.study.warm`, and so all of ``lightning-fl fit``,
once: a cell starts within a fraction of a second, in a process that nothing else has run in.
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

__all__ = ["check_settings", "run_cell", "start_worker", "visible_gpus"]


def start_worker(output: Path) -> None:
    """What every worker begins with: it ends when the study does, leaves Ctrl-C to it, and writes into a file.

    Args:
        output: the file, to which is added.
    """
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
    """The GPUs of this machine that this process may use, each as ``CUDA_VISIBLE_DEVICES`` names it."""
    import torch

    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return given[:count] if given else [str(number) for number in range(count)]


def run_cell(words: list[str], log: Path, gpu: str | None = None) -> None:
    """Run ``lightning-fl WORDS`` and exit as it does.

    Args:
        words: the words.
        log: where its output is added.
        gpu: the only one that it sees, as ``CUDA_VISIBLE_DEVICES`` names it; ``None`` for those that there are.
    """
    from lightning_fl.study.warm import PARSER

    start_worker(log)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    # Fabric starts the processes of further devices with the words of this one.
    sys.argv = ["lightning-fl", *words]
    sys.modules["__main__"].__spec__ = find_spec("lightning_fl.__main__")
    print(f"$ lightning-fl {' '.join(words)}", flush=True)
    command, *rest = words
    sys.exit(exit_code(lambda: run(command, parse(command, PARSER, rest), PARSER, rest)))


def check_settings(words: list[str]) -> str | None:
    """What is wrong with the words of a cell, as far as it is seen before data are read; ``None`` for nothing."""
    from lightning_fl.study.warm import PARSER

    try:
        instantiate(PARSER, parse(words[0], PARSER, words[1:]))
    except Exception as error:
        return error_text(error) or type(error).__name__
    return None
