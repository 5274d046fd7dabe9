"""Optimiser steps on flat vectors: the same arithmetic on one long vector instead of many short ones.

Elementwise optimisers do not depend on the boundaries of parameters. Modules, schedulers and checkpoints still see the
user's own optimiser, whose hyper-parameters are read at every step.
"""

import copy
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import ClientTurn, Correction
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.weights.flat import FlatModule, Place, Weights, merge_spans
from lightning_fl.engine.weights.local_parameters import LocalParameters, averaged_spans

#: Without norms, sorts or draws over whole parameters.
_ELEMENTWISE = frozenset({SGD, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop})
_GLOBAL_HOOKS = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
#: In half precision, torch's vector operations round differently from those for the last few entries of a parameter.
_DTYPES = frozenset({torch.float32, torch.float64})
#: States with one number per parameter.
_SCALARS = frozenset({"step", "mu_product"})
#: With a fused step kernel in torch.
_FUSED = frozenset({SGD, Adagrad, Adam, AdamW})
#: Those of them that are faster by it on a CPU, with many weights.
_GAIN = frozenset({Adam, AdamW})
#: Options of a group that choose another implementation of steps.
_IMPLEMENTATIONS = ("foreach", "fused", "capturable", "differentiable")


class FlatRun:
    """Adjacent parameters of one group as one vector [P_run], a view of their place; alignment gaps hold zeros."""

    def __init__(self, parameters: Sequence[Tensor], place: Place, vector: Tensor, begins: Sequence[int]) -> None:
        self.parameters = parameters
        self.place = place
        self.begins = begins
        self.flat = nn.Parameter(vector, requires_grad=True)
        self.gradient = torch.zeros_like(vector)
        ends = [*begins[1:], vector.numel()]
        gaps = [end - begin - parameter.numel() for parameter, begin, end in zip(parameters, begins, ends, strict=True)]
        self._gaps = [vector.new_zeros(gap) if gap else None for gap in gaps]
        # Not of the parameters, which a hook may have moved before the first step.
        parts = (vector[begin : begin + parameter.numel()] for parameter, begin in zip(parameters, begins, strict=True))
        self._places = [part.data_ptr() for part in parts]

    def gather(self) -> bool:
        """Gather the gradients; ``False`` if one is missing or a parameter has moved."""
        pieces: list[Tensor] = []
        for parameter, place, gap in zip(self.parameters, self._places, self._gaps, strict=True):
            gradient = parameter.grad
            if gradient is None or gradient.layout != torch.strided or parameter.data_ptr() != place:
                return False
            pieces.append(gradient.reshape(-1))
            if gap is not None:
                pieces.append(gap)
        torch.cat(pieces, out=self.gradient)
        self.flat.grad = self.gradient
        return True

    def split(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Split the run's state into states of the parameters; vectors are views."""
        return [
            {
                key: copy.deepcopy(value)
                if key in _SCALARS or value is None
                else value[begin : begin + parameter.numel()].view(parameter.shape)
                for key, value in state.items()
            }
            for parameter, begin in zip(self.parameters, self.begins, strict=True)
        ]

    def join(self, states: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Join the states of all parameters; ``None`` if their steps differ."""
        first = states[0]
        joined: dict[str, Any] = {}
        for key, value in first.items():
            values: list[Any] = [state.get(key) for state in states]
            if any((other is None) != (value is None) for other in values):
                return None
            if value is None:
                joined[key] = None
            elif key in _SCALARS:
                if any(float(other) != float(value) for other in values):
                    return None
                joined[key] = copy.deepcopy(value)
            else:
                joined[key] = vector = torch.zeros_like(self.flat)
                for part, parameter, begin in zip(values, self.parameters, self.begins, strict=True):
                    vector[begin : begin + parameter.numel()].view(parameter.shape).copy_(part)
        return joined if all(state.keys() == first.keys() for state in states) else None


class FlatOptimizer:
    """Takes an optimiser's steps on the flat vector; the optimiser gets its state back with :meth:`release`."""

    def __init__(self, optimizer: Optimizer, groups: Sequence[Sequence[FlatRun]], *, fused: bool, twin: Any) -> None:
        self._optimizer = optimizer
        self._fused = fused and has_fused_step(optimizer)
        self._groups, self._runs = groups, [*chain(*groups)]
        #: Hooks may add groups or parameters during a turn.
        self._known = [(group["params"], len(group["params"])) for group in optimizer.param_groups]
        # It keeps the class and settings; an earlier turn's one has the same, as steps read the optimiser's groups.
        self._twin = twin if type(twin) is type(optimizer) else copy.copy(optimizer)
        self._twin.state = defaultdict(dict)
        self._twin.param_groups = [{"params": [run.flat for run in runs]} for runs in groups]
        #: A step by user code uses the optimiser itself, so its state is restored and the flat form ends.
        self._watch = optimizer.register_step_pre_hook(self.release)
        self._ended = False

    @classmethod
    def of(
        cls, optimizer: Optimizer, flat: FlatModule, earlier: "FlatOptimizer | None" = None, *, fused: bool = False
    ) -> "FlatOptimizer | None":
        """The flat form of an optimiser and its state, reusing ``earlier`` runs; ``None`` if impossible or slower."""
        if not is_elementwise(optimizer):
            return None
        if earlier is not None and earlier._covers(optimizer):
            return cls(optimizer, earlier._groups, fused=fused, twin=earlier._twin)._with_state()
        groups = [flat_runs(group["params"], flat) for group in optimizer.param_groups]
        parameters = sum(len(group["params"]) for group in optimizer.param_groups)
        found = [runs for runs in groups if runs is not None]
        if len(found) < len(groups) or 2 * sum(map(len, found)) > parameters:
            return None
        return cls(optimizer, found, fused=fused, twin=None)._with_state()

    def step(self) -> bool:
        """Step by the parameters' gradients; ``False``, without a step, if parameters must be stepped one by one."""
        if self._ended or self.outdated or not all(run.gather() for run in self._runs):
            return False
        step_twin(self._twin, self._optimizer, fused=self._fused, has_hooks=False)
        return True

    @property
    def outdated(self) -> bool:
        groups = self._optimizer.param_groups
        if len(groups) != len(self._known):
            return True
        for place, (parameters, count) in enumerate(self._known):  # a loop, because it runs in every step
            if groups[place]["params"] is not parameters or len(parameters) != count:
                return True
        return False

    def release(self, *_: Any) -> None:
        """Return the state to the optimiser, as if it had taken the steps itself."""
        for run in self._runs:
            if state := self._twin.state.get(run.flat):
                if self._fused:
                    state = settle_steps_(dict(state), torch.device("cpu"), torch.get_default_dtype())
                self._optimizer.state.update(zip(run.parameters, run.split(state), strict=True))
        self.end()

    def end(self) -> None:
        self._watch.remove()
        self._twin.state.clear()
        self._ended = True

    def _covers(self, optimizer: Optimizer) -> bool:
        own = [[parameter for run in runs for parameter in run.parameters] for runs in self._groups]
        theirs = [group["params"] for group in optimizer.param_groups]
        return [[*map(id, group)] for group in own] == [[*map(id, group)] for group in theirs] and all(
            parameter.requires_grad for group in theirs for parameter in group
        )

    def _with_state(self) -> "FlatOptimizer | None":
        """This object with the optimiser's state; ``None`` if steps of parameters differ."""
        if not self._optimizer.state:
            return self
        for run in self._runs:
            states = [self._optimizer.state.get(parameter, {}) for parameter in run.parameters]
            if any(states):
                joined = run.join(states)
                if joined is None:
                    self.end()
                    return None
                if self._fused:
                    settle_steps_(joined, run.flat.device, torch.float32)
                self._twin.state[run.flat] = joined
        return self


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether an optimiser is elementwise, without hooks and with the default implementation of steps."""
    special = any(group.get(name) for group in optimizer.param_groups for name in _IMPLEMENTATIONS)
    return type(optimizer) in _ELEMENTWISE and not special and not _has_hooks(optimizer)


def step_twin(twin: Optimizer, optimizer: Optimizer, *, fused: bool = False, has_hooks: bool = True) -> None:
    """Step a twin's own parameters with an optimiser's present hyper-parameters, which modules may change."""
    for own, group in zip(twin.param_groups, optimizer.param_groups, strict=True):
        own.update(group | {"params": own["params"]} | ({"fused": True} if fused else {}))
    step: Any = type(twin).step
    if has_hooks or torch.autograd._profiler_enabled():
        twin.step()
    else:  # what torch wraps around it for hooks and its profiler takes as long as a small model's step
        step.__wrapped__(twin)


def has_fused_step(optimizer: Optimizer, *, gains: bool = False) -> bool:
    """Whether torch has a fused step kernel of the optimiser; with ``gains``, one that is faster on a CPU."""
    return type(optimizer) in (_GAIN if gains else _FUSED)


def settle_steps_(state: dict[str, Any], device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Move an optimiser's count of steps, which a fused step needs on the parameter's device in float32."""
    if "step" in state:
        state["step"] = torch.as_tensor(state["step"]).to(device, dtype)
    return state


def _has_hooks(optimizer: Optimizer) -> bool:
    """Whether an optimiser has step hooks, or a ``step`` assigned to the object (other than by schedulers)."""
    registries = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, *_GLOBAL_HOOKS)
    hooks = [hook for hooks in registries for hook in hooks.values()]
    foreign = any(not isinstance(getattr(hook, "__self__", None), FlatOptimizer) for hook in hooks)
    return foreign or not getattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched", "step" not in vars(optimizer))


def flat_runs(parameters: Sequence[Tensor], flat: FlatModule) -> list[FlatRun] | None:
    """A group's parameters as runs of the flat vectors; ``None`` if one is frozen, half precision or foreign."""
    places = [flat.place(parameter) for parameter in parameters]
    runs: list[FlatRun] = []
    begin = 0
    for number, (parameter, place) in enumerate(zip(parameters, places, strict=True)):
        if place is None or place.dtype not in _DTYPES or not parameter.requires_grad or not parameter.is_contiguous():
            return None
        following = places[number + 1] if number + 1 < len(places) else None
        if following is not None and (following.dtype, following.begin) == (place.dtype, place.end):
            continue
        members = [known for known in places[begin : number + 1] if known is not None]
        whole = place._replace(begin=members[0].begin)
        begins = [known.begin - whole.begin for known in members]
        runs.append(FlatRun(parameters[begin : number + 1], whole, flat.weights.part(whole), begins))
        begin = number + 1
    return runs


class SecondOptimizer:
    """Steps ``turn.kept[name]``, in place, by the rule and rates of the turn's only optimiser, with its own state."""

    def __init__(self, turn: ClientTurn, name: str, flat: FlatModule, settings: Settings, who: str) -> None:
        if len(turn.optimizers) != 1:
            what = f"{who} trains two models with one optimiser each, and the module has {len(turn.optimizers)}"
            raise ConfigurationError(f"{what}: return one from configure_optimizers, with automatic optimisation.")
        self.key = f"optimizer of {name}"  #: of its state in ``turn.kept``
        self._first = turn.optimizers[0]
        if isinstance(getattr(self._first, "optimizer", self._first), LBFGS):
            raise ConfigurationError(f"{who} steps a second model without the closure of LBFGS: use another optimiser.")
        self._settings = settings
        shared = {(span.dtype, span.begin): span for span in turn.spans}
        whole = is_elementwise(self._first)  # then adjacent parameters are stepped as one
        stored = turn.kept.get(self.key, {})
        kept = stored if isinstance(stored, dict) else {}
        self._groups: list[list[tuple[Place, nn.Parameter]]] = []
        self._vectors: list[tuple[Tensor, Tensor]] = []  #: parameter of the module, entries of the second model
        for group in self._first.param_groups:
            places = [(flat.place(parameter), parameter.shape) for parameter in group["params"]]
            own = [(shared[at[:2]], shape) for at, shape in places if at is not None and at[:2] in shared]
            for parameter, (at, _) in zip(group["params"], places, strict=True):
                if at is not None and at[:2] in shared:
                    self._vectors.append((parameter, turn.kept[name].part(shared[at[:2]])))
            runs = merge_spans([span for span, _ in own])
            if whole and (not kept or all(_key(run) in kept for run in runs)):
                parts = [(run, torch.Size([run.end - run.begin])) for run in runs]
            else:  # one by one, also where hooks have frozen or unfrozen layers since the states were kept
                parts = [(Place(span.dtype, span.begin, span.end), shape) for span, shape in own]
            self._groups.append([(at, nn.Parameter(turn.kept[name].part(at).view(shape))) for at, shape in parts])
        self._parameters = [parameter for own in self._groups for _, parameter in own]
        self._twin = copy.copy(self._first)  # keeps its class and settings
        if isinstance(stored, list) and len(stored) == len(self._parameters):  # an older checkpoint's, in their order
            kept = {_key(place): state for (place, _), state in zip(chain(*self._groups), stored, strict=True)}
        states = ((one, _kept_state(place, one, kept, self._first)) for place, one in chain(*self._groups))
        self._twin.state = defaultdict(dict, states)
        self._twin.param_groups = [{"params": [parameter for _, parameter in own]} for own in self._groups]

    def step(self, gradient: Weights) -> None:
        """Step the weights by a gradient, clipped as in the run."""
        for place, parameter in chain(*self._groups):
            parameter.grad = gradient.part(place).view(parameter.shape)
        if clip := self._settings.gradient_clip_val:
            if self._settings.gradient_clip_algorithm == "value":
                nn.utils.clip_grad_value_(self._parameters, clip)
            else:
                nn.utils.clip_grad_norm_(self._parameters, clip)
        frozen = [(own, own.clone()) for one, own in self._vectors if not one.requires_grad]  # in this turn, by hooks
        step_twin(self._twin, self._first)
        for own, before in frozen:
            own.copy_(before)

    def state(self) -> dict[str, dict[str, Any]]:
        """The state of every run or parameter, by its place."""
        return {_key(place): dict(self._twin.state[parameter]) for place, parameter in chain(*self._groups)}


def _key(place: Place) -> str:
    return f"{place.dtype} {place.begin} {place.end}"


def _kept_state(place: Place, parameter: nn.Parameter, kept: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """A parameter's state, also as part of a run, moved to its device, except for steps counted on the host."""
    counts_there = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    for key, state in kept.items():
        dtype, begin, end = key.split()
        if dtype != str(place.dtype) or not int(begin) <= place.begin < place.end <= int(end):
            continue
        found = copy.deepcopy(state)  # of each part of a run its own
        for name, value in found.items():
            if isinstance(value, Tensor) and (name != "step" or counts_there):
                if value.ndim and value.numel() == int(end) - int(begin):  # of a run or of a parameter
                    own = slice(place.begin - int(begin), place.end - int(begin))
                    value = value.flatten()[own].view(parameter.shape)
                found[name] = value.to(parameter.device)
        return found
    return {}


class GradientCorrection:
    """Corrects the gradients of averaged parameters in one flat vector; a missing one counts as zero."""

    def __init__(self, flat: FlatModule, personal: LocalParameters | None, correct_: Correction) -> None:
        self._flat = flat
        self._correct_ = correct_
        self._gradient = Weights({dtype: torch.zeros_like(vector) for dtype, vector in flat.weights.floating()})
        self._personal = personal
        self._of_optimizer: dict[tuple[int, ...], tuple[list[nn.Parameter], list[torch.Tensor]]] = {}

    def apply_(self, optimizer: Optimizer) -> None:
        # Hooks may add, freeze and unfreeze some.
        groups = (id(optimizer), *[one.requires_grad for group in optimizer.param_groups for one in group["params"]])
        if groups not in self._of_optimizer:
            self._of_optimizer[groups] = self._views(optimizer)
        parameters, views = self._of_optimizer[groups]
        for _, vector in self._gradient.floating():
            vector.zero_()  # also where a parameter has been frozen since the last step
        for parameter, view in zip(parameters, views, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
        self._correct_(self._gradient, self._flat.collect())
        for parameter, view in zip(parameters, views, strict=True):
            if parameter.grad is not None or view.any():
                parameter.grad = view.clone()  # the next optimiser's correction changes the views

    def _views(self, optimizer: Optimizer) -> tuple[list[nn.Parameter], list[torch.Tensor]]:
        parameters, views = [], []
        averaged = {(span.dtype, span.begin) for span in averaged_spans(self._flat, self._personal)}
        taken: set[Place] = set()
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            place = self._flat.place(parameter)
            if place is not None and (place.dtype, place.begin) in averaged:
                if place in taken:
                    what = "two parameters of the optimiser are different objects that share memory"
                    remedy = "tie them as one object (b.weight = a.weight)"
                    raise ConfigurationError(f"{what}, and the strategy changes their gradients: {remedy}.")
                taken.add(place)
                vector = self._gradient.vectors[place.dtype]
                parameters.append(parameter)
                views.append(vector[place.begin : place.begin + parameter.numel()].view(parameter.shape))
        return parameters, views
