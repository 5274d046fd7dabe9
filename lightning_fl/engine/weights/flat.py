"""Weights as flat vectors, one per dtype, viewed by the module's own parameters and buffers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_fl.core.errors import TrainingError
from lightning_fl.core.pinned_memory import to_device
from lightning_fl.engine.weights.layout import (
    Entry,
    TensorWatch,
    assign_places,
    check_tensors,
    memory_keys,
    padded_size,
    places_of_layout,
    sizes_of,
    tensors_of,
)


class Weights:
    """A model's weights: a vector [P_dtype] per dtype. Floating ones are averaged, others take the largest entry."""

    def __init__(self, vectors: dict[torch.dtype, Tensor]) -> None:
        # The same order everywhere, since processes exchange one vector after the other.
        self.vectors = dict(sorted(vectors.items(), key=lambda item: str(item[0])))

    def clone(self) -> "Weights":
        return Weights({dtype: vector.clone() for dtype, vector in self.vectors.items()})

    def copy_(self, other: "Weights") -> "Weights":
        for dtype, vector in self.vectors.items():
            vector.copy_(other.vectors[dtype])
        return self

    def to_(self, device: torch.device) -> "Weights":
        self.vectors = {dtype: vector.to(device) for dtype, vector in self.vectors.items()}
        return self

    def part(self, place: "Span | Place") -> Tensor:
        """The entries of a place, as a view."""
        return self.vectors[place.dtype][place.begin : place.end]

    def floating(self) -> Iterator[tuple[torch.dtype, Tensor]]:
        """The vectors that are averaged."""
        return ((dtype, vector) for dtype, vector in self.vectors.items() if dtype.is_floating_point)

    def discrete(self) -> Iterator[tuple[torch.dtype, Tensor]]:
        """The vectors of integers and booleans, such as BatchNorm's counters."""
        return ((dtype, vector) for dtype, vector in self.vectors.items() if not dtype.is_floating_point)

    def equal(self, other: "Weights") -> bool:
        """Whether all entries are equal to the bit."""
        return all(torch.equal(vector, other.vectors[dtype]) for dtype, vector in self.vectors.items())

    @property
    def num_bytes(self) -> int:
        return sum(vector.numel() * vector.element_size() for vector in self.vectors.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Name of the dtype -> vector, for a checkpoint."""
        return {str(dtype).removeprefix("torch."): vector.cpu() for dtype, vector in self.vectors.items()}

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor], device: torch.device) -> "Weights":
        """Weights from a :meth:`state_dict`, copied to a device."""
        there = {getattr(torch, name): (vector, to_device(vector, device)) for name, vector in state.items()}
        return cls({dtype: moved.clone() if moved is vector else moved for dtype, (vector, moved) in there.items()})


@dataclass(frozen=True)
class Span:
    """Location of a parameter or buffer: entries ``begin`` to ``end`` (exclusive) of the vector of its dtype."""

    name: str
    dtype: torch.dtype
    begin: int
    end: int
    trainable: bool


class Place(NamedTuple):
    """Entries ``begin`` to ``end`` (exclusive, including the alignment gap) of the vector of a dtype."""

    dtype: torch.dtype
    begin: int
    end: int


def merge_spans(spans: Sequence[Span]) -> list[Place]:
    """Sorted spans with adjacent ones merged, including the alignment gaps between them."""
    runs: list[Place] = []
    for span in sorted(spans, key=lambda span: (str(span.dtype), span.begin)):
        last = runs[-1] if runs and runs[-1].dtype == span.dtype else None
        if last is not None and span.begin <= last.begin + padded_size(last.end - last.begin, span.dtype):
            runs[-1] = last._replace(end=max(span.end, last.end))
        else:
            runs.append(Place(span.dtype, span.begin, span.end))
    return runs


def linear_combination(base: Weights | None, terms: Sequence[tuple[float, Weights]], spans: Sequence[Span]) -> Weights:
    """``sum_k a_k v_k`` in the entries of some parameters; elsewhere a copy of ``base``, or zero."""
    zeros = {dtype: torch.zeros_like(vector) for dtype, vector in terms[0][1].vectors.items()} if base is None else {}
    result = Weights(zeros) if base is None else base.clone()
    (scale, first), *others = terms
    for place in merge_spans(spans):
        exact = torch.promote_types(place.dtype, torch.float32)  # half precision is rounded once, not after each term
        total = scale * first.part(place).to(exact)
        for factor, other in others:
            total.add_(other.part(place), alpha=factor)
        result.part(place).copy_(total)
    return result


def copy_spans_(weights: Weights, other: Weights, spans: Sequence[Span]) -> Weights:
    """Overwrite the entries of some parameters and buffers with those of other weights."""
    for span in spans:
        weights.part(span).copy_(other.part(span))
    return weights


def inner_product(first: Weights, second: Weights, spans: Sequence[Span]) -> float:
    """The inner product of the entries of some parameters, in double precision."""
    products = [torch.dot(first.part(span).double(), second.part(span).double()) for span in spans]
    return float(torch.stack(products).sum()) if products else 0.0


@dataclass(frozen=True)
class _Slot:
    """A parameter or buffer: the dict and key that hold it, the tensor, and its view of the vector."""

    name: str
    owner: dict[str, Tensor | None]
    key: str
    tensor: Tensor
    view: Tensor
    begin: int
    pointer: int
    stride: tuple[int, ...]

    def holds(self, tensor: Tensor | None) -> bool:
        """Whether a tensor is still the registered one and views the vector. Takes a microsecond."""
        return (
            tensor is self.tensor
            and tensor.data_ptr() == self.pointer
            and tensor.dtype is self.view.dtype
            and tensor.shape == self.view.shape
            and tensor.stride() == self.stride
        )


class FlatModule:
    """A module whose parameters and buffers are views of flat vectors.

    Tied parameters and buffers stay tied, even as different objects that share memory; frozen ones stay frozen. If user
    code replaces a buffer by assignment (``self.ema = ...``), :meth:`collect` copies the new values into the vector.
    The layout of a resumed run, if the module fits it, has room for parameters that it does not have yet.
    """

    def __init__(self, module: nn.Module, layout: Sequence[Entry] = ()) -> None:
        self.module = module
        self.late_names: list[str] = []  # names that :meth:`add_late_parameters` has added
        self._create_views(layout)

    def _create_views(self, layout: Sequence[Entry]) -> None:
        held = list(tensors_of(self.module))
        check_tensors(held)
        keys = memory_keys(held)
        begins, sizes = places_of_layout(held, keys, layout) or assign_places(held, keys)
        self._entries = list(layout) if layout and sizes == sizes_of(layout) else []
        self._places: dict[int, Place] = {}
        device = held[0][3].device if held else torch.device("cpu")
        self.weights = Weights({dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes.items()})
        orders: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
        for _, _, _, tensor in held:
            orders.setdefault(keys[id(tensor)], set()).add((tensor.shape, tensor.stride()))
        self._slots: list[_Slot] = []
        for name, owner, key, tensor in held:
            begin = begins[keys[id(tensor)]]
            self._places[id(tensor)] = Place(tensor.dtype, begin, begin + padded_size(tensor.numel(), tensor.dtype))
            vector = self.weights.vectors[tensor.dtype]
            if len(orders[keys[id(tensor)]]) == 1:
                view = vector[begin : begin + tensor.numel()].view(tensor.shape)
            else:  # the same memory in different shapes or orders
                view = vector.as_strided(tensor.shape, tensor.stride(), begin)
            view.copy_(tensor.detach())
            self._slots.append(_Slot(name, owner, key, tensor, view, begin, view.data_ptr(), view.stride()))
        for slot in self._slots:
            slot.tensor.data = slot.view
        self._watch = TensorWatch(self.module)

    def spans(self) -> list[Span]:
        """Every parameter, then every buffer; a tied one appears under each of its names."""
        return [
            Span(slot.name, slot.view.dtype, slot.begin, slot.begin + slot.view.numel(), slot.tensor.requires_grad)
            for slot in self._slots
        ]

    def buffers(self) -> list[Span]:
        pairs = zip(self.spans(), self._slots, strict=True)
        return [span for span, slot in pairs if not isinstance(slot.tensor, nn.Parameter)]

    def place(self, tensor: Tensor) -> Place | None:
        """The entries of one of the module's parameters or buffers; ``None`` for any other tensor."""
        return self._places.get(id(tensor))

    def load(self, weights: Weights) -> None:
        self.collect()
        self.weights.copy_(weights)

    @contextmanager
    def preserved(self) -> Iterator[Weights]:
        """Context after which the module has its present weights again, of which it yields a copy."""
        present = self.collect().clone()
        try:
            yield present
        finally:
            self.load(present)

    def collect(self) -> Weights:
        """The live vectors, after restoring views that user code replaced; shapes and dtypes must not have changed."""
        for slot in self._slots:
            tensor, view = slot.owner.get(slot.key), slot.view
            if slot.holds(tensor):
                continue
            if tensor is None or tensor.shape != view.shape or not torch.can_cast(tensor.dtype, view.dtype):
                now = "gone" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"
                what = f"'{slot.name}' was {tuple(view.shape)} {view.dtype} and is {now} after training"
                raise TrainingError(f"{what}: register it with its final shape and dtype.")
            if tensor.numel() and (tensor.data_ptr() != view.data_ptr() or tensor.stride() != view.stride()):
                view.copy_(tensor.detach().clone())
                if isinstance(tensor, nn.Parameter):
                    tensor.data = view
                else:  # the assigned tensor may belong to something else, such as a batch
                    slot.tensor.data = view
                    slot.owner[slot.key] = slot.tensor
        return self.weights

    def marks(self) -> list[tuple[int, int, int]]:
        """Identity, address and version of each tensor that the module holds; changes through ``data`` do not show."""
        held = (slot.owner.get(slot.key) for slot in self._slots)
        return [(id(one), one.data_ptr(), one._version) if one is not None else (0, 0, 0) for one in held]

    def differing(self, weights: Weights) -> list[str]:
        """Names of what has other values in the module than in some weights, without restoring replaced views."""
        parts = ((slot, weights.vectors[slot.view.dtype], slot.owner.get(slot.key)) for slot in self._slots)
        return [
            slot.name
            for slot, vector, tensor in parts
            if tensor is None or not _same(tensor, vector.as_strided(slot.view.shape, slot.stride, slot.begin))
        ]

    @property
    def device(self) -> torch.device:
        return next((vector.device for vector in self.weights.vectors.values()), torch.device("cpu"))

    def to(self, device: torch.device) -> None:
        """Move the vectors and everything else that the module holds."""
        self.collect()
        self.weights = Weights({dtype: vector.to(device) for dtype, vector in self.weights.vectors.items()})
        for place, slot in enumerate(self._slots):
            vector, old = self.weights.vectors[slot.view.dtype], slot.view
            view = vector.as_strided(old.shape, old.stride(), old.storage_offset())
            slot.tensor.data = view
            self._slots[place] = replace(slot, view=view, pointer=view.data_ptr())
        self.module.to(device)  # metrics, and gradients

    def restore(self) -> None:
        """Restore the module's own parameters and buffers, discarding any replacement."""
        for slot in self._slots:
            if not slot.holds(slot.owner.get(slot.key)):
                slot.tensor.data = slot.view
                slot.owner[slot.key] = slot.tensor

    def new_tensors(self) -> list[str]:
        """Names of parameters and buffers that were created since the views."""
        return self._watch.new()

    def add_late_parameters(self) -> Callable[[Weights], Weights] | None:
        """Recreate the views, including parameters and buffers created since.

        Returns a function that converts weights to the new layout; ``None`` if the layout already had room.
        """
        self.collect()
        before = {(id(slot.owner), slot.key): slot for slot in self._slots}
        new = self.new_tensors()
        self._create_views(self._entries)
        self.late_names += [name for name in new if name not in self.late_names]
        moved = [(before[key], slot) for slot in self._slots if (key := (id(slot.owner), slot.key)) in before]
        if self._entries:
            return None

        def moved_into_place(weights: Weights) -> Weights:
            result = self.weights.clone()
            for old, slot in moved:
                part = weights.vectors[old.view.dtype][old.begin : old.begin + old.view.numel()]
                result.vectors[slot.view.dtype][slot.begin : slot.begin + slot.view.numel()] = part
            return result

        return moved_into_place

    def layout(self) -> list[Entry]:
        """The layout as plain values, for the constructor."""
        own = [(slot.name, str(slot.view.dtype)[6:], slot.begin, list(slot.view.shape)) for slot in self._slots]
        names = {name for name, *_ in own}
        return own + [entry for entry in self._entries if entry[0] not in names]

    def missing(self) -> list[str]:
        """Names of the resumed run's layout that the module lacks."""
        own = {slot.name for slot in self._slots}
        return [name for name, *_ in self._entries if name not in own]

    def trainable(self) -> list[bool]:
        return [slot.tensor.requires_grad for slot in self._slots]

    def set_trainable(self, names: Mapping[str, bool]) -> dict[str, bool]:
        """Freeze and unfreeze parameters by name; returns the previous flags that differ."""
        before: dict[str, bool] = {}
        for slot in self._slots:
            flag = names.get(slot.name)
            if flag is not None and slot.tensor.requires_grad != flag:
                before[slot.name] = not flag
                slot.tensor.requires_grad_(flag)
        return before

    def undo_trainable(self, before: Sequence[bool]) -> dict[str, bool]:
        """Undo what was frozen (``False``) and unfrozen since :meth:`trainable` returned ``before``, and return it."""
        now = self.trainable()
        if now == before:
            return {}
        changed = {slot.name: flag for slot, flag, old in zip(self._slots, now, before, strict=True) if flag != old}
        self.set_trainable({name: not flag for name, flag in changed.items()})
        return changed


def _same(first: Tensor, second: Tensor) -> bool:
    alike = first.shape == second.shape and first.dtype == second.dtype
    return alike and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
