"""Correction of gradients before an optimiser step."""

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.weights.flat import FlatModule, Place, Weights
from lightning_fl.engine.weights.local_parameters import LocalParameters, averaged_spans

__all__ = ["Correction", "GradientCorrection"]

#: Changes a gradient in place, given the present weights.
Correction = Callable[[Weights, Weights], None]


class GradientCorrection:
    """Copies the gradients of averaged parameters to one flat vector, corrects it, and assigns it back.

    A parameter without a gradient counts as zero; it gets a gradient only if the correction is not zero there.

    Args:
        flat: the module.
        personal: parameters that are not averaged.
        correct_: the correction.
    """

    def __init__(self, flat: FlatModule, personal: LocalParameters | None, correct_: Correction) -> None:
        self._flat = flat
        self._correct_ = correct_
        self._gradient = Weights({dtype: torch.zeros_like(vector) for dtype, vector in flat.weights.floating()})
        self._personal = personal
        self._of_optimizer: dict[tuple[int, ...], tuple[list[nn.Parameter], list[torch.Tensor]]] = {}

    def apply_(self, optimizer: Optimizer) -> None:
        """Correct the gradients of an optimiser's parameters.

        Raises:
            ConfigurationError: two of them are different objects that share memory.
        """
        groups = (id(optimizer), *[len(group["params"]) for group in optimizer.param_groups])  # hooks may add some
        if groups not in self._of_optimizer:
            self._of_optimizer[groups] = self._views(optimizer)
        parameters, views = self._of_optimizer[groups]
        for parameter, view in zip(parameters, views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        self._correct_(self._gradient, self._flat.collect())
        for parameter, view in zip(parameters, views, strict=True):
            if parameter.grad is not None or view.any():
                parameter.grad = view

    def _views(self, optimizer: Optimizer) -> tuple[list[nn.Parameter], list[torch.Tensor]]:
        """An optimiser's averaged parameters and their parts of the gradient."""
        parameters, views = [], []
        averaged = {(span.dtype, span.begin) for span in averaged_spans(self._flat, self._personal)}
        taken: set[Place] = set()
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            place = self._flat.place(parameter)
            if place is not None and (place.dtype, place.begin) in averaged:
                if place in taken:
                    raise ConfigurationError(
                        "two parameters of the optimiser are different objects that share memory, and the strategy"
                        " changes their gradients: tie them as one object (b.weight = a.weight)."
                    )
                taken.add(place)
                vector = self._gradient.vectors[place.dtype]
                parameters.append(parameter)
                views.append(vector[place.begin : place.begin + parameter.numel()].view(parameter.shape))
        return parameters, views
