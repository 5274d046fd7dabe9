"""How many processes a command runs in on a CPU, and how they start.

One thread a process: small models gain from further processes, not from further threads. The other processes are forked
from this one where that is safe: the command has the process to itself, on Linux, and no accelerator is in use.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.nn.parameter import is_lazy

from lightning_fl.data.module import known_clients

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.trainer.trainer import FederatedTrainer

__all__ = ["choose_processes"]

#: A process takes some 32 bytes for each weight (model, gradient, momentum, the two halves of an exact sum).
_SMALL_MODEL = 20_000_000
#: A step of so few weights takes a core about as long as Python takes to ask a GPU for its kernels: estimated.
_TINY_MODEL = 100_000
_MANY_CORES = 8


def choose_processes(
    trainer: "FederatedTrainer",
    module: "LightningModule",
    data: "FederatedDataModule",
    devices: int | str | list[int],
    words: Sequence[str],
) -> str | None:
    """Have the run's other processes forked; with ``devices="auto"`` as many as cores and clients allow.

    Args:
        trainer: whose run it is, not launched yet.
        module: what it trains.
        data: the clients.
        devices: as the recipe says.
        words: the command's.

    Returns:
        A line that says what was chosen, where something was.
    """
    strategy = trainer.strategy
    if strategy.root_device.type == "cuda":
        return _slow_gpu(trainer, module, data)
    if not _has_this_process_to_itself(words) or not strategy.can_fork:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch's optimisers would open a GPU to ask whether it is captured
    if devices != "auto":
        strategy.fork_processes(strategy.num_processes)
        return None
    cores, clients, size = len(os.sched_getaffinity(0)), known_clients(data), _num_parameters(module)
    blocks = clients and -(-clients // trainer.stacked_clients)  # whose clients stay together
    processes = min(cores, blocks or cores)
    if processes < 2 or not 0 < size <= _SMALL_MODEL:
        return None
    strategy.fork_processes(processes)
    of = "" if clients is None else f" for {clients} clients"
    return (
        f"{processes} processes of one thread each{of}: there are {cores} cores and the model is small"
        f" ({size:,} parameters). --trainer.devices 1 keeps to one; the results are the same."
    )


def _slow_gpu(trainer: "FederatedTrainer", module: "LightningModule", data: "FederatedDataModule") -> str | None:
    """What is said where a GPU waits for Python, and cores for nothing."""
    strategy, clients, size = trainer.strategy, known_clients(data), _num_parameters(module)
    processes = min(len(os.sched_getaffinity(0)), clients or _MANY_CORES) if hasattr(os, "sched_getaffinity") else 1
    alone = strategy.num_processes == strategy.num_nodes == trainer.stacked_clients == 1
    if not alone or processes < _MANY_CORES:
        return None
    if not 0 < size <= _TINY_MODEL:
        return None
    return (
        f"the model is small ({size:,} parameters), and a GPU spends most of its steps waiting: {processes} processes"
        " on the CPU (--trainer.accelerator cpu) may be faster, or"
        f" --trainer.stacked_clients {clients or processes}. benchmarks/gpu.py compares them."
    )


def _has_this_process_to_itself(words: Sequence[str]) -> bool:
    """Whether the command is all that this process does: its own words, nobody's child, no other thread."""
    return (
        sys.argv[1:] == ["fit", *words] and multiprocessing.parent_process() is None and threading.active_count() == 1
    )


def _num_parameters(module: "LightningModule") -> int:
    return sum(parameter.numel() for parameter in module.parameters() if not is_lazy(parameter))
