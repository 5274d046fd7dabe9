"""Copies between host and GPU that seldom make the host wait.

A plain copy from the host's memory, and every number read back, make the host wait for the GPU's queue. Several such
waits in a step cost more than the step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, to a GPU through pinned memory and without waiting.

    Use it for small or short-lived tensors: pinned memory is kept for later copies. A tensor already there is returned.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor if tensor.device == device else tensor.to(device)


def fetch(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Read the entries of each real tensor, of any shape, dtype and device, as doubles, with one wait per device."""
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
