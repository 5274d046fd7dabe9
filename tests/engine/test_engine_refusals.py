"""What the engine's functions refuse, by the type of the error and the thing at fault."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from lightning_fl import ConfigurationError, TrainingError
from lightning_fl.core.errors import DataError
from lightning_fl.engine.probes.discriminator_inputs import (
    batch_features,
    count_classes,
    discriminator_inputs,
    encode_targets,
    morgan_fingerprints,
    squared_norms,
)
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
Y = torch.zeros(2)
VALUES = torch.tensor([[1.0, 5.0], [3.0, float("nan")]])
NORMS = squared_norms(torch.ones(3, 2))


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
        (
            lambda: FlatModule(nn.Linear(3, 2)).weights.load_state_dict(
                FlatModule(nn.Linear(2, 2)).weights.state_dict() | {"int64": torch.zeros(1)}
            ),
            ConfigurationError,
            "layout",
        ),
        (lambda: LocalParameters(FlatModule(NET), ["heads"]), ConfigurationError, "'heads'.*'head'.*body, head"),
        (lambda: LocalParameters(FlatModule(NET), ["body", "head"]), ConfigurationError, "LocalTraining"),
        # inputs of discriminators
        (lambda: count_classes(torch.tensor([[-1]])), DataError, "class -1"),
        (lambda: encode_targets(torch.tensor([[2], [0]])), ConfigurationError, "num_classes=0"),
        (lambda: encode_targets(torch.tensor([[2], [0]]), num_classes=2), DataError, "num_classes=2"),
        (lambda: encode_targets(VALUES), ConfigurationError, "`mean` and `std`"),
        (lambda: encode_targets(VALUES, mean=torch.zeros(2)), ConfigurationError, "`mean` and `std`"),
        (
            lambda: encode_targets(VALUES, mean=torch.zeros(1), std=torch.ones(1)),
            ConfigurationError,
            "`mean` and `std`",
        ),
        (lambda: discriminator_inputs(torch.ones(3, 2), torch.ones(2, 1), NORMS), DataError, "3 feature .* 2 labels"),
        (lambda: discriminator_inputs(torch.ones(3, 2), torch.ones(3, 1), NORMS * float("nan")), DataError, "nan"),
        (
            lambda: batch_features((torch.zeros(2, 3, dtype=torch.long), Y)),
            DataError,
            r"tuple .*torch.int64 \[2, 3\].*`encoder`",
        ),
        (lambda: batch_features(("text", Y)), DataError, "tuple .*str"),
        (lambda: batch_features({"y": Y}), DataError, "dict .*none"),
        (lambda: batch_features((torch.zeros(2, 3), Y), nn.LSTM(3, 2)), DataError, "encoder .*tuple"),
        (
            lambda: batch_features(Batch.from_data_list([Data(x=torch.zeros(2, 1, dtype=torch.long), y=Y)])),
            DataError,
            "`x`",
        ),
        (
            lambda: batch_features(
                Batch.from_data_list([Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=2)])
            ),
            DataError,
            "`x`",
        ),
        (lambda: morgan_fingerprints(["C"], num_bits=0), ConfigurationError, "num_bits=0"),
        (lambda: morgan_fingerprints(["C"], radius=-1), ConfigurationError, "radius=-1"),
        (lambda: morgan_fingerprints(["C", "C1CC"]), DataError, "molecule 1 .*'C1CC'"),
    ],
)
def test_refusals(call: Callable[[], Any], error: type[Exception], fault: str) -> None:
    with pytest.raises(error, match=fault):
        call()
