"""What the clients of a group do in their turns: the batches of every step, and what comes of them."""

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
    """A batch that is not gathered yet: its place in the turn, its samples in the pack [size], its targets if replaced.

    Batches for which ``alike`` is equal can be stacked.
    """

    index: int
    samples: Tensor
    targets: Tensor | None
    alike: tuple[Any, ...]


@dataclass
class Row:
    """A client's turn: the batches of each of its steps, and what comes of them.

    Attributes:
        pending: step and batch of those that no hook has seen yet.
        ready: batches that hooks have seen, and no step.
        draws: where its default generators are, between two of its hooks.
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
