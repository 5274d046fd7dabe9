"""Rows of a group, one for each client, and what single clients' hooks see: their batches and ``self.trainer``.

A client's hooks draw from its own generators, so many batches of a client, usually a turn's, are processed at a time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter
from torchmetrics import Metric

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_private import collect_rng_states, set_rng_states
from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.engine.batches.packs import TensorPack
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.stacked.weights import StackedWeights
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.turn.results import LogCollector, ResultCollection

#: Attributes that differ between clients.
_OF_ONE_CLIENT = frozenset(
    {
        *("client", "callback_metrics", "logged_metrics", "progress_bar_metrics", "train_dataloader"),
        *("val_dataloaders", "fit_loop", "batches_before"),
    }
)


@dataclass(frozen=True)
class Logged:
    """One call of ``self.log`` for all clients of a group: the arguments of :meth:`LogCollector.log`."""

    hook: str
    name: str
    value: Tensor
    options: dict[str, Any]


class StackedTrainer(ResultCollection):
    """Replaces the :class:`ModuleTrainer` during a group's turns, and collects what is logged."""

    def __init__(self, trainer: ModuleTrainer) -> None:
        self._trainer = trainer
        self._facts: dict[str, set[Any]] = {}
        self.logged: list[Logged] = []
        self._results = self  # which a module's log calls

    @contextmanager
    def replace_module_trainer(self) -> Iterator[None]:
        """Context in which the module's ``self.trainer`` is this object."""
        module: Any = self._trainer.lightning_module
        module.trainer = self  # also for modules inside the module
        try:
            yield
        finally:
            module.trainer = self._trainer

    def begin_step(self, **facts: set[Any]) -> None:
        self._facts = facts
        self.logged = []

    def log(self, fx: str, name: str, value: Tensor | Metric, **options: Any) -> None:
        """Keep one value of all clients. The signature is that of Lightning's result collection."""
        if isinstance(value, Metric):
            what = f"a {type(value).__name__} counts one client's samples, and several train at once: log a number"
            raise ConfigurationError(f"self.log({name!r}): {what}, or set trainer.stacked_clients=1.")
        self.logged.append(Logged(fx, name, value, options))

    @property
    def should_stop(self) -> bool:
        return self._trainer.should_stop

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        self._trainer.should_stop = stop

    def __getattr__(self, name: str) -> Any:
        values = self._facts.get(name, ())
        if len(values) == 1:
            return next(iter(values))
        if values or name in _OF_ONE_CLIENT:
            what = f"{type(self._trainer.lightning_module).__name__} reads self.trainer.{name}"
            raise ConfigurationError(f"{what}, which differs between clients: set trainer.stacked_clients=1.")
        return getattr(self._trainer, name)


#: Bytes of visited batches that wait for their steps, of all clients of a group.
_AHEAD = 2**26


@dataclass(frozen=True)
class RowBatch:
    """A planned batch: index in the turn, samples in the pack [size], replaced targets; stacked if ``alike``."""

    index: int
    samples: Tensor
    targets: Tensor | None
    alike: tuple[Any, ...]


@dataclass
class Row:
    """A client's turn: the batches of each of its steps, and their results."""

    turn: ClientTurn
    pack: TensorPack
    num_samples: int
    total: int
    planned_steps: int
    steps: list[list[RowBatch]]
    collector: LogCollector
    losses: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    ready: deque[Any] = field(default_factory=deque)  #: batches passed to hooks, but not to a step
    draws: dict[str, Any] | None = None  #: states of its default generators between two hooks

    def __post_init__(self) -> None:
        #: Step and batch of those not yet passed to hooks.
        self.pending = ((step, batch) for step, batches in enumerate(self.steps) for batch in batches)

    def samples(self, batch: RowBatch) -> list[Tensor]:
        (tensors,) = self.pack.gather(batch.samples, [len(batch.samples)], batch.targets)
        return tensors


