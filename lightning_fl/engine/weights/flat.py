"""Weights as flat vectors: one per dtype, viewed by the module's own parameters and buffers.

Loading, saving and averaging a model are then single vector operations, whatever the module looks like.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_fl.errors import ConfigurationError, TrainingError

__all__ = [
    "FlatModule",
    "Place",
    "SoleContribution",
    "Span",
    "Weights",
    "check_finite",
    "combined",
    "inner_product",
    "largest_magnitude",
]

# Views start at multiples of 64 bytes, as torch's own allocations do, so that vector kernels keep their speed.
_ALIGNMENT_BYTES = 64


class Weights:
    """A model's weights: one flat vector per dtype. Floating vectors are averaged, the others follow the largest.

    Args:
        vectors: dtype -> vector of shape [P_dtype], on one device.
    """

    def __init__(self, vectors: dict[torch.dtype, Tensor]) -> None:
        # In one order everywhere, since processes exchange vector after vector.
        self.vectors = dict(sorted(vectors.items(), key=lambda item: str(item[0])))

    def clone(self) -> "Weights":
        """A copy that shares no memory."""
        return Weights({dtype: vector.clone() for dtype, vector in self.vectors.items()})

    def copy_(self, other: "Weights") -> "Weights":
        """Overwrite with another model's weights of the same layout."""
        for dtype, vector in self.vectors.items():
            vector.copy_(other.vectors[dtype])
        return self

    def floating(self) -> Iterator[tuple[torch.dtype, Tensor]]:
        """The vectors that are averaged."""
        return ((dtype, vector) for dtype, vector in self.vectors.items() if dtype.is_floating_point)

    def discrete(self) -> Iterator[tuple[torch.dtype, Tensor]]:
        """The vectors of integers and booleans, such as BatchNorm's counters."""
        return ((dtype, vector) for dtype, vector in self.vectors.items() if not dtype.is_floating_point)

    def equal(self, other: "Weights") -> bool:
        """Whether every bit that counts is the same."""
        return all(torch.equal(vector, other.vectors[dtype]) for dtype, vector in self.vectors.items())

    @property
    def num_bytes(self) -> int:
        """Size of the vectors in bytes."""
        return sum(vector.numel() * vector.element_size() for vector in self.vectors.values())

    def state_dict(self) -> dict[str, Tensor]:
        """dtype's name -> vector: plain tensors, for a checkpoint."""
        return {str(dtype).removeprefix("torch."): vector.cpu() for dtype, vector in self.vectors.items()}

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor], device: torch.device) -> "Weights":
        """The weights that :meth:`state_dict` came from, as a copy on a device."""
        return cls({getattr(torch, name): vector.to(device, copy=True) for name, vector in state.items()})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Overwrite with what :meth:`state_dict` returned.

        Raises:
            ConfigurationError: if the layout differs (another model).
        """
        own = {str(dtype).removeprefix("torch."): vector for dtype, vector in self.vectors.items()}
        got = {name: tuple(vector.shape) for name, vector in state.items()}
        want = {name: tuple(vector.shape) for name, vector in own.items()}
        if got != want:
            raise ConfigurationError(f"the weights have the layout {got}, this model has {want}: it is another model.")
        for name, vector in own.items():
            vector.copy_(state[name])


@dataclass(frozen=True)
class Span:
    """Where one parameter or buffer lies: entries ``begin`` to ``end`` (exclusive) of the vector of its dtype."""

    name: str
    dtype: torch.dtype
    begin: int
    end: int
    trainable: bool


def combined(base: Weights, terms: Sequence[tuple[float, Weights]], spans: Sequence[Span]) -> Weights:
    """A copy of some weights with ``sum_k a_k v_k`` in place of the entries of some parameters.

    Args:
        base: the weights.
        terms: a_k and v_k, at least one.
        spans: the parameters.
    """
    result = base.clone()
    (scale, first), *others = terms
    for span in spans:
        part = slice(span.begin, span.end)
        total = scale * first.vectors[span.dtype][part]
        for factor, other in others:
            total.add_(other.vectors[span.dtype][part], alpha=factor)
        result.vectors[span.dtype][part] = total
    return result


def inner_product(first: Weights, second: Weights, spans: Sequence[Span]) -> float:
    """The inner product of the entries of some parameters, in double precision."""
    parts = ((span.dtype, slice(span.begin, span.end)) for span in spans)
    products = [torch.dot(*(one.vectors[dtype][part].double() for one in (first, second))) for dtype, part in parts]
    return float(torch.stack(products).sum()) if products else 0.0


class Place(NamedTuple):
    """Entries ``begin`` to ``end`` (exclusive, with the gap to the next) of the vector of a dtype."""

    dtype: torch.dtype
    begin: int
    end: int


@dataclass(frozen=True)
class _Slot:
    """One place that holds a parameter or buffer: its owner's dict and key, the tensor there, its part of a vector."""

    name: str
    owner: dict[str, Tensor | None]
    key: str
    tensor: Tensor
    view: Tensor
    begin: int
    pointer: int
    stride: tuple[int, ...]

    def holds(self, tensor: Tensor | None) -> bool:
        """Whether a tensor is the one that lies there and views the vector, as nearly always: told in a microsecond."""
        return (
            tensor is self.tensor
            and tensor.data_ptr() == self.pointer
            and tensor.dtype is self.view.dtype
            and tensor.shape == self.view.shape
            and tensor.stride() == self.stride
        )


