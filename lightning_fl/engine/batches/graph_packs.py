"""Graphs held in memory as flat tensors, from which batches are gathered and cut."""

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.data import Dataset as GraphDataset
from torch_geometric.data.collate import collate
from torch_geometric.data.storage import N_KEYS
from torch_geometric.utils import is_sparse

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.pinned_memory import to_device
from lightning_fl.engine.batches.packs import Pack


class GraphPack(Pack):
    """Graphs as PyG's ``InMemoryDataset`` stores them; batches equal ``Batch.from_data_list``.

    Several batches are gathered at once and cut apart, so that each costs only a few slices.

    Args:
        data: all graphs concatenated, without increments.
        slices: for every key, the first row of each graph, shape [n + 1].
        num_nodes: nodes per graph, shape [n].
    """

    batches_per_gather = 8

    def __init__(self, data: Data, slices: dict[str, Tensor], num_nodes: Tensor) -> None:
        super().__init__(len(num_nodes))
        self.num_nodes = num_nodes
        self._empty_batch = Batch(_base_cls=Data)  # creating the class for every batch would dominate the cost
        self._explicit_num_nodes = isinstance(getattr(data, "_num_nodes", None), list)
        self._tensors: dict[str, tuple[Tensor, int, bool, str]] = {}  # key -> values, cat_dim, incremented, level
        self._lists: dict[str, Sequence[Any]] = {}
        self._levels: dict[str, tuple[Tensor, Tensor]] = {}  # level -> starts, counts
        for key in slices:
            value = data[key]
            if not isinstance(value, Tensor):
                self._lists[key] = value
                continue
            starts, counts = slices[key][:-1], slices[key].diff()
            cat_dim = data.__cat_dim__(key, value)
            cat_dim = value.ndim - 1 if cat_dim == -1 else cat_dim
            same = (name for name, known in self._levels.items() if all(map(torch.equal, known, (starts, counts))))
            level = next(same, key)
            self._levels.setdefault(level, (starts, counts))
            self._tensors[key] = (value, cat_dim, _is_index(key), level)
        # Most attributes have one row per graph or node, so their counts need no further lookup.
        self._one_each = {level for level, (_, counts) in self._levels.items() if bool((counts == 1).all())}
        self._per_node = {level for level, (_, counts) in self._levels.items() if torch.equal(counts, num_nodes)}
        # The host needs the sizes of batches, and would wait for the GPU otherwise.
        self._nodes_on_host = num_nodes.cpu()
        self._counts_on_host = {level: counts.cpu() for level, (_, counts) in self._levels.items()}

    @property
    def held_on(self) -> torch.device:
        return self.num_nodes.device

    @property
    def num_bytes(self) -> int:
        levels = sum(starts.nbytes + counts.nbytes for starts, counts in self._levels.values())
        return self.num_nodes.nbytes + levels + sum(value.nbytes for value, *_ in self._tensors.values())

    @property
    def targets(self) -> Tensor:
        if "y" not in self._tensors:
            raise ConfigurationError("the graphs have no targets: set their `y`.")
        value, _, _, level = self._tensors["y"]
        if level not in self._one_each:
            raise ConfigurationError("the graphs do not have one row of `y` each: give them `y` of shape [1, T].")
        return value

    def attribute(self, name: str) -> Tensor | None:
        value, cat_dim, _, level = self._tensors.get(name, (None, 0, False, ""))
        if value is None or cat_dim != 0 or level not in self._one_each:
            return None
        return value.index_select(0, self._levels[level][0])

    def gather(
        self, indices: Tensor, sizes: Sequence[int], targets: Tensor | None = None, on_host: Tensor | None = None
    ) -> list[Any]:
        held_on, device = indices.device, self.device
        on_host = indices.cpu() if on_host is None else on_host
        layout, arrived = (_batch_layout(tuple(sizes), where) for where in (held_on, device))
        nodes = self.num_nodes.index_select(0, indices)
        node_ptr = _pointer(nodes)
        node_parts = layout.parts(node_ptr, self._nodes_on_host, on_host)
        node_slices = arrived.slices(to_device(node_ptr, device))
        increments = node_ptr[:-1] - node_ptr.index_select(0, layout.first)  # within the graph's batch
        membership = layout.place.repeat_interleave(nodes, output_size=sum(node_parts))
        memberships = _cut(to_device(membership, device), node_parts, 0)

        level_index: dict[str, Tensor] = {}
        level_counts: dict[str, Tensor] = {}
        level_parts: dict[str, list[int]] = {}
        level_slices: dict[str, Sequence[Tensor]] = {}
        for level, (starts, counts) in self._levels.items():
            if level in self._one_each:
                level_index[level], level_counts[level] = starts.index_select(0, indices), layout.ones
                level_parts[level], level_slices[level] = list(sizes), arrived.unit
                continue
            if level in self._per_node:
                chosen, pointer, parts, slices = nodes, node_ptr, node_parts, node_slices
            else:
                chosen = counts.index_select(0, indices)
                pointer = _pointer(chosen)
                parts = layout.parts(pointer, self._counts_on_host[level], on_host)
                slices = arrived.slices(to_device(pointer, device))
            total = sum(parts)
            first = (starts.index_select(0, indices) - pointer[:-1]).repeat_interleave(chosen, output_size=total)
            level_index[level] = first.add_(torch.arange(total, device=held_on))
            level_counts[level], level_parts[level], level_slices[level] = chosen, parts, slices

        columns: dict[str, Sequence[Tensor]] = {}
        for key, (value, cat_dim, incremented, level) in self._tensors.items():
            if key == "y" and targets is not None:
                columns[key] = _cut(to_device(targets, device), sizes, 0)
                continue
            picked = value.index_select(cat_dim, level_index[level])
            if incremented:
                shape = [1] * picked.ndim
                shape[cat_dim] = -1
                total = sum(level_parts[level])
                picked += increments.repeat_interleave(level_counts[level], output_size=total).view(shape)
            columns[key] = _cut(to_device(picked, device), level_parts[level], cat_dim)

        batches = []
        increments_of = to_device(increments, device).split(list(sizes))
        for b, (begin, end) in enumerate(pairwise(layout.ends)):
            batch = copy.copy(self._empty_batch)
            slice_dict: dict[str, Tensor] = {}
            inc_dict: dict[str, Tensor | None] = {}
            store = batch._store
            for key, parts_of_key in columns.items():
                store[key] = parts_of_key[b]
                _, _, incremented, level = self._tensors[key]
                slice_dict[key] = level_slices[level][b]
                inc_dict[key] = increments_of[b] if incremented else arrived.zeros[b]
            for key, items in self._lists.items():
                store[key] = [items[i] for i in on_host[begin:end].tolist()]
                slice_dict[key], inc_dict[key] = arrived.unit[b], None
            if self._explicit_num_nodes:
                store.num_nodes = node_parts[b]
                store._num_nodes = self._nodes_on_host.index_select(0, on_host[begin:end]).tolist()
            store.batch = memberships[b]
            store.ptr = node_slices[b]
            batch._num_graphs, batch._slice_dict, batch._inc_dict = end - begin, slice_dict, inc_dict
            batches.append(batch)
        return batches

    def to(self, device: torch.device) -> "GraphPack":
        self.num_nodes = self.num_nodes.to(device)
        self._tensors = {key: (value.to(device), *rest) for key, (value, *rest) in self._tensors.items()}  # type: ignore[misc]
        self._levels = {key: (starts.to(device), counts.to(device)) for key, (starts, counts) in self._levels.items()}
        return self


