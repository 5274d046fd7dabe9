"""Weights of several clients as rows of matrices, which an elementwise optimiser steps as one parameter."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fl.core.pinned_memory import to_device
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn import flat_optimizer
from lightning_fl.engine.turn.flat_optimizer import FlatRun, flat_runs, has_fused_step, is_elementwise, settle_steps_
from lightning_fl.engine.weights.flat import FlatModule, Place, Span, Weights


def why_not_stackable(optimizer: Optimizer, flat: FlatModule) -> str | None:
    """The reason why an optimiser cannot step several clients at once; ``None`` if it can."""
    if not is_elementwise(optimizer):
        options = "hooks, foreach, fused, capturable or differentiable set"
        return f"its optimiser {type(optimizer).__name__} is not one of torch's elementwise ones, or has {options}"
    if any(flat_runs(_trained(group), flat) is None for group in optimizer.param_groups):
        return "its optimiser has parameters that are not the module's, or not float32 or float64"
    places = [flat.place(parameter) for group in optimizer.param_groups for parameter in _trained(group)]
    if len(set(places)) < len(places):
        return "two of its optimiser's parameters are different objects that share memory"
    return None


def clip_rows_(gradients: Sequence[Tensor], clip_val: float, algorithm: Literal["norm", "value"]) -> None:
    """Clip every row of matrices [n, P_run] separately, as torch clips one client's gradients by norm or value."""
    if algorithm == "value":
        for gradient in gradients:
            gradient.clamp_(-clip_val, clip_val)
        return
    norms = torch.stack([torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients])
    norm = torch.linalg.vector_norm(norms, dim=0)
    factor = (clip_val / (norm + 1e-6)).clamp(max=1.0)  # torch's own guard against a norm of zero
    for gradient in gradients:
        gradient.mul_(factor.unsqueeze(1))