class FlatModule:
    """Lays a module's parameters and buffers out in flat vectors that they view from then on.

    Tied parameters and buffers stay tied, frozen ones stay frozen. A buffer that user code replaces by assignment
    (``self.ema = ...``) is copied back into its place by :meth:`collect`; what was assigned stays as it is.

    Raises:
        ConfigurationError: a parameter is uninitialised (lazy), complex or sparse.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        held = list(_tensors(module))
        for name, _, _, tensor in held:
            if is_lazy(tensor):
                raise ConfigurationError(
                    f"parameter '{name}' has no shape yet (a lazy module): run one batch through the module before"
                    " fit, so that every parameter exists."
                )
            if tensor.is_complex() or tensor.layout != torch.strided:
                raise ConfigurationError(
                    f"'{name}' is {'complex' if tensor.is_complex() else tensor.layout}: only dense real tensors can be"
                    " averaged; hold it as a real tensor, or outside the module's parameters and buffers."
                )
        sizes: dict[torch.dtype, int] = {}
        offsets: dict[int, int] = {}  # by the tensor's id: a tied one has one place in the vector
        self._places: dict[int, Place] = {}
        for _, _, _, tensor in held:
            if id(tensor) not in offsets:
                offsets[id(tensor)] = offset = sizes.get(tensor.dtype, 0)
                step = max(1, _ALIGNMENT_BYTES // tensor.element_size())
                sizes[tensor.dtype] = end = offset + -(-tensor.numel() // step) * step
                self._places[id(tensor)] = Place(tensor.dtype, offset, end)
        device = held[0][3].device if held else torch.device("cpu")
        self.weights = Weights({dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes.items()})
        self._slots: list[_Slot] = []
        for name, owner, key, tensor in held:
            offset = offsets[id(tensor)]
            view = self.weights.vectors[tensor.dtype][offset : offset + tensor.numel()].view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
            self._slots.append(_Slot(name, owner, key, tensor, view, offset, view.data_ptr(), view.stride()))

    def spans(self) -> list[Span]:
        """Every parameter, then every buffer; a tied one under each of its names, at the same place."""
        return [
            Span(slot.name, slot.view.dtype, slot.begin, slot.begin + slot.view.numel(), slot.tensor.requires_grad)
            for slot in self._slots
        ]

    def place(self, tensor: Tensor) -> Place | None:
        """Where one of the module's parameters or buffers lies; ``None`` for any other tensor."""
        return self._places.get(id(tensor))

    def load(self, weights: Weights) -> None:
        """Give the module these weights."""
        self.collect()
        self.weights.copy_(weights)

    def collect(self) -> Weights:
        """The module's present weights (the live vectors, not a copy), after mending views that user code replaced.

        Raises:
            TrainingError: a parameter or buffer was removed, or has another shape or kind of number than before.
        """
        for slot in self._slots:
            tensor, view = slot.owner.get(slot.key), slot.view
            if slot.holds(tensor):
                continue
            if tensor is None or tensor.shape != view.shape or not torch.can_cast(tensor.dtype, view.dtype):
                now = "gone" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"
                raise TrainingError(
                    f"'{slot.name}' was {tuple(view.shape)} {view.dtype} and is {now} after training: a federated model"
                    " keeps its layout. Register it with its final shape and dtype."
                )
            if tensor.numel() and (tensor.data_ptr() != view.data_ptr() or tensor.stride() != view.stride()):
                view.copy_(tensor.detach().clone())
                if isinstance(tensor, nn.Parameter):
                    tensor.data = view
                else:  # what user code assigned may belong to somebody else, such as a batch
                    slot.tensor.data = view
                    slot.owner[slot.key] = slot.tensor
        return self.weights