class Visits:
    """The transfer hooks of module and data, and ``on_train_batch_start``, for one client after another."""

    def __init__(
        self, loop: LocalLoop, view: StackedTrainer, facts: Callable[[list[Row], int], dict[str, set[Any]]]
    ) -> None:
        self._loop = loop
        self._view = view
        self._facts = facts
        #: It sees the weights of its step, so that it cannot be called before that is due.
        self._in_step = loop.overridden("on_train_batch_start")
        #: Whether there is such a hook; otherwise batches are gathered together.
        self.needed = self._in_step or any(map(loop.move.hooks, loop.processes.hosted))

    def begin(self) -> None:
        """Begin a group of turns."""
        #: Batch -> settings of the shared optimiser before and after the hook.
        self._begun: dict[int, list[dict[str, Any]]] = {}
        self._set: dict[int, list[dict[str, Any]]] = {}
        self._trainable = self._loop.flat.trainable()

    def next_batch(self, weights: StackedWeights, row: Row, place: int) -> Any:
        """A client's next batch, as its hooks leave it."""
        if not row.ready:
            self._visit(weights, row, place)
        return row.ready.popleft()

    def _visit(self, weights: StackedWeights, row: Row, place: int) -> None:
        """Process the client's next batches, at least one and as many as fit in its share of ``_AHEAD`` bytes."""
        loop, memory = self._loop, _AHEAD // weights.active
        if row.draws is None:
            seed_default_generators(*loop.path(row.turn.client, row.turn.purpose))
        else:
            set_rng_states(row.draws)
            row.draws = None
        for step, batch in row.pending:
            moved = self._seen_by_hooks(weights, row, place, step, batch)
            row.ready.append(moved)
            size = sum(part.nbytes for part in tree_iter(moved) if isinstance(part, Tensor))
            memory -= size
            if self._in_step or memory < size:
                row.draws = collect_rng_states(include_cuda=loop.processes.device.type == "cuda")
                return

    def _seen_by_hooks(self, weights: StackedWeights, row: Row, place: int, step: int, batch: RowBatch) -> Any:
        loop = self._loop
        of_one: dict[str, set[Any]] = {"client": {row.turn.client}, "is_last_batch": {batch.index == row.total - 1}}
        self._view.begin_step(**self._facts([row], step), **of_one)
        moved = loop.move(row.samples(batch), True, row.turn.client)
        if self._in_step:
            weights.give(place)
            groups = [group for optimizer in loop.module_trainer.optimizers for group in optimizer.param_groups]
            begun = self._begun.setdefault(batch.index, _settings(groups))
            for group, before in zip(groups, begun, strict=True):  # as the first client's hook found them
                group.update(before)
            if loop.call("on_train_batch_start", moved, batch.index) == -1:
                what = f"{type(loop.module).__name__}.on_train_batch_start returned -1"
                raise ConfigurationError(f"{what}, and stacked turns cannot end early: set trainer.stacked_clients=1.")
            weights.take(place)
            set_now = _settings(groups)
            if self._set.setdefault(batch.index, set_now) != set_now or loop.flat.trainable() != self._trainable:
                what = f"{type(loop.module).__name__}.on_train_batch_start sets what clients trained together share"
                raise ConfigurationError(f"{what}, a learning rate or requires_grad: set trainer.stacked_clients=1.")
            for entry in self._view.logged:
                row.collector.log(entry.hook, entry.name, entry.value, **entry.options)
        return moved

    def stack(self, batches: list[Any]) -> list[Tensor]:
        """Stack batches that hooks processed: tensors [n, size, ...]."""
        layouts = {
            tuple((part.shape, part.dtype) if isinstance(part, Tensor) else None for part in batch)
            if isinstance(batch, list | tuple)
            else (None,)
            for batch in batches
        }
        if len(layouts) > 1 or None in next(iter(layouts)):
            hooks = ", ".join(self._loop.move.hooks(self._loop.processes.hosted[0]))
            must = "return lists of tensors of the same shapes for batches of the same size"
            raise ConfigurationError(f"{hooks} must {must}: set trainer.stacked_clients=1.")
        return [torch.stack(column) for column in zip(*batches, strict=True)]


def _settings(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings of parameter groups, such as learning rates."""
    return [
        {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"}
        for group in groups
    ]
