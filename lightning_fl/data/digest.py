"""Digests of clients' data, by which a checkpoint detects other data.

For samples in memory the digest covers every value, in the order of the samples, independent of batches. For others
(custom loaders, streams, data sets that read files) it covers only their number, since nothing is read for it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from lightning_fl.data.graphs import is_graph, is_graph_dataset

_LENGTH = 16


def data_digest(data: Any) -> str:
    """The number of samples and, if they are in memory, a hash of their values: "24 samples, 0f343b0931126a20"."""
    if isinstance(data, CombinedLoader):
        return "; ".join(map(data_digest, data.flattened))
    if isinstance(data, Mapping):
        return "; ".join(f"{name}: {data_digest(part)}" for name, part in data.items())
    source = data.dataset if isinstance(data, DataLoader) else data
    length = None if isinstance(source, IterableDataset) else sized_len(source)
    if length is None:
        return "samples of unknown number"
    total = hashlib.sha256()
    known = _add_samples(total, source, None)
    return f"{length} samples{f', {total.hexdigest()[:_LENGTH]}' if known else ''}"


def _add_samples(total: Any, data: Any, indices: Tensor | None) -> bool:
    """Add samples of a data set (``None`` for all) to a hash; return whether they are in memory."""
    if type(data) is Subset:
        own = torch.as_tensor(data.indices, dtype=torch.long)
        own = torch.where(own < 0, own + len(data.dataset), own)  # type: ignore[arg-type]
        return _add_samples(total, data.dataset, own if indices is None else own[indices])
    if isinstance(data, ConcatDataset):
        if indices is None:
            return all(_add_samples(total, part, None) for part in data.datasets)
        starts = [0, *data.cumulative_sizes]
        inside = [(indices >= low) & (indices < high) for low, high in pairwise(starts)]
        return all(
            _add_samples(total, part, indices[mask] - low)
            for part, mask, low in zip(data.datasets, inside, starts, strict=False)
        )
    if is_graph_dataset(data):
        return _add_graphs(total, data, indices)
    if isinstance(data, list | tuple):
        chosen = data if indices is None else [data[index] for index in indices.tolist()]
        return all(_add_value(total, sample) for sample in chosen)
    columns = list(data.tensors) if isinstance(data, TensorDataset) else _columns(data)
    for column in columns:
        _add_array(total, column if indices is None else _rows(column, indices))
    return bool(columns)


def _rows(column: Tensor | np.ndarray, indices: Tensor) -> Tensor | np.ndarray:
    """Some rows of a column; tensors are flattened, which torch copies several times faster."""
    if isinstance(column, np.ndarray):
        return column[indices.numpy()]
    return column.reshape(len(column), -1).index_select(0, indices).reshape(len(indices), *column.shape[1:])


def _columns(data: Any) -> list[Tensor | np.ndarray]:
    """Public tensors and arrays of a custom data set with one row per sample."""
    return [
        value
        for name, value in sorted(getattr(data, "__dict__", {}).items())
        if not name.startswith("_") and _is_array(value) and value.ndim and len(value) == len(data)
    ]


def _add_graphs(total: Any, data: Any, indices: Tensor | None) -> bool:
    """Add graphs of PyG; its data sets hold one tensor for all graphs, and the start of each."""
    store = getattr(data, "_data", None)
    if store is None or data.slices is None:
        return False
    rows = torch.as_tensor(list(data.indices()), dtype=torch.long)
    rows = rows if indices is None else rows[indices]
    for name, begins in sorted(data.slices.items()):
        value = store[name]
        if not isinstance(value, Tensor) or not isinstance(begins, Tensor):
            return False
        lengths = begins[rows + 1] - begins[rows]
        offsets = torch.repeat_interleave(begins[rows] - (lengths.cumsum(0) - lengths), lengths)
        _add_array(total, lengths)
        _add_array(total, value.index_select(store.__cat_dim__(name, value), offsets + torch.arange(len(offsets))))
    return True


def _add_value(total: Any, value: Any) -> bool:
    """Add a sample or a part of it; return whether its type is supported."""
    if _is_array(value):
        _add_array(total, value)
        return True
    if is_graph(value):
        value = value.to_dict()
    if isinstance(value, Mapping):
        total.update(b"{")
        return all(_add_value(total, part) for pair in value.items() for part in pair)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        total.update(b"[")
        return all(_add_value(total, part) for part in value)
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        total.update(repr(value).encode(errors="surrogatepass"))
        return True
    return False


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (isinstance(value, Tensor) and value.layout == torch.strided)


def _add_array(total: Any, values: Tensor | np.ndarray) -> None:
    total.update(f"{values.dtype}{list(values.shape)}".encode())
    if isinstance(values, Tensor):
        total.update(values.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    elif values.dtype == object:
        total.update(repr(values.tolist()).encode(errors="surrogatepass"))
    else:
        total.update(values.tobytes())
