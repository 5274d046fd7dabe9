"""The run around clients' turns, as far as a module may ask for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from torch import Tensor

from lightning_fl.data.module import Split

__all__ = ["Surroundings"]


@dataclass
class Surroundings:
    """What a module may ask of the run around its turns.

    Args:
        federated: whoever makes the run, for modules that know that they are federated.
        datamodule: the data of all clients.
        loggers: those of rank zero.
        log_dir: the run's folder.
        callbacks: of the run.
        checkpoint_callback: the one that keeps the run.
        profiler: of the run.
        target_statistics: mean and standard deviation of the training targets over all clients.
        descriptor_statistics: the same of molecules' descriptors.
        target_summaries: what every client says of its targets in a split, by a function that is given.
        ckpt_path: the checkpoint that the run goes on from.
        checkpoint_hyper_parameters: of the module whose weights that checkpoint holds; empty where there is none.
    """

    federated: Any = None
    datamodule: Any = None
    loggers: list[Any] = field(default_factory=list)
    log_dir: str | None = None
    callbacks: list[Any] = field(default_factory=list)
    checkpoint_callback: Any = None
    profiler: Profiler = field(default_factory=PassThroughProfiler)
    target_statistics: Callable[[], tuple[Tensor, Tensor]] | None = None
    descriptor_statistics: Callable[[], tuple[Tensor, Tensor]] | None = None
    target_summaries: Callable[[Callable[[Tensor], Tensor], Split], Tensor] | None = None
    ckpt_path: str | None = None
    checkpoint_hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
