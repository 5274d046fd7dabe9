"""What the engine's functions refuse, by the type of the error and the thing at fault."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_alone import make_loop
from tiny import ManualModule, TinyClients
from torch import nn

from lightning_fl import ConfigurationError, TrainingError
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.engine.weights.local_parameters import LocalParameters


def with_tensor(name: str, value: Any) -> nn.Module:
    module = nn.Module()
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)
    return module


def after(change: Callable[[Any], None]) -> Callable[[], None]:
    """Collect the weights of a module whose buffer was changed."""

    def collect() -> None:
        module = nn.Module()
        module.inner = with_tensor("buffer", torch.zeros(2, dtype=torch.int64))
        flat = FlatModule(module)
        change(module.inner)
        flat.collect()

    return collect


NET = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})


@pytest.mark.parametrize(
    ("call", "error", "fault"),
    [
        # weights
        (after(lambda m: setattr(m, "buffer", torch.zeros(3))), TrainingError, "'inner.buffer'"),
        (after(lambda m: setattr(m, "buffer", None)), TrainingError, "'inner.buffer'"),
        (after(lambda m: delattr(m, "buffer")), TrainingError, "'inner.buffer'"),
        (after(lambda m: setattr(m, "buffer", torch.zeros(2))), TrainingError, "'inner.buffer'"),
        (lambda: FlatModule(nn.Sequential(nn.ReLU(), nn.LazyLinear(3))), ConfigurationError, "'1.weight'"),
        (
            lambda: FlatModule(with_tensor("phase", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))),
            ConfigurationError,
            "'phase' is complex",
        ),
        (
            lambda: FlatModule(with_tensor("adjacency", torch.eye(3).to_sparse())),
            ConfigurationError,
            "'adjacency' is torch.sparse_coo",
        ),
        (lambda: LocalParameters(FlatModule(NET), ["heads"]), ConfigurationError, "'heads'.*'head'.*body, head"),
        (lambda: LocalParameters(FlatModule(NET), ["body", "head"]), ConfigurationError, "LocalTraining"),
        # optimisation
        (
            lambda: make_loop(ManualModule(), TinyClients((4,)), scheduler_interval="round"),
            ConfigurationError,
            "trainer.scheduler_interval=round .*ManualModule",
        ),
    ],
)
def test_refusals(call: Callable[[], Any], error: type[Exception], fault: str) -> None:
    with pytest.raises(error, match=fault):
        call()
