"""What a client is told, what it keeps from round to round, and what it tells."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.core.wire_format import sendable
from lightning_fl.engine.weights.flat import Span, Weights, copy_spans_, inner_product, linear_combination

__all__ = ["ClientReport", "ClientState", "ClientTurn", "ClientUpdate", "LocalWork", "Phase", "packed", "unpacked"]

#: What :class:`Weights` are kept under in a checkpoint.
_WEIGHTS = "flat_weights"
_HOST = torch.device("cpu")


@dataclass(frozen=True)
class LocalWork:
    """How much a client trains in a turn: ``steps`` of its optimiser or, where that is ``None``, ``epochs``."""

    steps: int | None
    epochs: int


@dataclass(frozen=True)
class Phase:
    """A part of a turn in which one part of the model is trained while the other is frozen.

    Args:
        trained: the client's personal layers, or the shared ones.
        work: how much; ``None`` for that of a turn.
    """

    trained: Literal["personal", "shared"]
    work: LocalWork | None = None


@dataclass
class ClientState:
    """What a client keeps from round to round: plain values and tensors, saved in the checkpoint.

    Args:
        global_step: its optimiser steps so far.
        rounds_seen: rounds that its per-round schedulers have been stepped for.
        optimizers: optimiser states, where ``optimizer_state="keep"``.
        groups: hyper-parameters of the parameter groups (learning rates, momenta), where there are schedulers or
            groups that hooks have added.
        parameters: names of the parameters in each group of each optimiser, where optimisers are kept or hooks have
            added groups.
        schedulers: scheduler states.
        batches: that it trained on so far.
        passes: over its loader that it began so far.
    """

    global_step: int = 0
    rounds_seen: int = 0
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    groups: list[list[dict[str, Any]]] = field(default_factory=list)
    schedulers: list[dict[str, Any]] = field(default_factory=list)
    batches: int = 0
    passes: int = 0
    parameters: list[list[list[str]]] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return copy.deepcopy(vars(self))  # asdict would rebuild mappings from pairs, which a Counter counts


sendable(LoggedValue)
#: Fields of a report after its metrics, which are plain.
_PLAIN = ("error", "scale", "numbers", "trainable", "weight")


@sendable
@dataclass(frozen=True)
class ClientReport:
    """What a client tells of its turn: numbers only, never samples.

    Args:
        num_samples: training samples.
        num_steps: optimiser steps.
        metrics: what the module logged.
        error: why the turn failed, where it did; the rest is then empty.
        trainable: parameters that hooks have frozen (``False``) or unfrozen in the turn.
        scale: of the client's weight in the average, see :class:`ClientUpdate`.
        numbers: for the strategy's server.
        weight: see :class:`ClientUpdate`.
    """

    num_samples: int = 0
    num_steps: int = 0
    metrics: dict[str, LoggedValue] = field(default_factory=dict)
    error: str | None = None
    scale: float = 1.0
    numbers: dict[str, float] = field(default_factory=dict)
    trainable: dict[str, bool] = field(default_factory=dict)
    weight: float | None = None

    def to_plain(self) -> list[Any]:
        """For a message."""
        metrics = {name: logged.to_plain() for name, logged in self.metrics.items()}
        return [self.num_samples, self.num_steps, metrics, *(getattr(self, name) for name in _PLAIN)]

    @classmethod
    def from_plain(cls, content: list[Any]) -> "ClientReport":
        """Out of a message."""
        num_samples, num_steps, metrics, *others = content
        logged = {name: LoggedValue.from_plain(value) for name, value in metrics.items()}
        return cls(num_samples, num_steps, logged, *others)


@dataclass
class ClientUpdate:
    """What a client hands over after its turn.

    Args:
        weights: what is averaged, without personal layers.
        scale: what its weight in each average is multiplied by, finite and at least 0; 0 leaves it out.
        numbers: what it tells the server beside.
        vectors: name -> a further vector, averaged as the weights are; those of ``Learner.extra_vectors``.
        weight: its weight in each average in place of that by the collaboration or the cohort, at least 0; where it
            uses several models, times its share of the model. ``None`` leaves that.
    """

    weights: Weights
    scale: float = 1.0
    numbers: dict[str, float] = field(default_factory=dict)
    vectors: dict[str, Weights] = field(default_factory=dict)
    weight: float | None = None


class _Services(Protocol):
    """What the loop that takes turns does for a strategy: the methods of :class:`ClientTurn` of the same names."""

    def train_again(
        self,
        turn: "ClientTurn",
        start: Weights,
        purpose: str,
        work: LocalWork | None,
        correct_: Callable[[Weights, Weights], None] | None,
    ) -> Weights: ...
    def loss_at(self, turn: "ClientTurn", weights: Weights) -> float: ...
    def metrics_at(self, turn: "ClientTurn", weights: Weights) -> dict[str, LoggedValue]: ...
    def step_gradient(self, turn: "ClientTurn", weights: Weights, part: int, buffers: Weights | None) -> Weights: ...
    def batch_gradient(self, turn: "ClientTurn", weights: Weights, purpose: str) -> Weights: ...
    def with_personal_layers(self, turn: "ClientTurn", weights: Weights) -> Weights: ...
    def second_step(self, turn: "ClientTurn", name: str, gradient: Weights) -> None: ...
    def learning_rate(self, turn: "ClientTurn") -> float: ...


@dataclass(eq=False)
class ClientTurn:
    """One client's turn, as a strategy sees it on the rank that hosts the client.

    Args:
        client: whose.
        model: the shared model that it trains; ``None`` for a mixture of several.
        start: the weights that it starts from, without its personal layers; never to be changed.
        state: what its optimisers and schedulers go on from.
        num_samples: its training samples.
        kept: what it keeps for the strategy from turn to turn: plain values, tensors and :class:`Weights`. Entries are
            replaced, never changed in place: what a turn that fails has put there is forgotten.
        model_state: what the server keeps for ``model``; empty for a mixture. To be read only.
        spans: the shared parameters that are trained; where they lie in weights.
        buffers: the module's buffers; where they lie in weights.
        services: of the loop that takes the turn.
        measured: client -> what ``Learner.measure_client`` found for it in this round, of those of the cohort that
            train the same model as this one, or of all where coalitions are chosen after the turns.
        report: once it has trained.
        optimizers: that it trains with, from its first step on.
        rates: learning rate of the first of them in each of the turn's steps, once it has trained.
        purpose: of the draws of its training: those of the batches are others in a further turn of the same round.
        steps: whose gradients :meth:`Learner.correct_gradient_` has been given before the present one.
    """

    client: int
    model: int | None
    start: Weights
    state: ClientState
    num_samples: int
    kept: dict[str, Any]
    model_state: dict[str, Any]
    spans: list[Span]
    buffers: list[Span]
    services: _Services
    measured: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    report: ClientReport | None = None
    optimizers: list[Optimizer] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    purpose: str = "train"
    steps: int = 0

    def combine(self, *terms: tuple[float, Weights], elsewhere: Weights | None = None) -> Weights:
        """``sum_k a_k v_k`` in the shared parameters that are trained; a new object.

        Args:
            *terms: a_k and v_k.
            elsewhere: what all other entries are of (statistics of BatchNorm, frozen parameters); the turn's start
                unless given.
        """
        return linear_combination(self.start if elsewhere is None else elsewhere, terms, self.spans)

    def with_buffers(self, weights: Weights, other: Weights) -> Weights:
        """A copy of some weights with the buffers (statistics of BatchNorm) of others."""
        return copy_spans_(weights.clone(), other, self.buffers)

    def with_personal_layers(self, weights: Weights) -> Weights:
        """Some weights with the client's personal layers, unless theirs are others than those of ``start`` already."""
        return self.services.with_personal_layers(self, weights)

    def dot(self, first: Weights, second: Weights) -> float:
        """The inner product over the shared parameters that are trained, in double precision."""
        return inner_product(first, second, self.spans)

    @property
    def learning_rate(self) -> float:
        """Of the client's first optimiser at present; of one as the module configures it, in a turn of no round."""
        return self.services.learning_rate(self)

    def train(
        self,
        start: Weights,
        purpose: str,
        *,
        work: LocalWork | None = None,
        correct_: Callable[[Weights, Weights], None] | None = None,
    ) -> Weights:
        """Train the module once more in this turn, from other weights and with optimisers of their own.

        Callbacks that watch the turn take no part. Optimisers and schedulers go on, where the run keeps them, from
        those of the client's last training for the same purpose.

        Args:
            start: where it starts, :meth:`with_personal_layers`; those that the client keeps stay as they are.
            purpose: of its draws, other than "train"; the same purpose draws the same batches in a round.
            work: how much; ``None`` for that of the turn itself.
            correct_: called with the gradient and the weights before every step, as ``Learner.correct_gradient_`` is.

        Returns:
            A copy of the weights at the end.

        Raises:
            TrainingError: a loss is NaN or infinite.
        """
        return self.services.train_again(self, start, purpose, work, correct_)

    def training_loss(self, weights: Weights) -> float:
        """The module's mean loss over all training samples at some weights, in evaluation mode; nothing is trained.

        The weights are taken :meth:`with_personal_layers`. What callbacks (mixup) and the strategy add is left out.
        """
        return self.services.loss_at(self, weights)

    def training_metrics(self, weights: Weights) -> dict[str, LoggedValue]:
        """What ``validation_step`` logs of all training samples at some weights, :meth:`with_personal_layers`.

        Raises:
            ConfigurationError: the module has no ``validation_step``.
        """
        return self.services.metrics_at(self, weights)

    def step_gradient(self, weights: Weights, part: int = 0, buffers: Weights | None = None) -> Weights:
        """The gradient of the present step's batches at other values of the shared parameters that are trained.

        To be asked for in ``Learner.correct_gradient_``. What callbacks and the strategy do to batches and losses is in
        it, with the draws (dropout, mixup) that the step's own loss had; nothing is logged or counted.

        Args:
            weights: the values; what else they hold does not matter.
            part: of each batch, 0 to ``Learner.batch_parts - 1``; the step's own gradient is that of part 0.
            buffers: weights whose buffers (statistics of BatchNorm) the losses are computed with and move, in place;
                ``None`` for those of the step, which stay as it leaves them.

        Returns:
            A new object, zero outside of the shared parameters that are trained.
        """
        return self.services.step_gradient(self, weights, part, buffers)

    def batch_gradient(self, weights: Weights, purpose: str) -> Weights:
        """The gradient of one training batch, as :meth:`step_gradient` gives it; also in a turn of no round.

        Args:
            weights: where, with the client's personal layers.
            purpose: of the batch's draw.
        """
        return self.services.batch_gradient(self, weights, purpose)

    def second_step(self, name: str, gradient: Weights) -> None:
        """Take a step of the client's optimiser on weights that it keeps, ``kept[name]``, which are changed in place.

        Its rule and hyper-parameters are those of the turn's optimiser. Its state is of its own, fresh in each turn
        unless the run keeps optimisers. To be called in ``Learner.correct_gradient_``.

        Args:
            name: of the weights, which must be the turn's own copy.
            gradient: as :meth:`step_gradient` gives it; clipped as the run clips.
        """
        self.services.second_step(self, name, gradient)


def packed(kept: dict[str, Any], who: str = "the strategy") -> dict[str, Any]:
    """What a strategy keeps, or somebody else, as plain values and tensors of its own on the CPU.

    Raises:
        ConfigurationError: a checkpoint cannot hold a value.
    """
    for name, value in kept.items():
        if not isinstance(value, Weights) and not _is_plain(value):
            raise ConfigurationError(
                f"{who} keeps {name!r}, a {type(value).__name__} that a checkpoint cannot hold: keep numbers,"
                " strings, tensors, Weights, or lists and dicts of numbers, strings and tensors."
            )
    return {
        name: {_WEIGHTS: value.clone().state_dict()}
        if isinstance(value, Weights)
        else move_data_to_device(value, _HOST)
        for name, value in kept.items()
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor | np.ndarray | np.generic)


def unpacked(kept: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """What :func:`packed` was given, its :class:`Weights` on a device."""
    return {
        name: Weights.from_state_dict(value[_WEIGHTS], device)
        if isinstance(value, dict) and list(value) == [_WEIGHTS]
        else value
        for name, value in kept.items()
    }