class _StackedRun:
    def __init__(self, run: FlatRun, num_rows: int) -> None:
        self.run = run
        self.matrix = run.flat.new_zeros(num_rows, run.flat.numel(), requires_grad=False)
        self.gradient = torch.zeros_like(self.matrix)
        self.parameter = nn.Parameter(self.matrix)

    def parts(self, matrix: Tensor) -> list[Tensor]:
        """Each parameter of some rows, [k, *shape], as a leaf of a graph that views ``matrix`` [k, P_run]."""
        return [
            matrix[:, begin : begin + parameter.numel()].view(len(matrix), *parameter.shape).requires_grad_()
            for parameter, begin in zip(self.run.parameters, self.run.begins, strict=True)
        ]

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate values or gradients of its parameters, [k, *shape] each, to rows [k, P_run], zero in gaps."""
        pieces = []
        ends = [*self.run.begins[1:], self.matrix.shape[1]]
        for part, begin, end in zip(parts, self.run.begins, ends, strict=True):
            flat = part.reshape(len(part), -1)
            pieces.append(flat)
            if gap := end - begin - flat.shape[1]:
                pieces.append(flat.new_zeros(len(flat), gap))
        return torch.cat(pieces, dim=1)


class StackedWeights:
    """A row of weights for each of n clients, of which the first ``active`` are stepped.

    The class, hyper-parameters and groups of a fresh, stackable optimiser (:func:`why_not_stackable`) are used for all
    rows; its own parameters do not change.
    """

    def __init__(self, flat: FlatModule, optimizer: Optimizer, num_rows: int, *, fused: bool = False) -> None:
        self.active = num_rows
        self._fused = fused and has_fused_step(optimizer)
        self._flat = flat
        self._optimizer = optimizer
        self._twin = copy.copy(optimizer)  # keeps its class and settings
        self._twin.state = defaultdict(dict)
        self._groups: list[list[_StackedRun]] = []
        for group in optimizer.param_groups:
            runs = flat_runs(_trained(group), flat)
            assert runs is not None
            self._groups.append([_StackedRun(run, num_rows) for run in runs])
        self._runs = [one for stacked in self._groups for one in stacked]
        self._twin.param_groups = [
            {**group, "params": [one.parameter for one in stacked]}
            for group, stacked in zip(optimizer.param_groups, self._groups, strict=True)
        ]
        for one in self._runs:
            self._copy_state(one, optimizer)

        names: dict[Place, list[str]] = {}
        for span in flat.spans():
            names.setdefault(Place(span.dtype, span.begin, span.end), []).append(span.name)
        #: Names of each trained parameter; a tied one has several.
        self.trained_names = []
        for run in (one.run for one in self._runs):
            for parameter, offset in zip(run.parameters, run.begins, strict=True):
                begin = run.place.begin + offset
                self.trained_names.append(names.pop(Place(run.place.dtype, begin, begin + parameter.numel())))
        #: Buffers and untrained parameters: place -> rows [n, size].
        self._kept = {
            place: flat.weights.vectors[place.dtype].new_zeros(num_rows, place.end - place.begin) for place in names
        }
        #: Names of each buffer and of each parameter that is frozen or not in the optimiser.
        self.kept_names = list(names.values())
        module = flat.module
        held = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        shapes = {name: tensor.shape for name, tensor in held}
        self._kept_shapes = [shapes[one[0]] for one in self.kept_names]
        self._all_parts: list[list[Tensor]] | None = None

    def take(self, row: int) -> None:
        present = self._flat.collect()
        for place, rows in self._columns():
            rows[row] = present.part(place)

    def give(self, row: int) -> None:
        present = self._flat.collect()
        for place, rows in self._columns():
            present.part(place).copy_(rows[row])

    def _columns(self) -> list[tuple[Place, Tensor]]:
        return [*((one.run.place, one.matrix) for one in self._runs), *self._kept.items()]

    def parts(self, rows: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
        """The trained parameters of active rows [k] (``None`` for views of all), as leaves of a graph, and all others.

        Tensors [k, *shape], in the orders of ``trained_names`` and ``kept_names``.
        """
        if rows is None:
            if self._all_parts is None:
                self._all_parts = [one.parts(one.matrix[: self.active]) for one in self._runs]
            parts, kept = self._all_parts, [value[: self.active] for value in self._kept.values()]
        else:
            parts = [one.parts(one.matrix.index_select(0, rows)) for one in self._runs]
            kept = [value.index_select(0, rows) for value in self._kept.values()]
        shaped = [value.view(len(value), *shape) for value, shape in zip(kept, self._kept_shapes, strict=True)]
        return [part for of_run in parts for part in of_run], shaped

    def named(
        self, trained: Sequence[Tensor], kept: Sequence[Tensor], prefix: str = ""
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors of :meth:`parts`, or of one row, with their names in the module; tied ones under each name."""
        for values, of_values in ((trained, self.trained_names), (kept, self.kept_names)):
            for value, names in zip(values, of_values, strict=True):
                for name in names:
                    yield prefix + name, value

    def accumulate(
        self, rows: Tensor | None, gradients: Sequence[Tensor], trained: Sequence[Tensor], kept: Sequence[Tensor]
    ) -> None:
        """Add some rows' gradients to those of the step, and store in-place changes."""
        begin = 0
        for one in self._runs:
            end = begin + len(one.run.parameters)
            gathered = one.gather(gradients[begin:end])
            if rows is None:
                one.gradient[: self.active].add_(gathered)
            else:
                one.gradient.index_add_(0, rows, gathered)
                one.matrix[rows] = one.gather([part.detach() for part in trained[begin:end]])
            begin = end
        if rows is not None:
            for own, value in zip(self._kept.values(), kept, strict=True):
                own[rows] = value.reshape(len(rows), -1)

    @property
    def places(self) -> list[Place]:
        return [one.run.place for one in self._runs]

    @property
    def matrices(self) -> list[Tensor]:
        """The active rows of the trained matrices, [k, P_run] each."""
        return [one.matrix[: self.active] for one in self._runs]

    def step(self, settings: Settings, correct_: Callable[[Sequence[Tensor], Sequence[Tensor]], None] | None) -> None:
        """Step the active rows by the accumulated gradients, corrected and clipped, and clear these."""
        gradients = [one.gradient[: self.active] for one in self._runs]
        if correct_ is not None:
            correct_(gradients, self.matrices)
        if settings.gradient_clip_val and gradients:
            clip_rows_(gradients, settings.gradient_clip_val, settings.gradient_clip_algorithm or "norm")
        for one, gradient in zip(self._runs, gradients, strict=True):
            one.parameter.grad = gradient
        flat_optimizer.step_twin(self._twin, self._optimizer, fused=self._fused)
        for gradient in gradients:
            gradient.zero_()

    def keep_first(self, active: int) -> None:
        """Step only the first ``active`` rows from now on."""
        if active == self.active:
            return
        self.active, self._all_parts = active, None
        for one in self._runs:
            full, state = one.parameter.shape, self._twin.state.pop(one.parameter, {})
            one.parameter = nn.Parameter(one.matrix[:active])
            self._twin.state[one.parameter] = {
                key: value[:active] if isinstance(value, Tensor) and value.shape == full else value
                for key, value in state.items()
            }
        for group, stacked in zip(self._twin.param_groups, self._groups, strict=True):
            group["params"] = [one.parameter for one in stacked]

    def _copy_state(self, one: _StackedRun, optimizer: Optimizer) -> None:
        states = [optimizer.state.get(parameter, {}) for parameter in one.run.parameters]
        if any(states):
            joined = one.run.join(states)
            assert joined is not None
            if self._fused:
                settle_steps_(joined, one.matrix.device, torch.float32)
            self._twin.state[one.parameter] = {
                key: value.expand_as(one.matrix).clone() if isinstance(value, Tensor) and value.ndim else value
                for key, value in joined.items()
            }


