"""Positions of a module's parameters and buffers in flat vectors; shared memory shares its position."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_fl.core.errors import ConfigurationError

# Views start at multiples of 64 bytes, as torch's own allocations do, so that vector kernels keep their speed.
_ALIGNMENT_BYTES = 64

#: A parameter or buffer of a layout: name, name of its dtype, first entry, shape.
Entry = tuple[str, str, int, list[int]]
#: Parameters and buffers: name, the dict that holds it, its key there, the tensor.
Held = Sequence[tuple[str, dict[str, Tensor | None], str, Tensor]]
#: First entry of each memory in the vector of its dtype, and the sizes of the vectors.
Places = tuple[dict[tuple[Any, ...], int], dict[torch.dtype, int]]


def check_tensors(held: Held) -> None:
    """Refuse uninitialised (lazy), complex and sparse tensors."""
    for name, _, _, tensor in held:
        if is_lazy(tensor):
            what = f"parameter '{name}' has no shape yet (a lazy module)"
            raise ConfigurationError(f"{what}: run one batch through the module before fit.")
        if tensor.is_complex() or tensor.layout != torch.strided:
            kind = "complex" if tensor.is_complex() else tensor.layout
            raise ConfigurationError(f"'{name}' is {kind}: only dense real parameters and buffers can be averaged.")


def memory_keys(held: Held) -> dict[int, tuple[Any, ...]]:
    """A tensor's id -> key of its memory, equal for tensors that share it."""
    keys: dict[int, tuple[Any, ...]] = {}
    of_storage: dict[int, dict[tuple[Any, ...], tuple[str, Tensor]]] = {}
    for name, _, _, tensor in held:
        if id(tensor) in keys:
            continue
        if not tensor.numel():
            keys[id(tensor)] = (id(tensor),)
            continue
        storage = tensor.untyped_storage().data_ptr()
        begin = tensor.storage_offset() * tensor.element_size()
        # Dense if it covers its memory once, in any order (such as transposed): then its like has the same strides.
        dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
        key = (storage, begin, tensor.dtype, tensor.numel() if dense else (tensor.shape, tensor.stride()))
        keys[id(tensor)] = key
        of_storage.setdefault(storage, {}).setdefault(key, (name, tensor))
    for parts in of_storage.values():
        if len(parts) > 1:
            _refuse_overlaps(sorted(parts.values(), key=lambda part: part[1].data_ptr()))
    return keys


def _refuse_overlaps(parts: Sequence[tuple[str, Tensor]]) -> None:
    """Refuse parameters that share part of another tensor's memory; buffers, mostly constant, are copied."""
    reached: list[tuple[int, str, Tensor]] = []
    for name, tensor in parts:
        begin, end = tensor.data_ptr(), tensor.data_ptr() + _extent(tensor)
        reached = [one for one in reached if one[0] > begin]
        for _, other, earlier in reached:
            if (isinstance(tensor, nn.Parameter) or isinstance(earlier, nn.Parameter)) and _overlap(tensor, earlier):
                what = f"'{other}' and '{name}' share part of their memory"
                raise ConfigurationError(f"{what}: tie them completely (b.weight = a.weight), or clone one.")
        reached.append((end, name, tensor))


def _extent(tensor: Tensor) -> int:
    """Bytes from the first entry of a tensor to the end of the last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _overlap(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one storage have an entry in common."""

    def entries(tensor: Tensor) -> Tensor:
        places = torch.arange(_extent(tensor) // tensor.element_size())
        used = places.as_strided(tensor.shape, tensor.stride()).flatten() * tensor.element_size() + tensor.data_ptr()
        return used.unsqueeze(1).add(torch.arange(tensor.element_size())).flatten()

    return bool(torch.isin(entries(first), entries(second)).any())


def padded_size(count: int, dtype: torch.dtype) -> int:
    """Entries that a tensor takes including the alignment gap."""
    step = max(1, _ALIGNMENT_BYTES // dtype.itemsize)
    return -(-max(count, 1) // step) * step  # also empty tensors have a place of their own


def assign_places(held: Held, keys: Mapping[int, tuple[Any, ...]]) -> Places:
    """Consecutive positions, and the sizes of the vectors."""
    begins: dict[tuple[Any, ...], int] = {}
    sizes: dict[torch.dtype, int] = {}
    for _, _, _, tensor in held:
        if (key := keys[id(tensor)]) not in begins:
            begins[key] = sizes.get(tensor.dtype, 0)
            sizes[tensor.dtype] = begins[key] + padded_size(tensor.numel(), tensor.dtype)
    return begins, sizes


def places_of_layout(held: Held, keys: Mapping[int, tuple[Any, ...]], layout: Sequence[Entry]) -> Places | None:
    """The positions of a layout; ``None`` if the module does not fit it."""
    entries = {name: (getattr(torch, dtype), begin, tuple(shape)) for name, dtype, begin, shape in layout}
    begins: dict[tuple[Any, ...], int] = {}
    for name, _, _, tensor in held:
        dtype, begin, shape = entries.get(name, (None, 0, ()))
        if dtype is not tensor.dtype or shape != tensor.shape or begins.setdefault(keys[id(tensor)], begin) != begin:
            return None
    return (begins, sizes_of(layout)) if held and layout else None


def sizes_of(layout: Sequence[Entry]) -> dict[torch.dtype, int]:
    """Size of each dtype's vector."""
    sizes: dict[torch.dtype, int] = {}
    for _, name, begin, shape in layout:
        dtype = getattr(torch, name)
        sizes[dtype] = max(sizes.get(dtype, 0), begin + padded_size(prod(shape), dtype))
    return sizes


def tensors_of(module: nn.Module) -> Iterator[tuple[str, dict[str, Tensor | None], str, Tensor]]:
    """Every parameter, then every buffer, with the dict that holds it; a tied one appears once per dict."""
    for kind in ("_parameters", "_buffers"):
        for prefix, submodule in module.named_modules():
            owner = getattr(submodule, kind)
            for key, tensor in owner.items():
                if tensor is not None:
                    yield f"{prefix}.{key}" if prefix else key, owner, key, tensor


class TensorWatch:
    """Finds parameters and buffers that a module creates later, by counts instead of a walk through the module."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._known = {(id(owner), key) for _, owner, key, _ in tensors_of(module)}
        self._count()

    def new(self) -> list[str]:
        if (
            sum(map(len, self._dicts)) == self._number
            and all(tuple(held.values()) == known for held, known in self._children)
            and all(held.get(key) is None for held, key in self._empty)
        ):
            return []
        new = [name for name, owner, key, _ in tensors_of(self._module) if (id(owner), key) not in self._known]
        if not new:  # a module without tensors, such as a metric
            self._count()
        return new

    def _count(self) -> None:
        modules = list(self._module.modules())
        self._dicts = [held for one in modules for held in (one._parameters, one._buffers)]
        self._number = sum(map(len, self._dicts))
        self._children = [(one._modules, tuple(one._modules.values())) for one in modules if one._modules]
        self._empty = [(held, key) for held in self._dicts for key, tensor in held.items() if tensor is None]
