"""A client's turn: the work, the state it keeps between rounds, its report, and the interface for strategies."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.core.wire_format import sendable
from lightning_fl.engine.weights.flat import Span, Weights, copy_spans_, inner_product, linear_combination

#: Changes a gradient in place, given the present weights.
Correction = Callable[[Weights, Weights], None]
#: Key of :class:`Weights` in a checkpoint.
_WEIGHTS = "flat_weights"


@dataclass(frozen=True)
class LocalWork:
    """A turn's optimiser ``steps``, or with ``None`` ``epochs``; ``turns`` of a training (``None``: all rounds)."""

    steps: int | None
    epochs: int
    turns: int | None = None


@dataclass(frozen=True)
class Phase:
    """A part of a turn that trains one part of the model while the other is frozen.

    Args:
        trained: the client's personal layers, or the shared ones.
        work: length; ``None`` for that of a turn.
    """

    trained: Literal["personal", "shared"]
    work: LocalWork | None = None


@dataclass
class ClientState:
    """State that a client keeps between rounds: plain values and tensors, saved in the checkpoint."""

    global_step: int = 0  #: number of its optimiser steps so far
    rounds_seen: int = 0  #: rounds for which its per-round schedulers have been stepped
    optimizers: list[dict[str, Any]] = field(default_factory=list)  #: optimiser states, if they are kept
    #: hyper-parameters of the parameter groups (learning rates, momenta), if there are schedulers or groups that hooks
    #: have added; only the rates if hooks have changed these.
    groups: list[list[dict[str, Any]]] = field(default_factory=list)
    schedulers: list[dict[str, Any]] = field(default_factory=list)  #: scheduler states
    batches: int = 0  #: number of batches that it has trained on
    passes: int = 0  #: number of passes over its loader that it has begun
    #: names of the parameters in each group of each optimiser, if optimisers are kept or hooks have added groups.
    parameters: list[list[list[str]]] = field(default_factory=list)
    #: names of submodules that hooks have switched to ``train`` or ``eval``, and whether they are in training mode.
    modes: dict[str, bool] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        # Without what is still empty; asdict would rebuild mappings from pairs, which a Counter counts.
        return copy.deepcopy({name: value for name, value in vars(self).items() if value})


sendable(LoggedValue)


@sendable
@dataclass(frozen=True)
class ClientReport:
    """Numbers that a client reports of its turn, never samples.

    Args:
        error: reason of a failed turn; the rest is then empty.
        trainable: parameters that hooks have frozen (``False``) or unfrozen in the turn.
    """

    num_samples: int = 0
    num_steps: int = 0
    metrics: dict[str, LoggedValue] = field(default_factory=dict)
    error: str | None = None
    scale: float = 1.0
    numbers: dict[str, float] = field(default_factory=dict)
    trainable: dict[str, bool] = field(default_factory=dict)
    weight: float | None = None


@dataclass
class ClientUpdate:
    """A client's update after its turn.

    Args:
        weights: the weights to average, without personal layers.
        scale: factor of its weight in each average, finite and at least 0; 0 leaves it out.
        numbers: for the server.
        vectors: name -> a further vector, averaged like the weights; exactly those of ``Learner.extra_vectors``.
        weight: its weight in each average, at least 0, instead of that by the collaboration or the cohort; times its
            share of a model if it uses several. ``None`` leaves that.
    """

    weights: Weights
    scale: float = 1.0
    numbers: dict[str, float] = field(default_factory=dict)
    vectors: dict[str, Weights] = field(default_factory=dict)
    weight: float | None = None


