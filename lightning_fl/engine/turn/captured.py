"""Forward and backward pass of ``training_step`` as captured CUDA graphs.

A small model's step is some dozens of kernels of a few microseconds each, and Python takes longer to ask for them than
a GPU to run them. A captured graph is asked for as a whole. What is captured reads and writes memory at fixed places:
the weights, which all clients and rounds have in the module's one flat vector, a batch that is copied into a place of
its own, and the gradients. So there is one graph for each layout of a batch, for all clients and rounds. What follows,
the change of the gradient, clipping, the optimiser and its schedule, is as without: the same kernels on the same
numbers.

What a step reads besides tensors is fixed at the capture: the attributes of the module are therefore looked at in every
turn (another value, another graph), and what is another one in every step is refused.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_iter, tree_unflatten
from torchmetrics import Metric

from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.errors import ConfigurationError, FederatedError, TrainingError

__all__ = ["CapturedSteps", "Compute"]

#: The loss that the module makes of a batch and its index.
Compute = Callable[[Any, int], Tensor | None]

MEND = "Set trainer.cuda_graphs=false."
_WARM_UPS = 2
_MOST_GRAPHS = 32
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
#: Of ``self.trainer``: another one in every step, turn or round.
_OF_A_STEP = frozenset(
    {
        *("batch_idx", "is_last_batch", "global_step", "current_epoch", "current_round", "batches_before", "client"),
        *("num_training_batches", "estimated_stepping_batches", "callback_metrics", "logged_metrics"),
        *("progress_bar_metrics", "datamodule", "train_dataloader", "val_dataloaders", "fit_loop", "optimizers"),
        *("lr_scheduler_configs", "should_stop", "loader"),
    }
)
_PLAIN = (bool, int, str, bytes, complex, Enum, torch.dtype, torch.device, torch.Size)
_DEEPEST = 3


@dataclass(frozen=True)
class _Logged:
    """A call of ``self.log``: the arguments of the collector's ``log``, and where its value lies."""

    hook: str
    name: str
    options: dict[str, Any]
    value: Tensor


@dataclass(frozen=True)
class _Graph:
    """A captured pass: what it reads, and where it leaves what comes of it.

    Attributes:
        graph: to be replayed.
        batch: the tensors of the batch.
        gradients: of the module's parameters, ``None`` where the loss does not reach one.
        values: loss and logged values, by their dtype, [k] each.
        loss: the dtype and place of the loss in them.
        logged: each call of ``self.log`` with the dtype and place of its value.
    """

    graph: torch.cuda.CUDAGraph
    batch: list[Tensor]
    gradients: list[Tensor | None]
    values: dict[torch.dtype, Tensor]
    loss: tuple[torch.dtype, int]
    logged: list[tuple[_Logged, torch.dtype, int]]


