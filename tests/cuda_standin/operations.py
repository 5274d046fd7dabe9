"""What the stand-in's device does with an operation: refuse it, count a wait of the host, run it, own what comes.

The rules are those of torch's CUDA device: operands lie on one device, but that 0-dim CPU tensors are numbers to
pointwise operations; an index may lie on the CPU; random numbers come from a generator of the device.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from cuda_standin.places import (
    CPU,
    CUDA,
    asking_line,
    device_in,
    device_of,
    is_cuda,
    is_pinned,
    pin,
    place,
    storage_of,
)

__all__ = ["Calls", "Operations", "Refused", "Wait"]


class Refused(RuntimeError):
    """A CUDA device would have refused this."""


class Wait(NamedTuple):
    """The host waits for the device.

    Attributes:
        kind: the operation's name, or ``H2D``, ``D2H``, ``synchronize``.
        line: the innermost line of the package, as in ``engine/turn/loop.py:12``.
    """

    kind: str
    line: str


#: Whose result's size or value the host must know. ``index`` and ``index_put_`` wait for masks only.
_WAITING = {
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "nonzero",
    "masked_select",
    "equal",
    "bincount",
    "_linalg_check_errors",
}
#: Whose operands may lie on two devices, or are checked by a rule of their own.
_COPIES = {"copy_", "_to_copy", "_foreach_copy_"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
#: Numbers may be given as 0-dim CPU tensors to these too.
_NUMBERS = {"fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "where", "set_"}
#: What torch makes of data that Python holds: on the host first.
_DATA_MAKERS = {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.new_tensor}


#: By what C++ knows them by: operations see other Python objects.
OF_THE_DEVICE: WeakValueDictionary[int, torch.Generator] = WeakValueDictionary()


class _State(threading.local):
    """Of the Python call in progress: the device that it asked for, that of its tensors, and what it need not wait for.

    C++ makes tensors with the options of others, which are of the CPU here; what Python asked for tells them apart.
    """

    asked: torch.device | None = None
    of_tensors: torch.device | None = None
    inside = False
    waits_not = False


_state = _State()


@contextmanager
def asking_for(device: torch.device | None, of_tensors: torch.device | None, waits_not: bool = False) -> Iterator[None]:
    """Within a Python call."""
    before = dict(_state.__dict__)
    _state.__dict__.update(asked=device, of_tensors=of_tensors, inside=True, waits_not=waits_not)
    try:
        yield
    finally:
        _state.__dict__.clear()
        _state.__dict__.update(before)


def _as_device(value: Any) -> torch.device | None:
    if value is None or isinstance(value, torch.device):
        return value
    return torch.device("cuda", value) if isinstance(value, int) else torch.device(value)


def _tensors(values: Any) -> list[Tensor]:
    """Those of an operation's arguments, in less time than by torch's pytree."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