@dataclass(eq=False)
class ClientTurn:
    """One client's turn, as strategies and callbacks see it on the rank that hosts the client.

    Args:
        model: the shared model that it trains; ``None`` for a mixture of several.
        start: its initial weights, without its personal layers; read only.
        kept: what it keeps for the strategy between turns: plain values, tensors and :class:`Weights`. Replace entries,
            never change them in place: those of a failed turn are discarded.
        model_state: what the server keeps for ``model``; empty for a mixture. Read only.
        spans: positions in weights of the shared parameters that are trained.
        buffers: positions in weights of the module's buffers.
        measured: client -> its numbers of ``Learner.measure_client`` in this round, for the clients of the cohort that
            train the same model, or for all if coalitions are chosen after the turns.
        optimizers: of the client, from its first step on.
        rates: learning rate of the first optimiser in each step, after training.
        purpose: of its draws; a further turn in the same round has another one.
        steps: number of finished steps. ``report`` has all numbers of the turn, after training.
        moments: with ``optimizer_state="average"``, vectors of the averaged optimiser states; after training its own.
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
    services: Any
    measured: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    report: ClientReport | None = None
    optimizers: list[Optimizer] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    purpose: str = "train"
    steps: int = 0
    moments: dict[str, Weights] | None = None

    def combine(self, *terms: tuple[float, Weights], elsewhere: Weights | None = None) -> Weights:
        """``sum_k a_k v_k`` in the shared parameters that are trained, else ``elsewhere`` (the start); a new one."""
        return linear_combination(self.start if elsewhere is None else elsewhere, terms, self.spans)

    def direction(self, *terms: tuple[float, Weights]) -> Weights:
        """:meth:`combine` with zero elsewhere: for differences that are kept, as frozen parameters may be unfrozen."""
        return linear_combination(None, terms, self.spans)

    def with_buffers(self, weights: Weights, other: Weights) -> Weights:
        """A copy of some weights with the buffers (statistics of BatchNorm) of others."""
        return copy_spans_(weights.clone(), other, self.buffers)

    def with_personal_layers(self, weights: Weights) -> Weights:
        """Some weights with the client's personal layers, unless theirs already differ from those of ``start``."""
        return self.services.with_personal_layers(self, weights)

    def dot(self, first: Weights, second: Weights) -> float:
        """The inner product over the shared parameters that are trained, in double precision."""
        return inner_product(first, second, self.spans)

    @property
    def learning_rate(self) -> float:
        """The present one of the client's first optimiser; outside of a round, that of a new one."""
        return self.services.learning_rate(self)

    def train(
        self, start: Weights, purpose: str, *, work: LocalWork | None = None, correct_: Correction | None = None
    ) -> Weights:
        """Train the module again for ``work`` (default: a turn's), with its optimisers; returns a copy of its weights.

        Callbacks of the turn are not called, and the client's own layers do not change. Optimisers and schedulers that
        the run keeps or averages continue from the client's last training for the same purpose.

        Args:
            start: initial weights, :meth:`with_personal_layers`.
            purpose: of its draws, other than "train"; the same purpose draws the same batches in a turn. Turns of a
                client that is drawn several times in a round differ.
            correct_: called with gradient and weights before every step, as ``Learner.correct_gradient_``.
        """
        return self.services.train_again(self, start, purpose, work, correct_)

    def training_loss(self, weights: Weights) -> float:
        """Mean loss over all training samples, in eval mode, :meth:`with_personal_layers`, without mixup."""
        return self.services.loss_at(self, weights)

    def training_metrics(self, weights: Weights) -> dict[str, LoggedValue]:
        """Metrics of ``validation_step``, which must exist, on all training samples, :meth:`with_personal_layers`."""
        return self.services.metrics_at(self, weights)

    def step_gradient(self, weights: Weights, part: int = 0, buffers: Weights | None = None) -> Weights:
        """The gradient of the step's batches at other trained shared parameters; a new object, zero elsewhere.

        For ``Learner.correct_gradient_``. It includes what callbacks and the strategy do to batches and losses, with
        the draws (dropout, mixup) of the step's own loss. Nothing is logged or counted.

        Args:
            part: of each batch, 0 to ``Learner.batch_parts - 1``; the step's own gradient is that of part 0.
            buffers: weights whose buffers (statistics of BatchNorm) are used and updated, in place; ``None`` for those
                of the step, which do not change.
        """
        return self.services.gradients.of_step(self, weights, part, buffers)

    def batch_gradient(self, weights: Weights, purpose: str) -> Weights:
        """The gradient of one training batch at weights with the client's personal layers, also outside of a round."""
        return self.services.gradients.of_batch(self, self.with_personal_layers(weights), purpose)

    def second_step(self, name: str, gradient: Weights) -> None:
        """Step the turn's own copy of kept weights ``kept[name]`` in place, by the rule of the turn's optimiser.

        For ``Learner.correct_gradient_``, with a :meth:`step_gradient`, which is clipped as in the run. The optimiser
        state is separate, and new in each turn unless the run keeps optimisers.
        """
        self.services.second_step(self, name, gradient)


def packed(kept: dict[str, Any], who: str = "the strategy") -> dict[str, Any]:
    """Copies of kept values for a checkpoint, on the CPU."""
    for name, value in kept.items():
        if not isinstance(value, Weights) and not is_plain(value):
            what = f"{who} keeps {name!r}, a {type(value).__name__} that a checkpoint cannot hold"
            raise ConfigurationError(f"{what}: keep numbers, strings, tensors, Weights, or lists and dicts of these.")
    return {
        name: {_WEIGHTS: value.clone().state_dict()}
        if isinstance(value, Weights)
        else move_data_to_device(value, torch.device("cpu"))
        for name, value in kept.items()
    }


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, strings, tensors and arrays, in lists and dicts."""
    if isinstance(value, dict):
        return all(is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor | np.ndarray | np.generic)


def unpacked(kept: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Reverse :func:`packed`, with :class:`Weights` on a device."""
    return {
        name: Weights.from_state_dict(value[_WEIGHTS], device)
        if isinstance(value, dict) and list(value) == [_WEIGHTS]
        else value
        for name, value in kept.items()
    }
