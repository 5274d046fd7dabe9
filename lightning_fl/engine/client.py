"""What a client is told, what it keeps from round to round, and what it tells."""

from dataclasses import asdict, dataclass, field
from typing import Any

from lightning_fl.metrics import LoggedValue

__all__ = ["ClientReport", "ClientState", "LocalWork"]


@dataclass(frozen=True)
class LocalWork:
    """How much a client trains in a turn: ``steps`` of its optimiser or, where that is ``None``, ``epochs``."""

    steps: int | None
    epochs: int


@dataclass
class ClientState:
    """What a client keeps from round to round: plain values and tensors, saved in the checkpoint.

    Args:
        global_step: its optimiser steps so far.
        rounds_seen: rounds that its per-round schedulers have been stepped for.
        optimizers: optimiser states, where ``optimizer_state="keep"``.
        groups: hyper-parameters of the parameter groups (learning rates, momenta), where there are schedulers.
        schedulers: scheduler states.
    """

    global_step: int = 0
    rounds_seen: int = 0
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    groups: list[list[dict[str, Any]]] = field(default_factory=list)
    schedulers: list[dict[str, Any]] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)


@dataclass(frozen=True)
class ClientReport:
    """What a client tells of its turn: numbers only, never samples.

    ``error`` is set instead when the turn failed.
    """

    num_samples: int = 0
    num_steps: int = 0
    metrics: dict[str, LoggedValue] = field(default_factory=dict)
    error: str | None = None
