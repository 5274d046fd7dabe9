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

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchmetrics import Metric

from lightning_fl.engine.turn.capture_checks import MEND, AnyIndex, CaptureWatch, attributes_of, host_draws, tensors_of
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.errors import ConfigurationError, FederatedError, TrainingError

__all__ = ["CapturedSteps", "Compute"]

#: The loss that the module makes of a batch and its index.
Compute = Callable[[Any, int], Tensor | None]

_WARM_UPS = 2
_MOST_GRAPHS = 32
#: Of ``self.trainer``: another one in every step, turn or round.
_OF_A_STEP = frozenset(
    {
        *("batch_idx", "is_last_batch", "global_step", "current_epoch", "current_round", "batches_before", "client"),
        *("num_training_batches", "estimated_stepping_batches", "callback_metrics", "logged_metrics"),
        *("progress_bar_metrics", "datamodule", "train_dataloader", "val_dataloaders", "fit_loop", "optimizers"),
        *("lr_scheduler_configs", "should_stop", "loader"),
    }
)


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
        attributes, tensors, draws = attributes_of(self._module), tensors_of(self._module), host_draws(self._device)
        with CaptureWatch(self._what):
            self._pass(batch, recorder)
        if tensors_of(self._module) != tensors:
            raise self._refusal("it assigns a parameter or buffer anew: change it in place (copy_)")
        after = attributes_of(self._module)
        changed = [name for name, value in after.items() if name not in attributes or attributes[name] != value]
        if changed:
            raise self._refusal(f"it changes self.{changed[0]}, which Python would do once and not in every step")
        if host_draws(self._device) != draws:
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
        loss = self._compute(batch, AnyIndex(self._what))
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
        state = (trains, self._flat.trainable(), attributes_of(self._module))
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
