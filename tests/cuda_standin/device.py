"""torch with one CUDA device made of software: on while :class:`StandIn` is entered, and gone without a trace."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import lightning_fl.strategies.federated
from cuda_standin import places
from cuda_standin.operations import OF_THE_DEVICE, Calls, Operations, Wait, asking_for, refusing_tensors_on_the_device
from cuda_standin.places import CPU, CUDA, device_of, is_cuda, place

__all__ = ["StandIn"]

_MISSING = object()
_RealGenerator = torch.Generator
_REAL = {name: getattr(torch.Tensor, name) for name in ("to", "numpy", "tolist", "__array__", "__reduce_ex__")}


class _AlsoTheReal(type(_RealGenerator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RealGenerator)


class Generator(_RealGenerator, metaclass=_AlsoTheReal):
    """A generator of the device is one of the CPU that says otherwise."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != "cuda":
            return _RealGenerator(device)
        return super().__new__(cls)

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()
        OF_THE_DEVICE[self._cdata] = self

    device = CUDA


class _Stream:
    """Everything has happened when the host asks."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device, self.cuda_stream, self.stream_id = CUDA, 0, 0

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def wait_event(self, event: Any) -> None:
        return None

    def wait_stream(self, stream: Any) -> None:
        return None

    synchronize = wait_all = query


class _Event(_Stream):
    def record(self, stream: Any = None) -> None:
        return None

    def wait(self, stream: Any = None) -> None:
        return None

    def elapsed_time(self, other: Any) -> float:
        return 0.0


class StandIn:
    """A context in which ``torch.cuda`` has one device, ``cuda:0``, whose memory is the host's.

    A tensor's values are real and its ``data_ptr`` is its own; only the storage says where it lies. What a CUDA device
    refuses raises :class:`~cuda_standin.operations.Refused` with the operation and the package's line; what the host
    waits for is counted. Beside what torch refuses, a tensor on the device is neither pickled nor exchanged: on another
    machine, or another process, there is another device.

    Not stood in for: kernels and their bits, asynchronous errors, captured graphs, NCCL, ``torch.compile``.

    Attributes:
        waits: (kind, line of the package) -> how often the host waited.
        refusals: what was refused, also where somebody caught the error.
        free_memory: what ``torch.cuda.mem_get_info`` says is free, in bytes; a test may set it.
        total_memory: of the device, in bytes.
    """

    def __init__(self, total_memory: int = 2**36) -> None:
        self.operations = Operations()
        self.free_memory = self.total_memory = total_memory
        self._patched: list[tuple[Any, str, Any]] = []
        self._stack = ExitStack()

    @property
    def waits(self) -> Counter[Wait]:
        """How often the host waited, and where."""
        return self.operations.waits

    @property
    def refusals(self) -> list[str]:
        """What was refused."""
        return self.operations.refusals

    def waits_in(self, *beginnings: str) -> Counter[Wait]:
        """Those of lines of files and folders of the package, as ``engine/turn``."""
        return Counter({wait: count for wait, count in self.waits.items() if wait.line.startswith(beginnings)})

    def __enter__(self) -> "StandIn":
        self._patch_tensors()
        self._patch_storages()
        self._patch_cuda()
        self._patch_autocast()
        self._patch_threads()
        self._patch_package()
        self._stack.enter_context(self.modes())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.operations.active = False  # in threads that outlive this
        for owner, name, before in reversed(self._patched):
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._patched.clear()

    @contextmanager
    def modes(self) -> Iterator[None]:
        """What watches this thread's operations."""
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with self.operations, Calls():
                yield
        finally:
            torch._C._set_only_lift_cpu_tensors(False)

    def _patch(self, owner: Any, **values: Any) -> None:
        for name, value in values.items():
            self._patched.append((owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, value)

    # -- tensors ---------------------------------------------------------------------------------------------------

    def _patch_tensors(self) -> None:
        operations = self.operations

        def refused_on_device(real: Callable[..., Any], what: str, kind: type[Exception]) -> Callable[..., Any]:
            def method(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
                if is_cuda(tensor):
                    operations.refuse(what, kind)
                return real(tensor, *arguments, **named)

            return method

        def tolist(tensor: Tensor) -> Any:
            if is_cuda(tensor):
                operations.wait("tolist")
            with places.unwatched():
                return _REAL["tolist"](tensor)

        def shared(tensor: Tensor) -> Tensor:
            return places.pin(tensor if places.is_pinned(tensor) else tensor.clone())

        numpy = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory"
        self._patch(
            torch.Tensor,
            device=property(device_of),
            is_cuda=property(is_cuda),
            is_cpu=property(lambda tensor: device_of(tensor).type == "cpu"),
            get_device=lambda tensor: 0 if is_cuda(tensor) else -1,
            to=_to,
            cuda=lambda tensor, device=None, non_blocking=False, **_: _to(tensor, CUDA, non_blocking=non_blocking),
            cpu=lambda tensor, **_: _to(tensor, CPU),
            numpy=refused_on_device(_REAL["numpy"], f"numpy: {numpy}", TypeError),
            __array__=refused_on_device(_REAL["__array__"], f"__array__: {numpy}", TypeError),
            __reduce_ex__=refused_on_device(_REAL["__reduce_ex__"], "a tensor on the device is pickled", RuntimeError),
            tolist=tolist,
            pin_memory=lambda tensor, *_: shared(tensor),
            is_pinned=lambda tensor, *_: places.is_pinned(tensor),
            record_stream=lambda tensor, stream: None,
        )
        reduce = torch.nn.Parameter.__reduce_ex__
        pickled = refused_on_device(reduce, "a parameter on the device is pickled", RuntimeError)
        self._patch(torch.nn.Parameter, __reduce_ex__=pickled)
        self._patch(torch, Generator=Generator)
        grouped = torch.utils._foreach_utils._group_tensors_by_device_and_dtype

        def group(tensors: Any, with_indices: bool = False) -> Any:
            groups = grouped(tensors, with_indices)
            firsts = {key: next(one for one in lists[0] if one is not None) for key, (lists, _) in groups.items()}
            return {(device_of(firsts[key]), key[1]): value for key, value in groups.items()}

        for name in ("torch.utils._foreach_utils", "torch.nn.utils.clip_grad", "torch.optim.optimizer"):
            self._patch(sys.modules[name], _group_tensors_by_device_and_dtype=group)

    def _patch_storages(self) -> None:
        clone = torch.UntypedStorage.clone

        def cloned(storage: Any) -> Any:
            copy = clone(storage)
            vars(copy).update(vars(storage))
            return copy

        self._patch(torch.UntypedStorage, clone=cloned)

    # -- torch.cuda ------------------------------------------------------------------------------------------------

    def _patch_cuda(self) -> None:
        generator, cuda = Generator("cuda"), torch.cuda
        generator.manual_seed(torch.initial_seed())
        self.operations.generator = generator
        properties = SimpleNamespace(
            name="stand-in",
            major=9,
            minor=0,
            multi_processor_count=132,
            total_memory=self.total_memory,
            L2_cache_size=0,
        )
        stream = _Stream()

        def synchronize(*_: Any) -> None:
            self.operations.wait("synchronize")

        nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        of_devices = {
            "_lazy_init": nothing,
            "_lazy_call": lambda call, **_: call(),
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "is_initialized": lambda: True,
        }
        self._patch(cuda, **of_devices)
        self._patch(cuda.random, **of_devices)
        memory = {
            "mem_get_info": lambda device=None: (self.free_memory, self.total_memory),
            "empty_cache": nothing,
            "reset_peak_memory_stats": nothing,
            "memory_stats": lambda device=None: {},
            **{name: (lambda device=None: 0) for name in ("memory_allocated", "max_memory_allocated")},
            **{name: (lambda device=None: 0) for name in ("memory_reserved", "max_memory_reserved")},
        }
        self._patch(cuda, **memory)
        self._patch(cuda.memory, **memory)
        streams = {"current_stream": lambda device=None: stream, "synchronize": synchronize}
        self._patch(
            cuda,
            **streams,
            is_available=lambda: True,
            set_device=nothing,
            device=lambda device=None: _Stream(),
            default_generators=(generator,),
            get_device_name=lambda device=None: properties.name,
            get_device_capability=lambda device=None: (properties.major, properties.minor),
            get_device_properties=lambda device=None: properties,
            is_bf16_supported=lambda *_, **__: True,
            is_current_stream_capturing=lambda: False,
            _is_in_bad_fork=lambda: False,
            Stream=_Stream,
            Event=_Event,
            stream=lambda stream: stream or _Stream(),
            set_stream=nothing,
            default_stream=lambda device=None: stream,
            ipc_collect=nothing,
        )
        self._patch(
            torch.accelerator,
            **streams,
            is_available=lambda: True,
            device_count=lambda: 1,
            current_accelerator=lambda check_available=False: torch.device("cuda"),
            current_device_index=lambda: 0,
            set_device_index=nothing,
        )
        self._patch(torch._C, _cuda_clearCublasWorkspaces=nothing)

    def _patch_autocast(self) -> None:
        """The CPU's autocast stands in: torch's own looks at the tensors' real device."""
        kind, enabled = torch.amp.autocast_mode.autocast, torch.is_autocast_enabled
        begin = kind.__init__

        def init(own: Any, device_type: str, *arguments: Any, **named: Any) -> None:
            begin(own, "cpu" if device_type == "cuda" else device_type, *arguments, **named)

        def is_enabled(device_type: str = "cuda") -> bool:
            return enabled("cpu" if device_type == "cuda" else device_type)

        self._patch(kind, __init__=init)
        self._patch(torch, is_autocast_enabled=is_enabled)

    def _patch_threads(self) -> None:
        begin, standin = threading.Thread.run, self

        def run(thread: threading.Thread) -> None:
            with standin.modes():
                begin(thread)

        self._patch(threading.Thread, run=run)

    # -- the package -----------------------------------------------------------------------------------------------

    def _patch_package(self) -> None:
        """What ranks tell each other is on the host, also where there is one rank, which tells nobody."""
        strategy, operations = lightning_fl.strategies.federated.FederatedStrategy, self.operations
        for name in ("exchange", "broadcast"):
            self._patch(strategy, **{name: _of_the_host(getattr(strategy, name), name, operations)})


def _of_the_host(real: Callable[..., Any], name: str, operations: Operations) -> Callable[..., Any]:
    def method(strategy: Any, values: Any, *arguments: Any, **named: Any) -> Any:
        refusing_tensors_on_the_device(operations, name, values)
        return real(strategy, values, *arguments, **named)

    return method


def _to(tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
    """``Tensor.to`` between the host and the device; gradients find the way back."""
    device, dtype, rest = named.pop("device", None), named.pop("dtype", None), []
    other = named.pop("other", None)
    for value in arguments:
        if isinstance(value, Tensor):
            other = value
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, str | torch.device) or (isinstance(value, int) and not isinstance(value, bool)):
            device = value
        elif value is not None:
            rest.append(value)
    if other is not None:
        device, dtype = other.device, other.dtype
    device = torch.device("cuda", device) if isinstance(device, int) else device and torch.device(device)
    source = device_of(tensor)
    flags = dict(zip(("non_blocking", "copy"), rest, strict=False)) | named
    if device is None or device.type == source.type:
        return _REAL["to"](tensor, dtype=tensor.dtype if dtype is None else dtype, **flags)
    if {device.type, source.type} != {"cpu", "cuda"}:
        return _REAL["to"](tensor, device, tensor.dtype if dtype is None else dtype, **flags)
    chosen = {"memory_format": flags["memory_format"]} if flags.get("memory_format") is not None else {}
    with asking_for(device, source):
        moved = torch.ops.aten._to_copy.default(
            tensor, dtype=dtype, device=device, non_blocking=bool(flags.get("non_blocking")), **chosen
        )
    if moved.requires_grad:
        moved.register_hook(lambda gradient: _to(gradient, source))
    return place(moved, device)