class Calls(TorchFunctionMode):
    """Notes what each Python call asks for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        stored = [(tensor, storage_of(tensor)) for tensor in _tensors((args, kwargs))]
        devices = {device_in(tensor, storage).type for tensor, storage in stored if storage is not None}
        of_tensors = CUDA if "cuda" in devices else CPU if devices else None
        if func in _DATA_MAKERS:
            return _made_of_data(func, args, kwargs)
        one_hot = func is torch.nn.functional.one_hot and (kwargs.get("num_classes", [*args, -1][1]) > 0)
        with asking_for(_as_device(kwargs.get("device")), of_tensors, waits_not=one_hot or _state.waits_not):
            return func(*args, **kwargs)


def _made_of_data(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """``torch.tensor`` and the like: made on the host, then moved; of a tensor they stay where it is."""
    device = _as_device(kwargs.pop("device", None))
    data = kwargs.get("data", kwargs.get("obj", args[-1] if args else None))
    if device is None and isinstance(args[0] if func is torch.Tensor.new_tensor else data, Tensor):
        device = device_of(args[0] if func is torch.Tensor.new_tensor else data)
    source = device_of(data) if isinstance(data, Tensor) else CPU
    if kwargs.pop("pin_memory", False):
        return pin(func(*args, **kwargs))
    with asking_for(None, source):
        made = func(*args, **kwargs)
        if made is not data:
            place(made, source)
    return made if device is None else made.to(device)


class Operations(TorchDispatchMode):
    """Every operation of a thread, above the CPU's kernels and below autograd.

    Attributes:
        waits: how often the host waited, and where.
        refusals: what was refused, with its line, also where somebody caught it.
        generator: what the device draws from where no generator is given.
        active: operations pass by where it is False.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[Wait] = Counter()
        self.refusals: list[str] = []
        self.generator = torch.Generator()
        self.active = True

    def refuse(self, what: str, kind: type[Exception] = Refused) -> None:
        """Raise, as the device would.

        Raises:
            Refused: always, or another error if one is asked for.
        """
        self.refusals.append(f"{what} ({asking_line()})")
        raise kind(self.refusals[-1])

    def wait(self, kind: str) -> None:
        """Count a wait."""
        if not _state.waits_not:
            self.waits[Wait(kind, asking_line())] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not self.active:
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        tensors = _tensors((args, kwargs))
        storages = [storage_of(tensor) for tensor in tensors]
        devices = [device_in(tensor, storage) for tensor, storage in zip(tensors, storages, strict=True)]
        found = CUDA if any(device.type == "cuda" for device in devices) else None
        device = self._target(name, kwargs, tensors, found)
        if found is not None or (device is not None and device.type == "cuda"):
            self._check(func, name, args, kwargs, tensors, devices, device)
        if kwargs.get("device") is not None and kwargs["device"].type == "cuda":
            kwargs["device"] = CPU
        pinned = bool(kwargs.get("pin_memory"))
        if "pin_memory" in kwargs:
            kwargs["pin_memory"] = False
        self._check_generator(func, args, kwargs, device)
        before = {storage._cdata for storage in storages if storage is not None}
        result = self._run(func, args, kwargs, device)
        for made in _tensors(result):
            storage = storage_of(made)
            if storage is None or (storage._cdata in before and name != "_to_copy"):
                continue
            if device is not None and device.type in ("cuda", "cpu"):
                place(made, device)
            if pinned:
                pin(made)
        return result

    def _target(
        self, name: str, kwargs: dict[str, Any], tensors: list[Tensor], found: torch.device | None
    ) -> torch.device | None:
        """The device of what an operation makes; ``None`` for the CPU by default."""
        given = kwargs.get("device")
        if given is not None and given.type not in ("cpu", "cuda"):
            return given
        # What C++ asks for in the options of a tensor that lies on the device is the device.
        by_python = not _state.inside or _state.asked is not None
        if given is not None and (given.type == "cuda" or by_python):
            return given
        if tensors:
            if name in _INDEXING or name in ("copy_", "_to_copy"):
                return device_of(tensors[0])
            return found
        return _state.of_tensors if _state.inside and _state.asked is None else given

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any], device: torch.device | None) -> Any:
        """On the CPU; draws without a generator are the device's own."""
        if device is None or device.type != "cuda" or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None or any(isinstance(value, torch.Generator) for value in args):
            return func(*args, **kwargs)
        host = torch.default_generator.get_state()
        torch.default_generator.set_state(self.generator.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            self.generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(host)

    def _check_generator(self, func: Any, args: Any, kwargs: dict[str, Any], device: torch.device | None) -> None:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
        wanted = "cpu" if device is None else device.type
        if given and wanted in ("cpu", "cuda"):
            found = "cuda" if given[0]._cdata in OF_THE_DEVICE else "cpu"
            if found != wanted:
                self.refuse(f"{func}: expected a generator of {wanted}, found one of {found}")

    def _check(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        devices: list[torch.device],
        target: torch.device | None,
    ) -> None:
        if name in _COPIES:
            self._count_copies(name, args, kwargs, target)
        elif name in _INDEXING:
            self._check_indexing(func, name, args)
        elif name == "repeat_interleave":
            if kwargs.get("output_size") is None:
                self.wait(name)
        else:
            if name in _WAITING:
                self.wait(name)
            self._check_operands(func, name, tensors, devices)

    def _check_operands(self, func: Any, name: str, tensors: list[Tensor], devices: list[torch.device]) -> None:
        numbers = torch.Tag.pointwise in func.tags or name in _NUMBERS or name.startswith("_foreach")
        kinds = {
            device.type
            for tensor, device in zip(tensors, devices, strict=True)
            if device.type == "cuda" or tensor.dim() or not numbers
        }
        in_place = name.endswith("_") and devices and devices[0].type != "cuda"
        if len(kinds & {"cpu", "cuda"}) > 1 or (in_place and "cuda" in kinds and name != "set_"):
            found = ", ".join(f"{d.type} {list(t.shape)}" for t, d in zip(tensors, devices, strict=True))
            self.refuse(f"{func}: expected all tensors to be on the same device, found {found}")

    def _count_copies(self, name: str, args: Any, kwargs: dict[str, Any], target: torch.device | None) -> None:
        if name == "_to_copy":
            source, goal = args[0], device_of(args[0]) if target is None else target
            pairs = [(source, goal, False)]
        elif name == "copy_":
            pairs = [(args[1], device_of(args[0]), is_pinned(args[0]))]
        else:
            pairs = [(source, device_of(own), is_pinned(own)) for own, source in zip(args[0], args[1], strict=True)]
        place_of_flag = {"copy_": 2, "_foreach_copy_": 2}.get(name, 99)
        waits_not = kwargs.get("non_blocking") or (len(args) > place_of_flag and args[place_of_flag])
        for source, goal, goal_pinned in pairs:
            if not isinstance(source, Tensor) or device_of(source).type == goal.type:
                continue
            if goal.type == "cuda" and not (waits_not and is_pinned(source)):
                self.wait("H2D")
            if goal.type == "cpu" and not (waits_not and (name == "_to_copy" or goal_pinned)):
                self.wait("D2H")

    def _check_indexing(self, func: Any, name: str, args: Any) -> None:
        own, indices = args[0], [index for index in args[1] if index is not None]
        for index in indices:
            if is_cuda(index) and not is_cuda(own):
                self.refuse(f"{func}: indices should be on the CPU or on the device of the tensor, which is the CPU")
            if not is_cuda(index):
                self.wait("H2D")  # of the index
        values = args[2] if "put" in name else None
        if values is not None and is_cuda(values) != is_cuda(own) and (is_cuda(values) or values.dim()):
            self.refuse(f"{func}: values on {device_of(values)}, the tensor on {device_of(own)}")
        masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
        filled = values is not None and values.numel() == 1 and not is_cuda(values) and len(masks) == len(indices)
        if is_cuda(own) and masks and not filled:
            self.wait("mask")


def refusing_tensors_on_the_device(
    operations: Operations, what: str, values: Iterable[Any], of: Callable[[Any], Iterable[Any]] = tree_iter
) -> None:
    """Nothing on the device may pass here.

    Raises:
        Refused: a tensor on the device does.
    """
    for value in of(values):
        if isinstance(value, Tensor) and is_cuda(value):
            operations.refuse(f"{what}: a tensor {list(value.shape)} on the device")
