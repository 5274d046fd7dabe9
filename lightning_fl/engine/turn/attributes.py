"""Python attributes that a turn leaves changed: shared by the clients of a process, so somebody should hear of it."""

import types
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric, MetricCollection

__all__ = ["AttributeWatch"]

#: Their modules keep caches of what does not depend on whose turn it is.
_LIBRARIES = ("torch.", "torchvision.", "torch_geometric.", "torchmetrics.", "transformers.", "lightning.")
#: Looked at no further: what trainers, modules and optimisers hold has its own way from client to client.
_APART = (
    nn.Module,
    Optimizer,
    LRScheduler,
    torch.Generator,
    type,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
)
_PLAIN = (bool, int, str, bytes, complex, Enum, torch.dtype, torch.device, torch.Size)
_MOST_ENTRIES = 10_000
_DEEPEST = 3

#: An attribute's full name -> something that is equal where the attribute is.
_Picture = dict[str, Any]


class AttributeWatch:
    """Names once the attributes that a client's turn begins with in another state than the turn before it did.

    The first two turns of each kind are looked at, so that a run pays for it at its beginning only. What a hook at the
    turn's start sets anew, and lists that are cleared at the end, are no matter; nor are entries of a dict under the
    client's own number.

    Args:
        module: the user's.
        num_clients: of the run; a single one shares nothing.
        name_of: a client's name in messages.
    """

    def __init__(self, module: LightningModule, num_clients: int, name_of: Callable[[int], str]) -> None:
        self._module = module
        self._name_of = name_of
        self._ends = num_clients < 2
        self._done: set[str] = set()
        self._named: set[str] = set()
        self._before: dict[str, tuple[int, _Picture, _Picture]] = {}
        self._begun: _Picture = {}

    def begin(self, kind: str) -> None:
        """A turn begins, before any hook of the module's.

        Args:
            kind: "train", "validation", "test" or "predict".
        """
        if not self._ends and kind not in self._done:
            self._begun = self._picture()

    def started(self, kind: str, client: int) -> None:
        """The hook at the turn's start has been called."""
        if self._ends or kind in self._done:
            return
        begun, started = self._begun, self._picture()
        if kind not in self._before:
            self._before[kind] = (client, begun, started)
            return
        other, begun_before, started_before = self._before.pop(kind)
        self._done.add(kind)
        changed = [
            name
            for name, value in begun.items()
            if _without(value, other) != _without(begun_before.get(name), other)
            and _without(started.get(name), other) != _without(started_before.get(name), other)
            and name not in self._named
        ]
        if changed:
            self._named.update(changed)
            names = ", ".join(f"{type(self._module).__name__}.{name}" for name in changed)
            rank_zero_warn(
                f"{names} changed in the turn of {self._name_of(other)}: Python attributes are shared by the clients of"
                " a process, in the order of their turns, and are not in checkpoints. Register it as a buffer, count"
                f" with a torchmetrics metric, or set it anew in on_{kind}_epoch_start."
            )

    def _picture(self) -> _Picture:
        found: _Picture = {}
        for prefix, module in self._module.named_modules():
            if isinstance(module, Metric | MetricCollection) or type(module).__module__.startswith(_LIBRARIES):
                continue
            for key, value in vars(module).items():
                if key in _of_lightning() or isinstance(getattr(type(module), key, None), cached_property):
                    continue
                found[f"{prefix}.{key}" if prefix else key] = _seen(value, 0)
        return found


@cache
def _of_lightning() -> frozenset[str]:
    """The attributes of every module, and those of hyper-parameters and compilation."""
    later = {"_hparams", "_hparams_initial", "_hparams_name", "_log_hyperparams", "_compile_kwargs", "_compiler_ctx"}
    return frozenset(vars(LightningModule())) | later | {"training", "_trainer"}


def _seen(value: Any, depth: int) -> Any:
    """Something that is equal for equal values."""
    if value is None or isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, float):
        return float, repr(value)  # NaN is like NaN
    if isinstance(value, Tensor):
        return _seen_tensor(value)
    if isinstance(value, np.ndarray):
        small = value.size <= _MOST_ENTRIES and value.dtype != object
        return value.shape, value.tobytes() if small else id(value)
    if isinstance(value, Metric):
        return {key: _seen(getattr(value, key), depth + 1) for key in value._defaults}
    if isinstance(value, _APART) or depth > _DEEPEST:
        return None
    if isinstance(value, Mapping):
        return len(value), {_key(key): _seen(one, depth + 1) for key, one in _first(value.items())}
    if isinstance(value, list | tuple | deque):
        return type(value), len(value), [_seen(one, depth + 1) for one in _first(value)]
    if isinstance(value, set | frozenset):
        return len(value), {_key(one) for one in value}
    if hasattr(value, "__dict__") and not type(value).__module__.startswith(_LIBRARIES):
        return type(value), {key: _seen(one, depth + 1) for key, one in vars(value).items()}
    return None


def _seen_tensor(value: Tensor) -> Any:
    if type(value) is not Tensor or value.layout != torch.strided or value.is_meta or value.is_quantized:
        return None  # parameters, and what has no plain bytes
    if value.numel() > _MOST_ENTRIES:
        return value.shape, value.data_ptr(), value._version
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return value.shape, value.dtype, bytes(plain.reshape(-1).view(torch.uint8).numpy())


def _first(values: Any) -> list[Any]:
    return list(values)[:_MOST_ENTRIES]


def _key(key: Any) -> Any:
    return key if isinstance(key, str | int | float | tuple) else repr(type(key))


def _without(picture: Any, client: int) -> Any:
    """The picture of a dict without what is kept under a client's number."""
    if not (isinstance(picture, tuple) and len(picture) == 2 and isinstance(picture[1], dict)):
        return picture
    return {
        key: one for key, one in picture[1].items() if key != client and not (isinstance(key, tuple) and client in key)
    }
