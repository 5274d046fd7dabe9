"""Correction of the gradients of several clients at once."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lightning_fl.core.pinned_memory import to_device
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.weights.flat import Place, Span, Weights

__all__ = ["StackedCorrection"]


class StackedCorrection:
    """Applies a strategy's elementwise correction to columns of all clients' rows.

    Clients of different models, or with different kept vectors, are corrected separately.

    Args:
        spans: the shared parameters that are trained; no other column changes.
        places: of the columns, run by run.
        matrices: initial weights of the rows, [n, P_run] each.
    """

    def __init__(
        self,
        learner: Learner,
        turns: Sequence[ClientTurn],
        spans: Sequence[Span],
        places: Sequence[Place],
        matrices: Sequence[Tensor],
    ) -> None:
        self._learner = learner
        self._turns = turns
        alike: dict[tuple[object, ...], list[int]] = {}
        for row, turn in enumerate(turns):
            kept = sorted(name for name, value in turn.kept.items() if isinstance(value, Weights))
            alike.setdefault((turn.model if turn.model_state else None, *kept), []).append(row)
        self._groups = list(alike.values())
        self._places = places
        self._starts = [matrix.clone() for matrix in matrices]
        self._outside = [_outside(place, spans) for place in places]
        #: Group and run -> the turn that represents the group.
        self._stand_ins: dict[tuple[int, int], ClientTurn] = {}

    def apply_(self, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Change the gradients of the first rows, in place.

        Args:
            gradients: [k, P_run] each, of the active rows.
            weights: of the active rows, [k, P_run] each; read only.
        """
        for run, (gradient, present, outside) in enumerate(zip(gradients, weights, self._outside, strict=True)):
            others = [gradient[:, columns].clone() for columns in outside]
            for number, rows in enumerate(self._groups):
                active = [row for row in rows if row < len(gradient)]
                if active:
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
        columns = slice(place.begin, place.end)
        kept = {
            name: Weights({place.dtype: torch.stack([turn.kept[name].vectors[place.dtype][columns] for turn in turns])})
            for name, value in turns[0].kept.items()
            if isinstance(value, Weights)
        }
        state = {
            name: Weights({place.dtype: value.vectors[place.dtype][columns]}) if isinstance(value, Weights) else value
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