def _trained(group: dict[str, Any]) -> list[Tensor]:
    """The parameters of a group with gradients."""
    return [parameter for parameter in group["params"] if parameter.requires_grad]


class StackedCorrection:
    """Applies a strategy's elementwise correction to columns of all clients' rows.

    Clients of different models or kept vectors are corrected separately. Only columns in the turns' ``spans`` change.
    """

    def __init__(self, learner: Learner, turns: Sequence[ClientTurn], weights: StackedWeights) -> None:
        self._learner = learner
        self._turns = turns
        alike: dict[tuple[object, ...], list[int]] = {}
        for row, turn in enumerate(turns):
            kept = sorted(name for name, value in turn.kept.items() if isinstance(value, Weights))
            alike.setdefault((turn.model if turn.model_state else None, *kept), []).append(row)
        self._groups = list(alike.values())
        self._places = weights.places
        self._starts = [matrix.clone() for matrix in weights.matrices]
        self._outside = [_outside(place, turns[0].spans) for place in self._places]
        #: Group and run -> the turn that represents the group.
        self._stand_ins: dict[tuple[int, int], ClientTurn] = {}

    def apply_(self, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Change the gradients of the active rows, [k, P_run] each, in place; their weights are read only."""
        for run, (gradient, present, outside) in enumerate(zip(gradients, weights, self._outside, strict=True)):
            others = [gradient[:, columns].clone() for columns in outside]
            for number, rows in enumerate(self._groups):
                if active := [row for row in rows if row < len(gradient)]:
                    self._correct_(number, run, active, gradient, present)
            for columns, values in zip(outside, others, strict=True):
                gradient[:, columns] = values

    def _correct_(self, group: int, run: int, rows: list[int], gradient: Tensor, present: Tensor) -> None:
        turn, dtype = self._stand_in(group, run, rows), self._places[run].dtype
        if len(rows) == len(gradient):
            self._learner.correct_gradient_(turn, Weights({dtype: gradient}), Weights({dtype: present}))
            return
        chosen = to_device(torch.tensor(rows), gradient.device)
        part = gradient.index_select(0, chosen)
        self._learner.correct_gradient_(turn, Weights({dtype: part}), Weights({dtype: present.index_select(0, chosen)}))
        gradient.index_copy_(0, chosen, part)

    def _stand_in(self, group: int, run: int, rows: list[int]) -> ClientTurn:
        """A turn with the weights of the group's active rows, recreated when the number of these changes."""
        known = self._stand_ins.get((group, run))
        place, turns = self._places[run], [self._turns[row] for row in rows]
        if known is not None and len(known.start.vectors[place.dtype]) == len(rows):
            return known
        kept = {
            name: Weights({place.dtype: torch.stack([turn.kept[name].part(place) for turn in turns])})
            for name, value in turns[0].kept.items()
            if isinstance(value, Weights)
        }
        state = {
            name: Weights({place.dtype: value.part(place)}) if isinstance(value, Weights) else value
            for name, value in turns[0].model_state.items()
        }
        made = replace(turns[0], start=Weights({place.dtype: self._starts[run][rows]}), kept=kept, model_state=state)
        self._stand_ins[group, run] = made
        return made


def _outside(place: Place, spans: Sequence[Span]) -> list[slice]:
    """The columns of a run outside of some spans, as slices relative to its beginning."""
    inside = sorted(
        (max(span.begin, place.begin), min(span.end, place.end))
        for span in spans
        if span.dtype == place.dtype and span.begin < place.end and span.end > place.begin
    )
    found, begin = [], place.begin
    for first, last in inside:
        if first > begin:
            found.append(slice(begin - place.begin, first - place.begin))
        begin = max(begin, last)
    if begin < place.end:
        found.append(slice(begin - place.begin, place.end - place.begin))
    return found
