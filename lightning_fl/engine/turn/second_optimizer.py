"""A client's optimiser on a second vector of the parameters that it shares."""

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
    """Takes the steps of a client's optimiser on other weights: the same rule and rates, a state of its own.

    Args:
        optimizers: of the client; one, whose hyper-parameters are read at every step.
        flat: the module that has their parameters.
        spans: the shared parameters that are trained.
        weights: those that are stepped, in place.
        settings: of the run, which clips gradients.
        state: of an earlier turn, as :meth:`state` gave it; empty for a fresh start.
        who: asks for it.

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
                f"{who} trains two models side by side with one optimiser each, and the module has {len(optimizers)}:"
                " give configure_optimizers one, and leave automatic_optimization on."
            )
        self._first = optimizers[0]
        self._settings = settings
        shared = {(span.dtype, span.begin): span for span in spans}
        whole = is_elementwise(self._first)  # then parameters that follow one another are stepped as one
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
        self._twin = copy.copy(self._first)  # of its class, with the settings that its constructor left in it
        beside = [
            _beside(parameter, kept, self._first) for parameter, kept in zip(self._parameters, state, strict=False)
        ]
        self._twin.state = defaultdict(dict, zip(self._parameters, beside, strict=False))
        self._twin.param_groups = [{"params": [parameter for _, parameter in own]} for own in self._groups]

    def step(self, gradient: Weights) -> None:
        """Step the weights by a gradient, clipped as the run clips those of the module."""
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
        """What a later turn goes on from: the optimiser's state of every parameter."""
        return [dict(self._twin.state[parameter]) for parameter in self._parameters]


def _beside(parameter: nn.Parameter, kept: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """A parameter's state, kept on the host, where the parameter is; plain optimisers count steps on the host."""
    counts_there = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    return {
        name: value.to(parameter.device) if isinstance(value, Tensor) and (name != "step" or counts_there) else value
        for name, value in kept.items()
    }


def _part(weights: Weights, place: Place, shape: torch.Size | None) -> Tensor:
    part = weights.vectors[place.dtype][place.begin : place.end]
    return part if shape is None else part.view(shape)
