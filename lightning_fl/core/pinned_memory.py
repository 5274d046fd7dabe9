"""From the host to a GPU and back, with as few waits as possible.

A GPU works off what it is given while the host goes on. A plain copy from the host's memory, and every number that the
host asks for, make the host wait until all of that is done: several such waits in a step cost more than the step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["fetch", "to_device"]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; the host does not wait for a copy to a GPU, which is made of pinned memory.

    For what is small or passing: pinned memory is kept for the next copies. A tensor that is there already is itself.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def fetch(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The entries of some tensors as numbers in double precision, with one wait for all that lie on a GPU.

    Args:
        tensors: real ones of any shape, kind of number and device.

    Returns:
        For each its entries in their order.
    """
    places: dict[torch.device, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.device, []).append(place)
    found: list[list[float]] = [[] for _ in tensors]
    for of_device in places.values():
        parts = [tensors[place].detach().double().flatten() for place in of_device]
        numbers, begin = torch.cat(parts).tolist(), 0
        for place, part in zip(of_device, parts, strict=True):
            found[place] = numbers[begin : begin + len(part)]
            begin += len(part)
    return found
