"""Optimiser states as vectors that are averaged like weights (``optimizer_state="average"``)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.weights.flat import FlatModule, Weights
from lightning_fl.engine.weights.local_parameters import LocalParameters

#: Sums of weights are multiples of 2^-46, and squares of gradients may be far below that, so that a vector is sent as
#: two: its large values, and its values below 2^-10, times 2^46.
_SMALL, _LEAST, _SCALE = " (small)", 2.0**-10, 2.0**46
#: Kind of an entry with its parameter's shape; that of a number is its type.
_SHAPED = "shaped"
#: Entry with a 1 for every parameter that has a state; its average is the share of the clients that have one.
_SHARE = "share"


class AveragedStates:
    """Reads and loads the states of optimisers as vectors named "OPTIMISER KIND ENTRY".

    An entry with its parameter's shape has the layout of the weights; numbers, such as a count of steps, are one for
    each parameter of the module. A state is averaged over the clients that have one.
    """

    def __init__(self, module: nn.Module, flat: FlatModule) -> None:
        self._flat = flat
        self._numbers = {id(parameter): number for number, parameter in enumerate(module.parameters())}

    def zeros(self, name: str) -> Weights:
        """The reference of a vector in sums."""
        if name.split()[1] == _SHAPED:
            return Weights({dtype: torch.zeros_like(vector) for dtype, vector in self._flat.weights.floating()})
        return Weights({torch.float64: torch.zeros(len(self._numbers), dtype=torch.float64, device=self._flat.device)})

    def read(self, optimizers: Sequence[Optimizer], personal: LocalParameters | None) -> dict[str, Weights]:
        """The states of the shared parameters.

        Raises:
            ConfigurationError: an entry is neither a number nor of the shape of a parameter of the module.
        """
        vectors: dict[str, Weights] = {}
        for which, optimizer in enumerate(optimizers):
            parameters = _parameters(optimizer)
            for index, state in optimizer.state_dict().get("state", {}).items():
                place = self._flat.place(parameters[index])
                if place is not None and personal is not None and place[:2] in personal.places:
                    continue
                present = {key: value for key, value in state.items() if value is not None}
                for key, value in (present | {_SHARE: 1.0} if present else {}).items():
                    kind = _kind(value, parameters[index])
                    if place is None or not kind:
                        what = f"trainer.optimizer_state=average cannot average {key!r} of {type(optimizer).__name__}"
                        why = "which is neither a number nor of the shape of a parameter of the module"
                        raise ConfigurationError(f"{what}, {why}: use keep.")
                    name = f"{which} {kind} {key}"
                    if name not in vectors:
                        vectors[name] = self.zeros(name)
                    self._entry(vectors[name], kind, parameters[index]).copy_(torch.as_tensor(value))
        return {part: vector for name, whole in vectors.items() for part, vector in _split(name, whole).items()}

    def load(self, vectors: Mapping[str, Weights], optimizers: Sequence[Optimizer]) -> None:
        """Load averaged vectors; a parameter of which no client had a state keeps its own."""
        wholes = {
            name: _join(vector, vectors[name + _SMALL]) for name, vector in vectors.items() if not name.endswith(_SMALL)
        }
        for which, optimizer in enumerate(optimizers):
            shares, saved = wholes.pop(f"{which} float {_SHARE}", None), optimizer.state_dict()
            for index, parameter in enumerate(_parameters(optimizer)):
                if shares is None or id(parameter) not in self._numbers:
                    continue
                share = float(self._entry(shares, "float", parameter))
                for name, whole in wholes.items():
                    of, kind, key = name.split(" ", 2)
                    shaped = bool(parameter.ndim) and f"{of} {_SHAPED} {key}" in wholes  # a scalar's are all numbers
                    if of == str(which) and share and shaped == (kind == _SHAPED):
                        value = self._entry(whole, kind, parameter) / share
                        saved["state"].setdefault(index, {})[key] = value if shaped else _number(kind, float(value))
            optimizer.load_state_dict(saved)

    def _entry(self, whole: Weights, kind: str, parameter: Tensor) -> Tensor:
        if kind != _SHAPED:
            return whole.vectors[torch.float64][self._numbers[id(parameter)]]
        place = self._flat.place(parameter)
        assert place is not None
        return whole.vectors[place.dtype][place.begin : place.begin + parameter.numel()].view(parameter.shape)


def num_vectors(names: Iterable[str]) -> int:
    """How many of the named vectors have the size of a model."""
    return sum(f" {_SHAPED} " in name and not name.endswith(_SMALL) for name in names)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _kind(value: Any, parameter: Tensor) -> str:
    """Kind of an entry of a parameter's state; empty if it cannot be averaged."""
    if isinstance(value, Tensor) and value.ndim:
        return _SHAPED if value.shape == parameter.shape and value.is_floating_point() else ""
    if isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch.")
    return type(value).__name__ if isinstance(value, int | float) else ""


def _number(kind: str, value: float) -> Any:
    if kind in ("float", "int", "bool"):
        return value if kind == "float" else round(value)
    return torch.tensor(value, dtype=getattr(torch, kind))


def _split(name: str, whole: Weights) -> dict[str, Weights]:
    small = whole.clone()
    for dtype, part in small.floating():
        tiny = part.abs() < _LEAST
        part.mul_(_SCALE).masked_fill_(~tiny, 0.0)
        whole.vectors[dtype].masked_fill_(tiny, 0.0)
    return {name: whole, name + _SMALL: small}


def _join(large: Weights, small: Weights) -> Weights:
    whole = large.clone()
    for dtype, part in whole.floating():
        part.add_(small.vectors[dtype], alpha=1 / _SCALE)
    return whole
