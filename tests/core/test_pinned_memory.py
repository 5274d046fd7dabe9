import pytest
import torch
from torch import Tensor

from lightning_fl.core.pinned_memory import fetch, to_device


def test_fetched_numbers_are_those_of_each_tensor():
    tensors = [
        torch.tensor(0.1),
        torch.tensor([[1.5, -2.0], [float("inf"), 0.1]], dtype=torch.bfloat16),
        torch.tensor([2**53 - 1, -(2**40)]),  # float32 would lose their last digits
        torch.tensor(True),
        torch.empty(0),
        torch.tensor([0.1], dtype=torch.float64, requires_grad=True),
    ]
    expected = [[float(entry) for entry in tensor.detach().flatten()] for tensor in tensors]
    assert fetch(tensors) == expected
    assert fetch([]) == []


def test_numbers_are_fetched_in_one_go(monkeypatch):
    calls, real = [], Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: calls.append(len(self)) or real(self))
    fetch([torch.ones(3), torch.tensor(2), torch.zeros(2, 2, dtype=torch.float64)])
    assert calls == [8]


def test_a_tensor_that_is_there_is_not_copied():
    tensor = torch.ones(2)
    assert to_device(tensor, torch.device("cpu")) is tensor


@pytest.mark.parametrize(("device", "expected"), [("cuda", ["pinned", ("cuda", True)]), ("meta", [("meta", False)])])
def test_only_copies_to_a_gpu_are_pinned_and_queued(monkeypatch, device, expected):
    asked = []

    def to(self, device, non_blocking=False):
        asked.append((device.type, non_blocking))
        return self

    monkeypatch.setattr(Tensor, "pin_memory", lambda self: asked.append("pinned") or self)
    monkeypatch.setattr(Tensor, "to", to)
    to_device(torch.ones(2), torch.device(device))
    assert asked == expected
