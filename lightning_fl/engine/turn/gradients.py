"""Gradients of some of a module's parameters as one flat vector."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lightning_fl.engine.weights.flat import FlatModule, Place, Span, Weights, merge_spans

__all__ = ["FlatGradient"]


class FlatGradient:
    """Differentiates losses by some parameters of a module.

    Args:
        module: the module.
        flat: its layout.
        spans: the parameters.
    """

    def __init__(self, module: nn.Module, flat: FlatModule, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._like = flat.weights
        places = [(flat.place(parameter), parameter) for parameter in module.parameters()]
        found = {(place.dtype, place.begin): parameter for place, parameter in places if place is not None}
        self._runs: list[tuple[Place, list[Tensor]]] = []  # with zeros for the gap before each parameter
        self._parameters: list[nn.Parameter] = []
        for run in merge_spans(spans):
            inside = [span for span in spans if span.dtype == run.dtype and run.begin <= span.begin < run.end]
            inside.sort(key=lambda span: span.begin)
            ends = [run.begin, *[span.end for span in inside]]
            vector = flat.weights.vectors[run.dtype]
            gaps = [vector.new_zeros(span.begin - end) for span, end in zip(inside, ends[:-1], strict=True)]
            self._runs.append((run, gaps))
            self._parameters += [found[span.dtype, span.begin] for span in inside]

    def load_(self, weights: Weights) -> None:
        """Load the parameters from some weights."""
        for run, _ in self._runs:
            part = slice(run.begin, run.end)
            self._like.vectors[run.dtype][part] = weights.vectors[run.dtype][part]

    def of(self, losses: Iterable[Tensor], share: float) -> Weights:
        """The gradient of ``share`` times the sum of losses; a new object, zero outside of the parameters.

        Args:
            losses: each with a graph of its own.
            share: factor.
        """
        gradient = Weights({dtype: torch.zeros_like(vector) for dtype, vector in self._like.floating()})
        for loss in losses:
            found = iter(torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True))
            for run, gaps in self._runs:
                pieces = [piece for gap in gaps for piece in (gap, next(found).reshape(-1))]
                gradient.vectors[run.dtype][run.begin : run.end].add_(torch.cat(pieces), alpha=share)
        return gradient