def pack_graphs(dataset: InMemoryDataset | list[Any]) -> Pack | None:
    """Pack a list of PyG ``Data`` or an ``InMemoryDataset`` without transform; ``None`` if that is impossible."""
    if isinstance(dataset, InMemoryDataset):
        return _pack_in_memory(dataset)
    if not all(type(item) is Data for item in dataset):
        return None
    layout = _layout(dataset[0])
    if any(_layout(graph) != layout for graph in dataset):
        return None
    data, slices, _ = collate(Data, dataset, increment=False, add_batch=False)
    return _graph_pack(data, slices, torch.tensor([graph.num_nodes or 0 for graph in dataset]))


def _layout(graph: Data) -> dict[str, Any]:
    """Types and shapes that all graphs must share for their attributes to fit in one tensor each."""
    layout: dict[str, Any] = {}
    for key, value in graph.to_dict().items():
        layout[key] = type(value)
        if isinstance(value, Tensor):
            shape = list(value.shape)
            if shape and not is_sparse(value):
                del shape[graph.__cat_dim__(key, value)]
            layout[key] = (type(value), value.dtype, value.ndim, shape)
        elif isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value):
            layout[key] = (type(value), len(value))
    return layout


def _pack_in_memory(dataset: InMemoryDataset) -> Pack | None:
    """Pack everything in an ``InMemoryDataset`` (or a view of one)."""
    data, slices, kind = dataset._data, dataset.slices, type(dataset)
    if data is None or slices is None or type(data) is not Data or dataset.transform is not None:
        return None
    if kind.get is not InMemoryDataset.get or kind.__getitem__ is not GraphDataset.__getitem__:
        return None  # its samples differ from the stored data
    if isinstance(getattr(data, "_num_nodes", None), list):
        return _graph_pack(data, slices, torch.tensor(data._num_nodes))
    # PyG's order of lookup for the number of nodes.
    held = [key for key in data.keys() if key in slices and isinstance(data[key], Tensor)]  # noqa: SIM118
    key = next((key for key in held if key in N_KEYS), None) or next((key for key in held if "node" in key), None)
    return None if key is None else _graph_pack(data, slices, slices[key].diff())


