"""The part of a model that stays with a client, and a model that one client alone contributes to."""

import pytest
import torch
from torch import nn

from lightning_fl.core.errors import TrainingError
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.engine.weights.local_parameters import LocalParameters, averaged_spans
from lightning_fl.engine.weights.weighted_sum import SoleContribution, WeightedSum, check_finite


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)
        self.tied = nn.Linear(4, 2)
        self.tied.weight = self.head.weight
        self.body[0].bias.requires_grad_(False)


def filled(flat: FlatModule, start: float):
    weights = flat.weights.clone()
    for vector in weights.vectors.values():
        vector.copy_(torch.arange(vector.numel()).to(vector.dtype) + start)
    return weights


def test_spans_cover_every_entry_once_and_name_it():
    module = Net()
    flat = FlatModule(module)
    spans = {span.name: span for span in flat.spans()}
    assert set(spans) == set(module.state_dict())
    assert spans["tied.weight"].begin == spans["head.weight"].begin
    for name, tensor in module.state_dict().items():
        span = spans[name]
        assert torch.equal(flat.weights.vectors[span.dtype][span.begin : span.end], tensor.flatten())
    assert [span.name for span in averaged_spans(flat, None)] == [
        "body.0.weight",
        "body.1.weight",
        "body.1.bias",
        "head.weight",
        "head.bias",
        "tied.bias",
    ]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["head"], {"head.weight", "head.bias"}),
        (["tied"], {"head.weight", "tied.bias"}),  # one tensor under two names
        (["*.bias"], {"body.0.bias", "body.1.bias", "head.bias", "tied.bias"}),
        (
            ["body.1", "head.bias"],
            {f"body.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")}
            | {"head.bias", "body.1.num_batches_tracked"},
        ),
        (["body.?.running_*"], {"body.1.running_mean", "body.1.running_var"}),
    ],
)
def test_patterns_name_layers(patterns, names):
    assert set(LocalParameters(FlatModule(Net()), patterns).names) == names


def test_extract_and_insert_touch_the_local_part_alone():
    flat = FlatModule(Net())
    local = LocalParameters(flat, ["head", "body.1"])
    mine, theirs = filled(flat, 0.0), filled(flat, 1000.0)
    mixed = local.insert_(theirs.clone(), local.extract(mine))
    copied = local.copy_(theirs.clone(), mine)
    assert mixed.equal(copied)
    inside = {span.name: span for span in flat.spans() if span.name in local.names}
    for span in flat.spans():
        source = mine if any((s.dtype, s.begin) == (span.dtype, span.begin) for s in inside.values()) else theirs
        part = slice(span.begin, span.end)
        assert torch.equal(mixed.vectors[span.dtype][part], source.vectors[span.dtype][part]), span.name
    extracted = local.extract(mine)
    mine.vectors[torch.float32].zero_()
    assert float(extracted["head.weight"].abs().sum()) > 0  # a copy
    shared = [span.name for span in averaged_spans(flat, local)]
    assert shared == ["body.0.weight", "tied.bias"]


def test_a_sole_contribution_is_the_weights_to_the_last_bit():
    flat = FlatModule(nn.Linear(5, 3))
    reference, weights = flat.weights.clone(), flat.weights.clone()
    weights.vectors[torch.float32].copy_(torch.randn(weights.vectors[torch.float32].shape) * 1e-7)
    sole, total = SoleContribution(0, reference), WeightedSum(reference)
    for add in (sole, total):
        add.add_all_([(weights, 0.25)])
    assert sole.value(0.25).equal(weights)
    difference = (total.value(0.25).vectors[torch.float32] - weights.vectors[torch.float32]).abs().max()
    assert 0 < difference < 2.0**-40  # what the exception is for
    weights.vectors[torch.float32].zero_()
    assert not sole.value(0.25).equal(weights)  # a copy


def test_the_vectors_of_different_types_come_in_one_order_wherever_weights_come_from():
    flat = FlatModule(Net())
    total = WeightedSum(flat.weights.clone())
    total.add_(flat.weights, 1.0)
    restored = type(flat.weights).from_state_dict(flat.weights.state_dict(), torch.device("cpu"))
    orders = [list(weights.vectors) for weights in (flat.weights, flat.weights.clone(), total.value(1.0), restored)]
    assert len(orders[0]) == 2
    assert all(order == orders[0] for order in orders)


def test_infinities_that_were_there_before_are_no_divergence():
    flat = FlatModule(nn.Linear(2, 1))
    reference, weights = flat.weights.clone(), flat.weights.clone()
    reference.vectors[torch.float32][0] = weights.vectors[torch.float32][0] = -torch.inf
    check_finite(weights, reference)
    weights.vectors[torch.float32][1] = torch.nan
    with pytest.raises(TrainingError, match="not finite"):
        check_finite(weights, reference)
    with pytest.raises(TrainingError, match="not finite"):
        SoleContribution(0, reference).add_all_([(weights, 1.0)])


def test_an_empty_parameter_does_not_stand_for_the_next_one() -> None:
    module = nn.ModuleDict({"extra": nn.Linear(3, 0), "shared": nn.Linear(3, 1)})
    assert list(LocalParameters(FlatModule(module), ["extra"]).names) == ["extra.weight", "extra.bias"]
