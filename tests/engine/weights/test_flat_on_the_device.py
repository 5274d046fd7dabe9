"""A flat module that moves to a CUDA device of software and back."""

import pytest
import torch
from cuda_standin.device import StandIn
from torch import Tensor, nn

from lightning_fl.engine.weights.flat import FlatModule

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}


def step(module: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, seed: int) -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)).to(device)
    optimizer.zero_grad()
    module(x).square().sum().backward()
    optimizer.step()


def test_it_views_its_vectors_wherever_they_are(cuda_standin: StandIn) -> None:
    module = network()
    flat = FlatModule(module)
    before, parameters, start = state(module), list(module.parameters()), flat.weights.clone()
    for device in (GPU, CPU, GPU, CPU):
        flat.to(device)
        assert {vector.device for vector in flat.weights.vectors.values()} == {device}
        assert {value.device for value in module.state_dict().values()} == {device}
        assert all(now is then for now, then in zip(module.parameters(), parameters, strict=True))
        assert all(torch.equal(value, before[name]) for name, value in state(module).items())
        vector = flat.weights.vectors[torch.float32]
        vector += 1.0
        assert all(torch.equal(value.detach().cpu(), before[name] + 1.0) for name, value in module.named_parameters())
        vector -= 1.0
        flat.load(start)  # adding and taking off one rounds; of the host, to any device
    assert flat.weights.equal(start)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_optimiser_goes_on_from_its_state(kind: str, cuda_standin: StandIn) -> None:
    def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
        if kind == "sgd":
            return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        return torch.optim.Adam(module.parameters(), lr=0.1)

    reference, module = network(), network()
    flat = FlatModule(module)
    expected, own = optimizer_of(reference), optimizer_of(module)
    for seed, device in enumerate((CPU, GPU, GPU, CPU)):
        step(reference, expected, CPU, seed)
        flat.to(device)
        own.load_state_dict(own.state_dict())  # torch puts the state where the parameters are
        step(module, own, device, seed)
        found = state(module)
        assert all(torch.equal(value, found[name]) for name, value in state(reference).items())
