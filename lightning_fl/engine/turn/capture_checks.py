"""What a captured graph would not repeat, as only Python does it: reads, draws, changes; and what it depends on."""

import random
from collections import deque
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from lightning_fl.errors import ConfigurationError

__all__ = ["MEND", "AnyIndex", "CaptureWatch", "attributes_of", "host_draws", "tensors_of"]

MEND = "Set trainer.cuda_graphs=false."
#: Operations whose result, or its shape, Python goes on with; or that bring Python's numbers to the device.
_READS = {
    "aten::_local_scalar_dense": "it reads a tensor's value (.item(), float(), an if on a tensor)",
    "aten::is_nonzero": "it reads a tensor's value (.item(), float(), an if on a tensor)",
    "aten::equal": "it reads a tensor's value (torch.equal)",
    "aten::nonzero": "how many values it goes on with depends on a tensor (nonzero, a mask as index)",
    "aten::masked_select": "how many values it goes on with depends on a tensor (masked_select)",
    "aten::_unique2": "how many values it goes on with depends on a tensor (unique)",
    "aten::unique_dim": "how many values it goes on with depends on a tensor (unique)",
    "aten::unique_consecutive": "how many values it goes on with depends on a tensor (unique)",
    "aten::lift_fresh": "it makes a tensor of Python's numbers (torch.tensor, self.log of a number)",
}
_PLAIN = (bool, int, str, bytes, complex, Enum, torch.dtype, torch.device, torch.Size)
_DEEPEST = 3


class AnyIndex(int):
    """The ``batch_idx`` of every batch: whoever looks at it is refused."""

    def __new__(cls, what: str) -> "AnyIndex":
        """Of what is captured, for messages."""
        made = super().__new__(cls, 0)
        made.what = what  # type: ignore[attr-defined]
        return made


def _refuse_index(index: Any, *_: Any) -> Any:
    raise ConfigurationError(
        f"{index.what} cannot be captured as a CUDA graph: it reads batch_idx, which is not the same in every step."
        f" {MEND}"
    )


for _operation in (
    *("eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "mod", "rmod", "floordiv"),
    *("rfloordiv", "truediv", "rtruediv", "divmod", "pow", "neg", "and", "rand", "or", "xor", "lshift", "rshift"),
    *("bool", "int", "float", "index", "hash", "repr", "str", "format"),
):
    setattr(AnyIndex, f"__{_operation}__", _refuse_index)


class CaptureWatch(TorchDispatchMode):
    """Refuses operations that wait for the device or that only the first capture would do.

    Args:
        what: is captured.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        reason = _READS.get(name)
        if name == "aten::index" and any(_is_mask(index) for index in args[1]):
            reason = _READS["aten::nonzero"]
        result = func(*args, **(kwargs or {}))
        if name in ("aten::_to_copy", "aten::copy_"):
            devices = {one.device.type for one in tree_iter((args, result)) if isinstance(one, Tensor)}
            reason = "it copies between the host and the device" if len(devices) > 1 else None
        if reason is not None:
            raise ConfigurationError(f"{self._what} cannot be captured as a CUDA graph: {reason}. {MEND}")
        return result


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


class _Same:
    """Equal to itself alone; keeps the object, so that no other gets its place in memory."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._pointer = value.data_ptr() if isinstance(value, Tensor) and value.layout == torch.strided else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value and self._pointer == other._pointer

    __hash__ = object.__hash__


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """What Python keeps in a module and those inside it, as something that is equal where it is."""
    found: dict[str, Any] = {}
    apart = _apart()
    for prefix, part in module.named_modules():
        for key, value in vars(part).items():
            if key not in apart:
                found[f"{prefix}.{key}" if prefix else key] = _seen(value, 0)
    return found


@cache
def _apart() -> frozenset[str]:
    """What every module has: its tensors and parts, which are looked at by themselves, and what the engine changes."""
    return frozenset(vars(LightningModule())) | {"_trainer"}


def _seen(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, float):
        return float, repr(value)  # NaN is like NaN
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return type(value), [(_seen(key, depth + 1), _seen(one, depth + 1)) for key, one in value.items()]
        if isinstance(value, list | tuple | deque):
            return type(value), [_seen(one, depth + 1) for one in value]
        if isinstance(value, set | frozenset) and all(isinstance(one, _PLAIN) for one in value):
            return type(value), set(value)
    return _Same(value)


def tensors_of(module: nn.Module) -> list[int]:
    """Which parameters and buffers a module has, and where they lie."""
    held = (*module.parameters(), *module.buffers())
    return [number for one in held for number in (id(one), one.data_ptr())]


def host_draws(device: torch.device) -> tuple[Any, ...]:
    """The states of the random numbers that no graph draws from."""
    state: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - the user's code may draw from it
    own = torch.default_generator
    of_torch = b"" if own.device.type == device.type else own.get_state().numpy().tobytes()
    return random.getstate(), state[1].tobytes(), *state[2:], of_torch
