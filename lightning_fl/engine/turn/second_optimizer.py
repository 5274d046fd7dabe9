"""A client's optimiser applied to a second vector of its shared parameters."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.flat_optimizer import is_elementwise
from lightning_fl.engine.weights.flat import FlatModule, Place, Span, Weights, merge_spans

__all__ = ["SecondOptimizer"]


class SecondOptimizer:
    """Steps other weights by a client's optimiser: the same rule and rates, with a state of its own.

    Args:
        optimizers: of the client; must be one, whose hyper-parameters are read at every step.
        flat: the module with their parameters.
        spans: the shared parameters that are trained.
        weights: stepped in place.
        settings: of the run, for gradient clipping.
        state: :meth:`state` of an earlier turn; empty for a fresh start.
        who: the strategy, for messages.

    Raises:
        ConfigurationError: there are several optimisers.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        flat: FlatModule,
        spans: Sequence[Span],
        weights: Weights,
        *,
        settings: Settings,
        state: Sequence[dict[str, Any]],
        who: str,
    ) -> None:
        if len(optimizers) != 1:
            raise ConfigurationError(
                f"{who} trains two models with one optimiser each, and the module has {len(optimizers)}: return one"
                " from configure_optimizers, with automatic optimisation."
            )
        self._first = optimizers[0]
        self._settings = settings
        shared = {(span.dtype, span.begin): span for span in spans}
        whole = is_elementwise(self._first)  # then adjacent parameters are stepped as one
        self._groups: list[list[tuple[Place, nn.Parameter]]] = []
        for group in self._first.param_groups:
            places = [(flat.place(parameter), parameter.shape) for parameter in group["params"]]
            own = [(shared[at[:2]], shape) for at, shape in places if at is not None and at[:2] in shared]
            parts: list[tuple[Place, torch.Size | None]]
            if whole:
                parts = [(run, None) for run in merge_spans([span for span, _ in own])]
            else:
                parts = [(Place(span.dtype, span.begin, span.end), shape) for span, shape in own]
            self._groups.append([(place, nn.Parameter(_part(weights, place, shape))) for place, shape in parts])
        self._parameters = [parameter for own in self._groups for _, parameter in own]
        self._twin = copy.copy(self._first)  # keeps its class and settings
        states = [
            _moved_state(parameter, kept, self._first) for parameter, kept in zip(self._parameters, state, strict=False)
        ]
        self._twin.state = defaultdict(dict, zip(self._parameters, states, strict=False))
        self._twin.param_groups = [{"params": [parameter for _, parameter in own]} for own in self._groups]

    def step(self, gradient: Weights) -> None:
        """Step the weights by a gradient, clipped as in the run."""
        for twin, group, own in zip(self._twin.param_groups, self._first.param_groups, self._groups, strict=True):
            twin.update({name: value for name, value in group.items() if name != "params"})
            for place, parameter in own:
                parameter.grad = _part(gradient, place, parameter.shape)
        if clip := self._settings.gradient_clip_val:
            if self._settings.gradient_clip_algorithm == "value":
                nn.utils.clip_grad_value_(self._parameters, clip)
            else:
                nn.utils.clip_grad_norm_(self._parameters, clip)
        self._twin.step()

    def state(self) -> list[dict[str, Any]]:
        """The optimiser's state of every parameter, for a later turn."""
        return [dict(self._twin.state[parameter]) for parameter in self._parameters]


def _moved_state(parameter: nn.Parameter, kept: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Move a parameter's state from the host to its device, except for steps that the optimiser counts on the host."""
    counts_there = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    return {
        name: value.to(parameter.device) if isinstance(value, Tensor) and (name != "step" or counts_there) else value
        for name, value in kept.items()
    }


def _part(weights: Weights, place: Place, shape: torch.Size | None) -> Tensor:
    part = weights.vectors[place.dtype][place.begin : place.end]
    return part if shape is None else part.view(shape)
