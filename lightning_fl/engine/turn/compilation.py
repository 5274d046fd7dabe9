"""``torch.compile`` around a module's steps, for the time of a run.

As in Lightning, ``forward`` and each step that the module defines are compiled as a whole, so that the loss belongs to
the graph; ``self.log`` and torchmetrics stay outside of it, and so does a ``training_step`` that optimises manually.
All clients and rounds share the compiled steps, since they share the module and the memory that its weights lie in.
Processes compile after they were forked.
"""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torchmetrics import Metric, MetricCollection

from lightning_fl.core.errors import ConfigurationError, cut
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.validation import check_counts

__all__ = ["CompileSettings", "CompiledSteps", "compile_faults"]

#: Whether steps are compiled, or the keyword arguments of ``torch.compile``.
CompileSettings = bool | dict[str, Any]

_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
#: Of a metric: a graph would depend on how often it was called.
_COUNTING = ("forward", "update", "compute", "reset")


def compile_faults(settings: CompileSettings) -> list[str]:
    """What is wrong with ``trainer.compile``: torch judges it, except for values that it takes without a look."""
    if isinstance(settings, bool):
        return []
    if not isinstance(settings, Mapping):
        return [f"trainer.compile={settings!r}: give true, false or keyword arguments of torch.compile."]
    given = _arguments(settings)
    if type(given.get("fullgraph", True)) is not bool:
        return [f"trainer.compile.fullgraph={given['fullgraph']!r}: give true or false."]
    try:
        check_counts("", recompile_limit=given.get("recompile_limit"))
        torch.compile(_probe, **given)
    except Exception as error:  # torch raises errors of a dozen types
        return [f"trainer.compile={dict(settings)}: torch.compile does not take that: {cut(str(error), 400)}"]
    return []


def _arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is set, with options of their own: torch takes entries out of them."""
    given = {name: value for name, value in settings.items() if value is not None}
    return given | ({"options": dict(given["options"])} if isinstance(given.get("options"), Mapping) else {})


class CompiledSteps:
    """A module and how its steps are compiled; not at all, for most.

    Args:
        model: a module, or what ``torch.compile`` made of one: its steps are then compiled in the same way.
        settings: ``trainer.compile``.

    Attributes:
        module: the module itself.

    Raises:
        ConfigurationError: a compiled module, and ``trainer.compile`` as well.
    """

    def __init__(self, model: object, settings: CompileSettings) -> None:
        self._compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
        self._replaced: list[tuple[nn.Module, str, Any]] = []
        if isinstance(model, OptimizedModule):
            if settings is not False:
                raise ConfigurationError(
                    "the model is compiled already, and trainer.compile is set: leave out one of them."
                )
            self.module: Any = model._orig_mod
            self._compile = model.dynamo_ctx
            # Lightning notes what torch.compile was given.
            self._backend = getattr(model, "_compile_kwargs", {}).get("backend", "inductor")
            return
        self.module = model
        if settings is not False:
            given = {} if settings is True else _arguments(settings)
            self._compile = partial(torch.compile, **given)
            self._backend = given.get("backend", "inductor")

    def check(self, device: torch.device) -> None:
        """Compile and run a line of code, where a registered backend is to compile the steps.

        Raises:
            ConfigurationError: it fails: this machine has no C++ compiler, say.
        """
        if self._compile is None or callable(self._backend):
            return
        try:
            self._compile(_probe)(torch.zeros(2, device=device))
        except Exception as error:
            cause = error.__cause__ or error
            reason = next(iter(str(cause).strip().splitlines()), "").rstrip(".")
            raise ConfigurationError(
                f"torch.compile with backend {self._backend} does not work on this machine: {type(cause).__name__}:"
                f" {reason}. Backend inductor needs a C++ compiler for a CPU (install g++ or clang++, or name one in"
                " the environment variable CXX), Triton and a C compiler for a GPU. Or leave out trainer.compile."
            ) from error

    def begin(self) -> None:
        """Give the module compiled steps."""
        if self._compile is None:
            return
        module: LightningModule = self.module
        self._change(module, "log", lambda log: torch.compiler.disable(_keeping_values(log)))
        self._change(module, "log_dict", torch.compiler.disable)
        for part in module.modules():
            if isinstance(part, Metric | MetricCollection):
                for name in _COUNTING:
                    self._change(part, name, torch.compiler.disable)
        compiled = self._compile
        for name in _STEPS:
            by_hand = name == "training_step" and not module.automatic_optimization
            if is_overridden(name, module) and not by_hand:
                self._change(module, name, lambda step: _keeping_outputs(compiled(step)))
        self._change(module, "forward", compiled)

    def end(self) -> None:
        """The module's own steps again."""
        while self._replaced:
            owner, name, own = self._replaced.pop()
            delattr(owner, name)
            if own is not None:
                setattr(owner, name, own)

    def _change(self, owner: nn.Module, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._replaced.append((owner, name, vars(owner).get(name)))
        method = getattr(owner, name)
        if isinstance(method, MethodType) and method.__self__ is owner:  # then a copy of the owner has its own
            setattr(owner, name, MethodType(change(method.__func__), owner))
        else:
            setattr(owner, name, change(method))


def _probe(x: Tensor) -> Tensor:
    return x.exp() + 1


def _keeping_outputs(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step with outputs of its own: those of a CUDA graph are overwritten when it runs again."""

    @wraps(step)
    def run(*args: Any, **kwargs: Any) -> Any:
        return apply_to_collection(step(*args, **kwargs), Tensor, Tensor.clone, allow_frozen=True)

    return run


def _keeping_values(log: Callable[..., None]) -> Callable[..., None]:
    """``self.log`` of copies, for the same reason."""

    @wraps(log)
    def run(*args: Any, **kwargs: Any) -> None:
        log(*map(_copied, args), **{name: _copied(value) for name, value in kwargs.items()})

    return run


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
