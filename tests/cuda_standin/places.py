"""Which tensors lie on the stand-in's device, and which line of the package asked for something."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lightning_fl

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
REAL_DEVICE = torch._C.TensorBase.device

_PACKAGE = str(Path(lightning_fl.__file__).parent)
_TESTS = str(Path(__file__).parents[1])
_HERE = str(Path(__file__).parent)
_TAG = "_on_the_stand_in"
_PINNED = "_pinned_for_the_stand_in"


@contextmanager
def unwatched() -> Iterator[None]:
    """No operation of these lines is seen by any mode."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def storage_of(tensor: Tensor) -> Any:
    """The storage of a strided tensor, of a sparse one's values, or of what vmap and grad wrap; None for others."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # in less time than ``unwatched``
        functorch = torch._C._functorch
        while functorch.is_functorch_wrapped_tensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        layout = tensor.layout
        if layout == torch.sparse_coo:
            tensor = tensor._values()
        elif layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
            tensor = tensor.values()
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # of no memory, as in torch's own fake tensors
            return None


def device_of(tensor: Tensor) -> torch.device:
    """Where a tensor lies."""
    return device_in(tensor, storage_of(tensor))


def device_in(tensor: Tensor, storage: Any) -> torch.device:
    """Where a tensor of this storage lies."""
    if getattr(storage, _TAG, False):
        return CUDA
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return REAL_DEVICE.__get__(tensor)


def is_cuda(tensor: Tensor) -> bool:
    """Whether it lies on the stand-in's device."""
    return device_of(tensor).type == "cuda"


def place(tensor: Tensor, device: torch.device) -> Tensor:
    """Say where a tensor's memory lies."""
    storage = storage_of(tensor)
    if storage is not None:
        setattr(storage, _TAG, device.type == "cuda")
    return tensor


def pin(tensor: Tensor) -> Tensor:
    """Say that a tensor's memory is locked, so that copies of it to the device need not wait."""
    setattr(storage_of(tensor), _PINNED, True)
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """Whether its memory is locked."""
    return bool(getattr(storage_of(tensor), _PINNED, False))


def asking_line() -> str:
    """The innermost line of the package that runs now, else of the tests: ``engine/batches/packs.py:120``."""
    frame, test = sys._getframe(1), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            return f"{name.removeprefix(_PACKAGE + '/')}:{frame.f_lineno}"
        if not test and name.startswith(_TESTS) and not name.startswith(_HERE):
            test = f"tests/{name.removeprefix(_TESTS + '/')}:{frame.f_lineno}"
        frame = frame.f_back
    return test or "elsewhere"