def _tensors(module: nn.Module) -> Iterator[tuple[str, dict[str, Tensor | None], str, Tensor]]:
    """Every parameter, then every buffer, with the dict that holds it; a tied one once per dict."""
    for kind in ("_parameters", "_buffers"):
        for prefix, submodule in module.named_modules():
            owner = getattr(submodule, kind)
            for key, tensor in owner.items():
                if tensor is not None:
                    yield f"{prefix}.{key}" if prefix else key, owner, key, tensor


def check_finite(weights: Weights, reference: Weights) -> None:
    """Refuse weights with an entry that became NaN or infinite.

    Raises:
        TrainingError: there is one.
    """
    for dtype, vector in weights.floating():
        if largest_magnitude(vector) == inf and not ((vector == reference.vectors[dtype]) | vector.isfinite()).all():
            raise TrainingError(
                "the weights are not finite: training diverges; lower the learning rate or set"
                " trainer.gradient_clip_val."
            )


class _Broadcaster(Protocol):
    def broadcast_bytes_(self, vector: Tensor, src: int) -> None: ...


class SoleContribution:
    """What ``WeightedSum`` computes where a single client contributes: its weights, to the last bit.

    Args:
        rank: the process that hosts the client.
        reference: weights of the same layout, the same on every process.
    """

    def __init__(self, rank: int, reference: Weights) -> None:
        self._rank = rank
        self._reference = reference
        self._weights: Weights | None = None

    def add_(self, weights: Weights, weight: float) -> None:
        """Take the client's weights, whatever its weight.

        Raises:
            TrainingError: an entry is NaN or infinite that was not so before.
        """
        check_finite(weights, self._reference)
        self._weights = weights.clone()

    def add_all_(self, terms: Sequence[tuple[Weights, float]]) -> None:
        """Take the client's weights where it is hosted here: the only term, if there is one."""
        for weights, weight in terms:
            self.add_(weights, weight)

    def reduce_(self, reducer: _Broadcaster) -> None:
        """Hand the weights to all processes."""
        if self._weights is None:
            self._weights = self._reference.clone()
        for vector in self._weights.vectors.values():
            reducer.broadcast_bytes_(vector, self._rank)

    def value(self, total: float) -> Weights:
        """The client's weights."""
        assert self._weights is not None
        return self._weights


def largest_magnitude(vector: Tensor) -> float:
    """``max |v|``; infinity if any entry is infinite or NaN."""
    if not vector.numel():
        return 0.0
    largest = max(abs(float(bound)) for bound in torch.aminmax(vector))
    return largest if largest == largest else inf