class CapturedSteps:
    """Runs losses and their gradients as captured graphs, made when a batch of a new layout comes.

    Args:
        module_trainer: what the module sees as ``self.trainer``.
        flat: the module's flat weights, laid out for the run.
        compute: the module's loss; what it draws on the device is seeded by the turn.
    """

    def __init__(self, module_trainer: ModuleTrainer, flat: FlatModule, compute: Compute) -> None:
        self._shim = module_trainer
        self._module: LightningModule = module_trainer.model
        self._flat = flat
        self._compute = compute
        self._parameters = list(self._module.parameters())
        self._device = next(iter(flat.weights.vectors.values())).device
        self._what = f"{type(self._module).__name__}.training_step"
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self._pool: Any = None
        self._states: list[Any] = []
        self._state: int | None = None

    def begin_turn(self) -> None:
        """A turn begins, whose hooks may have changed what the step reads."""
        self._state = None

    def release(self) -> None:
        """Give the memory back; gradients that lie in it are gone."""
        self._graphs.clear()
        self._states.clear()
        self._pool = None
        for parameter in self._parameters:
            parameter.grad = None

    def run(self, batch: Any) -> Tensor:
        """The loss of a batch; its gradients are those of the parameters, and what the step logs is logged.

        Raises:
            ConfigurationError: the step does something that a graph would not repeat.
            TrainingError: it cannot be captured, or gives no loss.
        """
        leaves, layout = tree_flatten(batch)
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise self._refusal("its batch holds other things than tensors")
        if self._state is None:
            self._state = self._state_number()
        key = (self._state, layout, *[(leaf.shape, leaf.dtype, leaf.stride()) for leaf in leaves])
        captured = self._graphs.get(key)
        if captured is None:
            captured = self._graphs[key] = self._capture(leaves, layout)
            if len(self._graphs) > _MOST_GRAPHS:
                self._graphs.popitem(last=False)
        for held, leaf in zip(captured.batch, leaves, strict=True):
            held.copy_(leaf)
        captured.graph.replay()
        for parameter, gradient in zip(self._parameters, captured.gradients, strict=True):
            parameter.grad = gradient
        values = {dtype: stacked.clone().unbind(0) for dtype, stacked in captured.values.items()}
        for entry, dtype, place in captured.logged:
            self._shim.collector.log(entry.hook, entry.name, values[dtype][place], **entry.options)
        return values[captured.loss[0]][captured.loss[1]]

    # -- a capture -----------------------------------------------------------------------------------------------

    def _capture(self, leaves: Sequence[Tensor], layout: Any) -> _Graph:
        """Capture a pass; the module, its gradients and all draws are afterwards as they were before."""
        batch = [leaf.clone() for leaf in leaves]
        given = tree_unflatten(batch, layout)
        weights = self._flat.collect().clone()
        draws = _collect_rng_states(include_cuda=self._device.type == "cuda")
        recorder = _Recorder(self._shim, self._what)
        try:
            with recorder.instead_of_shim():
                self._look(given, recorder)
                self._warm_up(given, recorder)
                self._flat.weights.copy_(weights)
                _set_rng_states(draws)
                return self._captured(batch, given, recorder)
        finally:
            self._flat.weights.copy_(weights)
            _set_rng_states(draws)
            for parameter in self._parameters:
                parameter.grad = None

    def _look(self, batch: Any, recorder: "_Recorder") -> None:
        """A pass that is watched: refuses what a graph would not repeat."""
        attributes, tensors, draws = _attributes(self._module), _tensors(self._module), _host_draws(self._device)
        with _Watch(self._what):
            self._pass(batch, recorder)
        if _tensors(self._module) != tensors:
            raise self._refusal("it assigns a parameter or buffer anew: change it in place (copy_)")
        after = _attributes(self._module)
        changed = [name for name, value in after.items() if name not in attributes or attributes[name] != value]
        if changed:
            raise self._refusal(f"it changes self.{changed[0]}, which Python would do once and not in every step")
        if _host_draws(self._device) != draws:
            raise self._refusal("it draws random numbers on the host (Python's, NumPy's, or torch's on the CPU)")

    def _warm_up(self, batch: Any, recorder: "_Recorder") -> None:
        """Passes on a stream of their own, in which libraries choose kernels and get their memory."""
        stream, present = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        stream.wait_stream(present)
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._pass(batch, recorder)
        present.wait_stream(stream)

    def _captured(self, batch: list[Tensor], given: Any, recorder: "_Recorder") -> _Graph:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        places: dict[torch.dtype, list[Tensor]] = {}

        def placed(value: Tensor) -> tuple[torch.dtype, int]:
            held = places.setdefault(value.dtype, [])
            held.append(value)
            return value.dtype, len(held) - 1

        try:
            with torch.cuda.graph(graph, pool=self._pool):
                loss = placed(self._pass(given, recorder))
                logged = [(entry, *placed(entry.value)) for entry in recorder.logged]
                values = {dtype: torch.stack(held) for dtype, held in places.items()}
        except FederatedError:
            raise
        except Exception as error:
            text = str(error).strip().split("\n")[0]
            raise TrainingError(
                f"{self._what} cannot be captured as a CUDA graph. {MEND} The cause: {type(error).__name__}: {text}"
            ) from error
        return _Graph(graph, batch, [parameter.grad for parameter in self._parameters], values, loss, logged)

    def _pass(self, batch: Any, recorder: "_Recorder") -> Tensor:
        """Loss and gradients, eagerly."""
        recorder.logged = []
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._compute(batch, _Index(self._what))
        if loss is None or loss.ndim:
            got = "None" if loss is None else f"a loss of shape {tuple(loss.shape)}"
            raise TrainingError(
                f"{self._what} returned {got}: a captured step returns one number for each batch. {MEND}"
            )
        self._shim.precision_plugin.backward(loss, self._module)
        return loss.detach()

    # -- what a graph depends on ---------------------------------------------------------------------------------

    def _state_number(self) -> int:
        """A number for what the step reads of the module besides tensors' values: the same for the same."""
        trains = [part.training for part in self._module.modules()]
        state = (trains, self._flat.trainable(), _attributes(self._module))
        for number, known in enumerate(self._states):
            if known == state:
                return number
        self._states.append(state)
        return len(self._states) - 1

    def _refusal(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{self._what} cannot be captured as a CUDA graph: {reason}. {MEND}")


class _Recorder:
    """Stands before the :class:`ModuleTrainer` in a pass that is captured, and takes what is logged there.

    Args:
        shim: answers what is the same in every step.
        what: is captured.
    """

    def __init__(self, shim: ModuleTrainer, what: str) -> None:
        self._shim = shim
        self._what = what
        self.logged: list[_Logged] = []

    @contextmanager
    def instead_of_shim(self) -> Iterator[None]:
        """The module's ``self.trainer`` is this object."""
        module = self._shim.model
        module.trainer = self  # type: ignore[assignment]  # reaches modules inside the module, too
        try:
            yield
        finally:
            module.trainer = self._shim  # type: ignore[assignment]

    @property
    def _results(self) -> "_Recorder":
        return self

    def log(self, fx: str, name: str, value: Tensor | Metric, **options: Any) -> None:
        """Keep one value. The signature is that of Lightning's result collection."""
        if isinstance(value, Metric):
            raise ConfigurationError(
                f"{self._what} cannot be captured as a CUDA graph: self.log({name!r}) of a {type(value).__name__},"
                f" which counts in Python. Log a number (torchmetrics.functional). {MEND}"
            )
        self.logged.append(_Logged(fx, name, options, value))

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        """Lightning calls this between hooks; there is nothing to do."""

    def __getattr__(self, name: str) -> Any:
        if name in _OF_A_STEP:
            raise ConfigurationError(
                f"{self._what} cannot be captured as a CUDA graph: it reads self.trainer.{name}, which is not the same"
                f" in every step. {MEND}"
            )
        return getattr(self._shim, name)


class _Index(int):
    """The ``batch_idx`` of every batch: whoever looks at it is refused."""

    def __new__(cls, what: str) -> "_Index":
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
    setattr(_Index, f"__{_operation}__", _refuse_index)


class _Watch(TorchDispatchMode):
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


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What Python keeps in a module and those inside it, as something that is equal where it is."""
    found: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        for key, value in vars(part).items():
            if key not in _APART:
                found[f"{prefix}.{key}" if prefix else key] = _seen(value, 0)
    return found


#: Of every module: its tensors and parts, which are looked at by themselves, and what the engine puts there.
_APART = frozenset({"_parameters", "_buffers", "_modules", "_trainer", "_current_fx_name", "training"})


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


def _tensors(module: nn.Module) -> list[int]:
    """Which parameters and buffers a module has, and where they lie."""
    held = (*module.parameters(), *module.buffers())
    return [number for one in held for number in (id(one), one.data_ptr())]


def _host_draws(device: torch.device) -> tuple[Any, ...]:
    """The states of the random numbers that no graph draws from."""
    state: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - the user's code may draw from it
    own = torch.default_generator
    of_torch = b"" if own.device.type == device.type else own.get_state().numpy().tobytes()
    return random.getstate(), state[1].tobytes(), *state[2:], of_torch
