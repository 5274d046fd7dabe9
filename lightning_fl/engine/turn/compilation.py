"""``torch.compile`` of a module's steps during a run, shared by all clients and rounds.

As in Lightning, ``forward`` and each step of the module are compiled as a whole, including the loss; ``self.log``,
torchmetrics and a manually optimising ``training_step`` stay outside of the graph. Processes compile after the fork.
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
from lightning_fl.core.validation import Count, faults_of

#: Whether steps are compiled, or the keyword arguments of ``torch.compile``.
CompileSettings = bool | dict[str, Any]

_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
#: Methods of metrics, whose graph would depend on the number of calls.
_COUNTING = ("forward", "update", "compute", "reset")


def compile_faults(settings: CompileSettings) -> list[str]:
    """Faults of ``trainer.compile``, found by torch, except for values that torch accepts unchecked."""
    if isinstance(settings, bool):
        return []
    if not isinstance(settings, Mapping):
        return [f"trainer.compile={settings!r}: give true, false or keyword arguments of torch.compile."]
    given = _arguments(settings)
    if type(given.get("fullgraph", True)) is not bool:
        return [f"trainer.compile.fullgraph={given['fullgraph']!r}: give true or false."]
    if faults := faults_of({"recompile_limit": Count | None}, {"recompile_limit": None} | given, "trainer.compile."):
        return faults
    try:
        torch.compile(_probe, **given)
    except Exception as error:  # torch raises errors of a dozen types
        return [f"trainer.compile={dict(settings)}: refused by torch.compile: {cut(str(error), 400)}"]
    return []


def _arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are set, with a copy of ``options``, which torch changes."""
    given = {name: value for name, value in settings.items() if value is not None}
    return given | ({"options": dict(given["options"])} if isinstance(given.get("options"), Mapping) else {})


class CompiledSteps:
    """A module whose steps are compiled during a run, by ``trainer.compile`` or as ``torch.compile`` has wrapped it."""

    def __init__(self, model: object, settings: CompileSettings) -> None:
        self._compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
        self._replaced: list[tuple[nn.Module, str, Any]] = []
        if isinstance(model, OptimizedModule):
            if settings is not False:
                raise ConfigurationError("trainer.compile is set, and the model is compiled already: leave out one.")
            self.module: Any = model._orig_mod
            self._compile = model.dynamo_ctx
            # Lightning stores the arguments of torch.compile.
            self._backend = getattr(model, "_compile_kwargs", {}).get("backend", "inductor")
            return
        self.module = model
        if settings is not False:
            given = {} if settings is True else _arguments(settings)
            self._compile = partial(torch.compile, **given)
            self._backend = given.get("backend", "inductor")

    def check(self, device: torch.device) -> None:
        """Try a registered backend on one line of code."""
        if self._compile is None or callable(self._backend):
            return
        try:
            self._compile(_probe)(torch.zeros(2, device=device))
        except Exception as error:
            cause = error.__cause__ or error
            reason = next(iter(str(cause).strip().splitlines()), "").rstrip(".")
            what = f"torch.compile with backend {self._backend} does not work here: {type(cause).__name__}: {reason}"
            needed = "a C++ compiler (g++ or clang++, or one named in CXX), for a GPU Triton and a C compiler"
            raise ConfigurationError(f"{what}. Backend inductor needs {needed}. Or omit trainer.compile.") from error

    def begin(self) -> None:
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
        while self._replaced:
            owner, name, own = self._replaced.pop()
            delattr(owner, name)
            if own is not None:
                setattr(owner, name, own)

    def _change(self, owner: nn.Module, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._replaced.append((owner, name, vars(owner).get(name)))
        method = getattr(owner, name)
        if isinstance(method, MethodType) and method.__self__ is owner:  # bind, so that copies of the owner work
            setattr(owner, name, MethodType(change(method.__func__), owner))
        else:
            setattr(owner, name, change(method))


def _probe(x: Tensor) -> Tensor:
    return x.exp() + 1


def _keeping_outputs(step: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the outputs of a step, because a CUDA graph overwrites them in its next run."""

    @wraps(step)
    def run(*args: Any, **kwargs: Any) -> Any:
        return apply_to_collection(step(*args, **kwargs), Tensor, Tensor.clone, allow_frozen=True)

    return run


def _keeping_values(log: Callable[..., None]) -> Callable[..., None]:
    @wraps(log)
    def run(*args: Any, **kwargs: Any) -> None:
        log(*apply_to_collection([*args], Tensor, Tensor.clone), **apply_to_collection(kwargs, Tensor, Tensor.clone))

    return run
