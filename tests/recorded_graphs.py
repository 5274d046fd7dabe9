"""A stand-in for CUDA graphs on the CPU: a capture notes every operation, a replay does them again.

A replay works on the very tensors of the capture and writes its results into the memory of those of the capture, as a
GPU does. While it is captured nothing is computed that counts: afterwards memory from before has its old content, what
the capture made is filled with NaN, and draws are as they were. So a value that did not come through fixed memory, or
that was taken at the capture, shows as a wrong result.
"""

from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from lightning_fl.engine.turn import capturable


class RecordedGraph:
    """Stands for ``torch.cuda.CUDAGraph``."""

    made: list["RecordedGraph"] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.replays = 0
        RecordedGraph.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                again = func(*args, **kwargs)
                inputs = {_memory(one) for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)}
                for old, new in zip(tree_iter(result), tree_iter(again), strict=True):
                    if isinstance(old, Tensor) and _memory(old) not in inputs:  # a view needs no copy
                        old.copy_(new)


class _Capture(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self._graph = graph
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name == "aten::_local_scalar_dense":
            raise RuntimeError("operation not permitted when stream is capturing")
        for one in tree_iter((args, kwargs)):
            if isinstance(one, Tensor) and _memory(one) not in self._own:
                whole = torch.empty(0, dtype=torch.uint8).set_(one.untyped_storage())
                self._before.setdefault(_memory(one), (whole, whole.clone()))
        result = func(*args, **kwargs)
        known = {_memory(one) for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)}
        self._own |= {_memory(one) for one in tree_iter(result) if isinstance(one, Tensor)} - known
        self._graph.calls.append((func, *tree_map(_detached, (args, kwargs, result))))
        return result

    def undo(self) -> None:
        for whole, content in self._before.values():
            whole.copy_(content)
        for _, _, _, result in self._graph.calls:
            for one in tree_iter(result):
                if isinstance(one, Tensor) and _memory(one) in self._own and one.is_floating_point():
                    one.fill_(float("nan"))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


@contextmanager
def record(graph: RecordedGraph, pool: Any = None) -> Any:
    """Stands for ``torch.cuda.graph``."""
    draws = torch.get_rng_state()
    with _Capture(graph) as capture:
        yield
    with torch.no_grad():
        capture.undo()
    torch.set_rng_state(draws)


class _Stream:
    def wait_stream(self, other: "_Stream") -> None:
        """There is one stream."""


@pytest.fixture
def recorded_graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Steps are captured on the CPU; the graphs that were made."""
    monkeypatch.setattr(RecordedGraph, "made", [])
    monkeypatch.setattr(capturable, "DEVICES", frozenset({"cuda", "cpu"}))
    for name, stand_in in {
        "CUDAGraph": RecordedGraph,
        "graph": record,
        "graph_pool_handle": object,
        "Stream": lambda device: _Stream(),
        "current_stream": lambda device: _Stream(),
        "stream": lambda stream: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return RecordedGraph.made
