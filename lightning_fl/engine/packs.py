"""Data sets held in memory as flat tensors, from which batches are gathered without visiting single samples."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.data import Dataset as GraphDataset
from torch_geometric.data.collate import collate
from torch_geometric.data.storage import N_KEYS
from torch_geometric.utils import is_sparse

from lightning_fl.errors import ConfigurationError

__all__ = ["GraphPack", "Pack", "TensorPack", "pack_dataset"]


class Pack(ABC):
    """A data set as flat tensors on one device, shared by all clients that hold a part of it."""

    #: Batches that are gathered in one go.
    batches_per_gather = 1

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the tensors are."""

    @property
    @abstractmethod
    def targets(self) -> Tensor:
        """Targets of all samples, shape [n, ...]."""

    @abstractmethod
    def gather(self, indices: Tensor, sizes: Sequence[int], targets: Tensor | None = None) -> list[Any]:
        """Batches of ``sizes`` samples: consecutive parts of ``indices``, with other ``targets`` where given."""

    def to(self, device: torch.device) -> "Pack":
        """The same pack, its tensors moved to ``device``."""
        return self


class TensorPack(Pack):
    """A ``TensorDataset``: batches are lists of tensors, as torch's default collation makes them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors[0].shape[0])
        self.tensors = list(tensors)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.tensors[-1].device

    @property
    def targets(self) -> Tensor:
        """The last tensor."""
        return self.tensors[-1]

    def gather(self, indices: Tensor, sizes: Sequence[int], targets: Tensor | None = None) -> list[Any]:
        """Lists of tensors [size, ...]."""
        batches = []
        for part in indices.split(list(sizes)):
            batches.append([tensor.index_select(0, part) for tensor in self.tensors])
        if targets is not None:
            for batch, part in zip(batches, targets.split(list(sizes)), strict=True):
                batch[-1] = part
        return batches

    def to(self, device: torch.device) -> "TensorPack":
        """Move the tensors."""
        self.tensors = [tensor.to(device) for tensor in self.tensors]
        return self


class GraphPack(Pack):
    """Graphs as PyG's ``InMemoryDataset`` stores them; batches equal ``Batch.from_data_list``.

    Several batches are gathered at once and cut apart, so that the cost of a batch is a few slices.

    Args:
        data: all graphs concatenated, without increments.
        slices: for every key, where each graph begins, shape [n + 1].
        num_nodes: nodes per graph, shape [n].
    """

    batches_per_gather = 8

    def __init__(self, data: Data, slices: dict[str, Tensor], num_nodes: Tensor) -> None:
        super().__init__(len(num_nodes))
        self.num_nodes = num_nodes
        self._empty_batch = Batch(_base_cls=Data)  # making the class anew for every batch costs more than its content
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
            cat_dim = value.ndim - 1 if cat_dim == -1 else (cat_dim or 0)
            same = (name for name, known in self._levels.items() if all(map(torch.equal, known, (starts, counts))))
            level = next(same, key)
            self._levels.setdefault(level, (starts, counts))
            self._tensors[key] = (value, cat_dim, _is_index(key), level)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.num_nodes.device

    @property
    def targets(self) -> Tensor:
        """``y``, shape [n, ...].

        Raises:
            ConfigurationError: the graphs have no ``y``, or not one row each.
        """
        if "y" not in self._tensors:
            raise ConfigurationError("the graphs have no targets: set their `y`.")
        value, _, _, level = self._tensors["y"]
        if not (self._levels[level][1] == 1).all():
            raise ConfigurationError(
                "the graphs' `y` are not one row each, so they are not targets of graphs: give every graph a `y` of"
                " shape [1, T] or [1]."
            )
        return value

    def gather(self, indices: Tensor, sizes: Sequence[int], targets: Tensor | None = None) -> list[Any]:
        """``Batch`` objects."""
        graph_ends = [0, *accumulate(sizes)]
        device = indices.device
        nodes = self.num_nodes.index_select(0, indices)
        node_ptr = _pointer(nodes)
        batch_first = torch.repeat_interleave(
            torch.tensor(graph_ends[:-1], device=device), torch.tensor(sizes, device=device)
        )
        increments = node_ptr[:-1] - node_ptr.index_select(0, batch_first)  # within the graph's batch
        position = torch.arange(len(indices), device=device)
        membership = (position - batch_first).repeat_interleave(nodes)

        level_index: dict[str, Tensor | None] = {}
        level_ptr: dict[str, Tensor] = {}
        level_cuts: dict[str, list[int]] = {}
        level_counts: dict[str, Tensor] = {}
        cuts_at = torch.tensor(graph_ends, device=device)
        for level, (starts, counts) in self._levels.items():
            chosen = counts.index_select(0, indices)
            pointer = _pointer(chosen)
            first = starts.index_select(0, indices) - pointer[:-1]
            level_index[level] = torch.arange(int(pointer[-1]), device=device) + first.repeat_interleave(chosen)
            level_ptr[level], level_counts[level] = pointer, chosen
            level_cuts[level] = pointer.index_select(0, cuts_at).tolist()
        node_cuts = node_ptr.index_select(0, cuts_at).tolist()

        columns: dict[str, tuple[Tensor, int, list[int]]] = {}
        for key, (value, cat_dim, incremented, level) in self._tensors.items():
            if key == "y" and targets is not None:
                columns[key] = (targets, 0, graph_ends)
                continue
            index = level_index[level]
            assert index is not None
            picked = value.index_select(cat_dim, index)
            if incremented:
                shape = [1] * picked.ndim
                shape[cat_dim] = -1
                picked += increments.repeat_interleave(level_counts[level]).view(shape)
            columns[key] = (picked, cat_dim, level_cuts[level])

        batches = []
        for b, size in enumerate(sizes):
            batch = copy.copy(self._empty_batch)
            begin, end = graph_ends[b], graph_ends[b + 1]
            slice_dict: dict[str, Tensor] = {}
            inc_dict: dict[str, Tensor | None] = {}
            store = batch._store
            zeros = increments.new_zeros(()).expand(size)
            level_slices = {level: pointer[begin : end + 1] - pointer[begin] for level, pointer in level_ptr.items()}
            for key, (values, cat_dim, cuts) in columns.items():
                store[key] = values.narrow(cat_dim, cuts[b], cuts[b + 1] - cuts[b])
                _, _, incremented, level = self._tensors[key]
                slice_dict[key] = level_slices[level]
                inc_dict[key] = increments[begin:end] if incremented else zeros
            for key, items in self._lists.items():
                store[key] = [items[i] for i in indices[begin:end].tolist()]
                slice_dict[key], inc_dict[key] = torch.arange(size + 1), None
            if self._explicit_num_nodes:
                store.num_nodes = node_cuts[b + 1] - node_cuts[b]
                store._num_nodes = nodes[begin:end].tolist()
            store.batch = membership[node_cuts[b] : node_cuts[b + 1]]
            store.ptr = node_ptr[begin : end + 1] - node_ptr[begin]
            batch._num_graphs, batch._slice_dict, batch._inc_dict = size, slice_dict, inc_dict
            batches.append(batch)
        return batches

    def to(self, device: torch.device) -> "GraphPack":
        """Move the tensors."""
        self.num_nodes = self.num_nodes.to(device)
        self._tensors = {key: (value.to(device), *rest) for key, (value, *rest) in self._tensors.items()}  # type: ignore[misc]
        self._levels = {key: (starts.to(device), counts.to(device)) for key, (starts, counts) in self._levels.items()}
        return self


def pack_dataset(dataset: Dataset | Sequence[Any]) -> Pack | None:
    """The data set as a :class:`Pack`, or ``None`` where its samples must be fetched one by one.

    Packable are a ``TensorDataset``, a list of PyG ``Data``, and an ``InMemoryDataset`` without transform.
    """
    if type(dataset) is TensorDataset:
        return TensorPack(dataset.tensors)
    if isinstance(dataset, InMemoryDataset):
        return _pack_in_memory(dataset)
    if isinstance(dataset, list) and dataset and all(type(item) is Data for item in dataset):
        return _pack_list(dataset)
    return None


def _pack_list(graphs: list[Data]) -> Pack | None:
    layout = _layout(graphs[0])
    if any(_layout(graph) != layout for graph in graphs):
        return None
    data, slices, _ = collate(Data, graphs, increment=False, add_batch=False)
    return _graph_pack(data, slices, torch.tensor([graph.num_nodes or 0 for graph in graphs]))


def _layout(graph: Data) -> dict[str, Any]:
    """What must be the same of all graphs for their attributes to lie in one tensor each."""
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
    """The whole of what an ``InMemoryDataset`` (or a view of one) holds."""
    data, slices, kind = dataset._data, dataset.slices, type(dataset)
    if data is None or slices is None or type(data) is not Data or dataset.transform is not None:
        return None
    if kind.get is not InMemoryDataset.get or kind.__getitem__ is not GraphDataset.__getitem__:
        return None  # its samples are not simply what it holds
    if isinstance(getattr(data, "_num_nodes", None), list):
        return _graph_pack(data, slices, torch.tensor(data._num_nodes))
    # Where PyG looks for the number of nodes, in its order.
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
    if isinstance(value, list):  # unless PyG makes a tensor of its entries in a batch
        return not any(is_sparse(part) or isinstance(part, Tensor | int | float | Mapping) for part in value)
    if type(value) is not Tensor or value.layout != torch.strided or value.is_nested:
        return False
    # PyG increments a batch vector by its largest value, and turns a boolean index into numbers.
    return "batch" not in key and not (_is_index(key) and value.dtype == torch.bool)


def _is_index(key: str) -> bool:
    """Whether PyG adds the number of nodes so far to an attribute of this name (``Data.__inc__``)."""
    return "index" in key or key == "face"


def _pointer(counts: Tensor) -> Tensor:
    pointer = counts.new_zeros(len(counts) + 1)
    torch.cumsum(counts, 0, out=pointer[1:])
    return pointer
