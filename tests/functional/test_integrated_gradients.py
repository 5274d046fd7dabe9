"""Integrated gradients against closed forms, completeness, and the messages."""

import torch
from torch import Tensor, nn

from lightning_fl.functional.integrated_gradients import integrated_gradients


def test_of_a_linear_function_they_are_weight_times_change() -> None:
    weight = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    inputs, baseline = torch.tensor([[2.0, 1.0], [-1.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    found = integrated_gradients(lambda x: (weight * x).sum(), inputs, baseline, num_points=1)
    torch.testing.assert_close(found, weight * (inputs - baseline))


def test_a_product_is_shared_between_its_factors() -> None:
    # F = x y from zero: the gradient along the path is a (y, x), its integral (y, x) / 2; each gets x y / 2.
    found = integrated_gradients(torch.prod, torch.tensor([3.0, 4.0]), num_points=2)
    torch.testing.assert_close(found, torch.tensor([6.0, 6.0]))


def test_they_sum_to_the_change_of_the_prediction_and_what_is_not_used_gets_nothing() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    inputs = torch.randn(7, 6, dtype=torch.float64)

    def compute(x: Tensor) -> Tensor:
        return network(x[:, :5]).sum().exp().log1p()

    with torch.no_grad():  # as in a prediction
        found = integrated_gradients(compute, inputs)
        change = compute(inputs) - compute(torch.zeros_like(inputs))
    torch.testing.assert_close(found.sum(), change, rtol=1e-6, atol=1e-6)
    assert not found[:, 5].any()
    assert not found.requires_grad
    assert all(weight.grad is None for weight in network.parameters())