def _graph_pack(data: Data, slices: dict[str, Any], num_nodes: Tensor) -> Pack | None:
    if not data.can_infer_num_nodes:
        return None
    packable = all(_is_packable(key, data[key], part) for key, part in slices.items())
    return GraphPack(data, slices, num_nodes) if packable else None


def _is_packable(key: str, value: Any, slices: Any) -> bool:
    """Whether an attribute is one dense tensor or a list with one entry per graph."""
    if not isinstance(slices, Tensor) or slices.ndim != 1:
        return False
    if isinstance(value, list):  # unless PyG collates its entries to a tensor
        return not any(is_sparse(part) or isinstance(part, Tensor | int | float | Mapping) for part in value)
    if type(value) is not Tensor or value.layout != torch.strided or value.is_nested:
        return False
    # PyG increments a batch vector by its largest value, and turns a boolean index into numbers.
    return "batch" not in key and not (_is_index(key) and value.dtype == torch.bool)


def _is_index(key: str) -> bool:
    """Whether PyG adds the number of nodes so far to an attribute of this name (``Data.__inc__``)."""
    return "index" in key or key == "face"


class _BatchLayout(NamedTuple):
    """Indices shared by all gathers of n graphs in B batches with the same sizes s.

    ``ends`` and ``cuts`` [B + 1], on the host, are the ends of the batches; ``first`` [n] is the first graph of a
    graph's batch, ``place`` [n] its position there; ``unit`` and ``zeros`` are 0..s and s times 0 for every batch,
    ``ones`` is n times 1; ``borders`` [n + B] are each batch's entries of a pointer, both ends included, and
    ``origins`` the first of the batch for each.
    """

    sizes: tuple[int, ...]
    ends: list[int]
    cuts: Tensor
    first: Tensor
    place: Tensor
    ones: Tensor
    unit: Sequence[Tensor]
    zeros: Sequence[Tensor]
    borders: Tensor
    origins: Tensor

    def parts(self, pointer: Tensor, counts: Tensor, on_host: Tensor) -> list[int]:
        """Length of each batch by a pointer [n + 1] over all graphs, or by the host's counts if it is on a GPU."""
        if pointer.device.type != "cpu":
            pointer = _pointer(counts.index_select(0, on_host))
        return [end - begin for begin, end in pairwise(pointer.index_select(0, self.cuts).tolist())]

    def slices(self, pointer: Tensor) -> Sequence[Tensor]:
        """A pointer [n + 1] over all graphs as one per batch, [s + 1], each from 0."""
        within = pointer.index_select(0, self.borders) - pointer.index_select(0, self.origins)
        return within.split([size + 1 for size in self.sizes])


@lru_cache(maxsize=64)
def _batch_layout(sizes: tuple[int, ...], device: torch.device) -> _BatchLayout:
    ends = [0, *accumulate(sizes)]
    of_batch, longer = torch.tensor(sizes), torch.tensor(sizes) + 1
    starts = torch.tensor(ends[:-1])
    first, origins = starts.repeat_interleave(of_batch), starts.repeat_interleave(longer)
    # Every batch but the first repeats the last border of the one before.
    borders = torch.arange(len(origins)) - torch.arange(len(sizes)).repeat_interleave(longer)
    unit = to_device(borders - origins, device).split(longer.tolist())
    moved = [to_device(one, device) for one in (first, torch.arange(ends[-1]) - first, borders, origins)]
    cuts, (first, place, borders, origins) = torch.tensor(ends), moved
    zeros = torch.zeros_like(first).split(list(sizes))
    return _BatchLayout(sizes, ends, cuts, first, place, torch.ones_like(first), unit, zeros, borders, origins)


def _cut(values: Tensor, parts: Sequence[int], dim: int) -> Sequence[Tensor]:
    """Consecutive parts that share memory with the values; unlike those of ``split`` they can be changed in place."""
    return torch.unsafe_split_with_sizes(values, list(parts), dim)


def _pointer(counts: Tensor) -> Tensor:
    pointer = counts.new_zeros(len(counts) + 1)
    torch.cumsum(counts, 0, out=pointer[1:])
    return pointer
