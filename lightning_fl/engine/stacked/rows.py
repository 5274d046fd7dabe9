"""Turns of the clients of a group: the batches of every step, and the results."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lightning_fl.engine.batches.packs import TensorPack
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.turn.results import LogCollector

__all__ = ["Row", "RowBatch"]


@dataclass(frozen=True)
class RowBatch:
    """A planned batch: its index in the turn, its samples in the pack [size], and its replaced targets, if any.

    Batches with equal ``alike`` can be stacked.
    """

    index: int
    samples: Tensor
    targets: Tensor | None
    alike: tuple[Any, ...]


@dataclass
class Row:
    """A client's turn: the batches of each of its steps, and their results.

    Attributes:
        pending: step and batch of those not yet passed to hooks.
        ready: batches passed to hooks, but not to a step.
        draws: states of its default generators between two hooks.
    """

    turn: ClientTurn
    pack: TensorPack
    num_samples: int
    total: int
    planned_steps: int
    steps: list[list[RowBatch]]
    collector: LogCollector
    losses: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    ready: deque[Any] = field(default_factory=deque)
    draws: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.pending: Iterator[tuple[int, RowBatch]] = (
            (step, batch) for step, batches in enumerate(self.steps) for batch in batches
        )

    def samples(self, batch: RowBatch) -> list[Tensor]:
        """A batch: tensors [size, ...]."""
        (tensors,) = self.pack.gather(batch.samples, [len(batch.samples)], batch.targets)
        return tensors
