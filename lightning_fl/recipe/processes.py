"""Choice of the number of CPU processes, and of how they start.

Each process has one thread, because small models gain from processes and not from threads. Processes are forked where
that is safe: on Linux, without an accelerator, in a process that runs nothing but the command.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.nn.parameter import is_lazy

from lightning_fl.core.environment import usable_cores
from lightning_fl.data.module import known_clients

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.trainer.trainer import FederatedTrainer

#: Parameters. A process needs about 32 bytes for each (model, gradient, momentum, the two halves of an exact sum).
_SMALL_MODEL = 20_000_000
#: Parameters of a model whose step on one core takes about as long as launching its GPU kernels (estimated).
_TINY_MODEL = 100_000
_MANY_CORES = 8


def choose_processes(
    trainer: "FederatedTrainer",
    module: "LightningModule",
    data: "FederatedDataModule",
    devices: int | str | list[int],
    words: Sequence[str],
) -> str | None:
    """Fork processes, with ``devices="auto"`` as cores and clients allow; returns a line about the choice."""
    strategy = trainer.strategy
    if strategy.root_device.type == "cuda":
        return _slow_gpu(trainer, module, data)
    if not _owns_process(words) or not strategy.can_fork:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch's optimisers would open a GPU to ask whether it is captured
    if devices != "auto":
        strategy.fork_processes(strategy.num_processes)
        return None
    cores, clients, size = usable_cores(), known_clients(data), _num_parameters(module)
    blocks = clients and -(-clients // trainer.stacked_clients)  # of clients that train at once
    processes = min(cores, blocks or cores)
    if processes < 2 or not 0 < size <= _SMALL_MODEL:
        return None
    strategy.fork_processes(processes)
    whom = "" if clients is None else f" for {clients} clients"
    return (
        f"{processes} processes of one thread each{whom}: there are {cores} cores and the model is small"
        f" ({size:,} parameters). --trainer.devices 1 keeps to one; the results are the same."
    )


def _slow_gpu(trainer: "FederatedTrainer", module: "LightningModule", data: "FederatedDataModule") -> str | None:
    """A hint for a model so small that CPU processes may be faster than the GPU."""
    strategy, clients, size = trainer.strategy, known_clients(data), _num_parameters(module)
    processes = min(usable_cores(), clients or _MANY_CORES)
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


def _owns_process(words: Sequence[str]) -> bool:
    """Whether this process runs nothing but the command: not a child, no other thread."""
    return (
        sys.argv[1:] == ["fit", *words] and multiprocessing.parent_process() is None and threading.active_count() == 1
    )


def _num_parameters(module: "LightningModule") -> int:
    return sum(parameter.numel() for parameter in module.parameters() if not is_lazy(parameter))
