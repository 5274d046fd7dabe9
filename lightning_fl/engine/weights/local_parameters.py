"""Parameters and buffers that stay with each client, such as personal layers or FedBN's normalisation."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.engine.weights.flat import FlatModule, Span, Weights, copy_spans_


class LocalParameters:
    """The part of a model's flat vectors that is never averaged.

    ``patterns`` are names of parameters, buffers or submodules, with the wildcards ``*`` and ``?``: "encoder.*.bn*".
    """

    def __init__(self, flat: FlatModule, patterns: Sequence[str]) -> None:
        self.patterns = list(patterns)
        spans = flat.spans()
        for pattern in self.patterns:
            if not any(matches(span.name, pattern) for span in spans):
                near = did_you_mean(pattern, {prefix for span in spans for prefix in _prefixes(span.name)})
                layers = ", ".join(sorted({span.name.split(".")[0] for span in spans}))
                hint = f"{near}. The model's layers are {layers}"
                raise ConfigurationError(f"{pattern!r} matches no layer, parameter or buffer{hint}.")
        local = [span for span in spans if any(matches(span.name, pattern) for pattern in self.patterns)]
        # A tied tensor is local under all of its names if it is under one.
        self.places = {(span.dtype, span.begin) for span in local}
        self._spans = [span for span in _distinct(spans) if (span.dtype, span.begin) in self.places]
        if self._spans and len(self._spans) == len(_distinct(spans)):
            names = ", ".join(map(repr, self.patterns))
            raise ConfigurationError(f"{names} match the whole model, nothing is left to share: use LocalTraining.")

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._spans]

    def extract(self, weights: Weights) -> dict[str, Tensor]:
        """A copy of the local part: name -> vector."""
        return {span.name: weights.part(span).cpu().clone() for span in self._spans}

    def insert_(self, weights: Weights, values: dict[str, Tensor]) -> Weights:
        for span in self._spans:
            weights.part(span).copy_(values[span.name])
        return weights

    def copy_(self, weights: Weights, other: Weights) -> Weights:
        return copy_spans_(weights, other, self._spans)

    def same(self, weights: Weights, other: Weights) -> bool:
        return all(torch.equal(weights.part(span), other.part(span)) for span in self._spans)


def shared_bytes(flat: FlatModule, personal: LocalParameters | None, constant: Collection[str] = ()) -> int:
    """Bytes of the shared parameters and buffers, each counted once, without local and ``constant`` ones."""
    varying = (span for span in _distinct(flat.spans()) if span.name not in constant)
    return span_bytes([span for span in varying if _is_shared(span, personal)])


def spans_in(layers: Sequence[str] | None, spans: Sequence[Span], option: str) -> list[Span]:
    """Select the spans in layers, which are names of submodules or parameters with the wildcards ``*`` and ``?``."""
    for pattern in layers or ():
        if not any(matches(span.name, pattern) for span in spans):
            names = ", ".join(dict.fromkeys(span.name.rpartition(".")[0] or span.name for span in spans))
            what = f"{option}: {pattern!r} matches no shared, trained parameter"
            raise ConfigurationError(f"{what}. Choose from {names}, or leave it out for all.")
    return [span for span in spans if layers is None or any(matches(span.name, pattern) for pattern in layers)]


def span_bytes(spans: Sequence[Span]) -> int:
    """Size of some parameters and buffers, in bytes."""
    return sum((span.end - span.begin) * span.dtype.itemsize for span in spans)


def averaged_spans(flat: FlatModule, personal: LocalParameters | None) -> list[Span]:
    """The parameters that clients train and share, without frozen ones and personal layers; a tied one once."""
    trained = (span for span in _distinct(flat.spans()) if span.trainable and span.dtype.is_floating_point)
    return [span for span in trained if _is_shared(span, personal)]


def _is_shared(span: Span, personal: LocalParameters | None) -> bool:
    return personal is None or (span.dtype, span.begin) not in personal.places


def _distinct(spans: Sequence[Span]) -> list[Span]:
    first: dict[tuple[torch.dtype, int, int], Span] = {}
    for span in spans:
        first.setdefault((span.dtype, span.begin, span.end), span)
    return list(first.values())


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a parameter or buffer, or a submodule that contains it."""
    return any(fnmatchcase(prefix, pattern) for prefix in _prefixes(name))
