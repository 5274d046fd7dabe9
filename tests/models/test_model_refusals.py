"""Refusals of models: type of the error, and the option or thing at fault."""

import re
from functools import partial
from inspect import signature
from typing import Literal, Union, get_args, get_origin

import pytest
import small_models
import torch
from small_models import silence
from torch_geometric.data import Batch, Data

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import Count, NonNegative, Positive, Size
from lightning_fl.models import ClassificationModel, MoleculeModel, SurvivalModel, build_network
from lightning_fl.models.base import ProperFraction
from lightning_fl.models.descriptors import DescriptorScale
from lightning_fl.models.encoders import build_encoder
from lightning_fl.models.tasks import infer_task
from lightning_fl.models.training_targets import target_ranges

NAN = float("nan")
BINARY, CLASSES = {"task": "classification"}, {"task": "multiclass"}


molecule_model = partial(small_models.molecule_model, hidden_dim=8, num_layers=1)


def classifier(**options):
    return ClassificationModel(**({"network": "mlp", "in_shape": [1, 6, 5], "num_classes": 3} | options))


def survival(**options):
    return SurvivalModel(**({"in_features": 3} | options))


def network(name, **options):
    shape, classes = options.pop("in_shape", [3, 32, 32]), options.pop("num_classes", 10)
    return build_network(name, shape, classes, **options)


def net(name):
    return lambda **options: network(name, **options)


@pytest.mark.parametrize(
    ("make", "options", "fault"),
    [
        (molecule_model, {"encoder": "fingerprint", "virtual_node": True}, "virtual_node=True"),
        (molecule_model, {"hidden_dim": 18, "encoder": "gat"}, "hidden_dim=18"),
        (molecule_model, {"momentum": 0.9, "optimizer": "adam"}, "momentum=0.9"),
        (molecule_model, {"num_classes": 3}, "num_classes=3"),
        (molecule_model, CLASSES | {"num_classes": 1}, "MoleculeModel.num_classes=1"),
        (molecule_model, {"task": "regression", "class_weights": "balanced"}, "class_weights='balanced'"),
        (molecule_model, CLASSES | {"class_weights": 2.0}, "class_weights=2.0"),
        (molecule_model, BINARY | {"class_weights": 0.0}, "MoleculeModel.class_weights=0.0"),
        (molecule_model, BINARY | {"class_weights": "even"}, "MoleculeModel.class_weights='even'"),
        (molecule_model, {"task": "regression", "min_positives": 5}, "min_positives=5"),
        (molecule_model, {"num_targets": 2, "task_weights": [1.0]}, "task_weights has 1"),
        (molecule_model, {"num_targets": 2, "task_weights": [0.0, 0.0]}, "task_weights=[0.0, 0.0]"),
        (molecule_model, {"task_weights": [1.0, -1.0]}, "MoleculeModel.task_weights[1]=-1.0"),
        (molecule_model, {"num_targets": 2, "class_weights": [1.0]}, "class_weights has 1"),
        (classifier, {"in_shape": [28, 28]}, "in_shape=[28, 28]"),
        (classifier, {"in_shape": [0]}, "ClassificationModel.in_shape[0]=0"),
        (classifier, {"momentum": 0.9, "optimizer": "adam"}, "momentum=0.9"),
        (survival, {"hidden_sizes": [0]}, "SurvivalModel.hidden_sizes[0]=0"),
        (net("cnn6"), {}, "name='cnn6'"),
        (net("cnn5"), {"in_shape": [784]}, "in_shape=[784]"),
        (net("mlp"), {"in_shape": [28, 28]}, "in_shape=[28, 28]"),
        (net("mlp"), {"in_shape": [0]}, "in_shape[0]=0"),
        (net("mlp"), {"in_shape": []}, "in_shape=[]"),
        (net("mlp"), {"num_classes": 1}, "num_classes=1"),
        (net("mlp"), {"channels": [3]}, "channels=[3]"),
        (net("resnet18"), {"channels": [3]}, "channels=[3]"),
        (net("lenet5"), {"channels": [6]}, "channels=[6]"),
        (net("lenet5"), {"channels": [6, 0]}, "channels[1]=0"),
        (net("resnet18"), {"hidden_sizes": [9]}, "hidden_sizes=[9]"),
        (net("mlp"), {"hidden_sizes": [9, 0]}, "hidden_sizes[1]=0"),
        (net("mlp"), {"dropout": 1.0}, "dropout=1.0"),
        (net("cnn5"), {"dropout": -0.1}, "dropout=-0.1"),
        (net("cnn5"), {"stem": "small"}, "stem='small'"),
        (net("resnet18"), {"stem": "large"}, "stem='large'"),
    ],
)
def test_options_are_refused(make, options, fault):
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        make(**options)


OUTSIDE = {Count: 0, Size: -1, Positive: NAN, NonNegative: -1.0, ProperFraction: 1.0}


@pytest.mark.parametrize("make", [molecule_model, classifier, survival])
def test_values_outside_of_their_ranges_are_refused(make):
    kind, tried = type(make()), 0
    for name, one in signature(kind).parameters.items():
        rule = get_args(one.annotation)[0] if get_origin(one.annotation) is Union else one.annotation
        value = "unknown" if get_origin(rule) is Literal else OUTSIDE.get(rule)
        if value is not None and name != "class_weights":
            tried += 1
            with pytest.raises(ConfigurationError, match=f"{kind.__name__}.{name}={value!r}"):
                make(**{name: value})
    assert tried >= 7


def test_a_subclass_keeps_its_own_hyper_parameters():
    class Wider(MoleculeModel):
        def __init__(self, factor: int = 2, **kwargs):
            super().__init__(**kwargs)

    assert Wider(factor=3, node_dim=5, edge_dim=3).hparams["factor"] == 3


# ---- batches


def graphs(count=3, **changes):
    bond = torch.tensor([[0, 1], [1, 0]])
    fields = {"x": torch.zeros(2, 5), "edge_index": bond, "edge_attr": torch.zeros(2, 3), "y": torch.zeros(1, 1)}
    return Batch.from_data_list([Data(**(fields | changes)) for _ in range(count)])


DESCRIBED = {"descriptors": torch.zeros(1, 3)}


@pytest.mark.parametrize(
    ("options", "batch", "faults"),
    [
        *(
            ({"encoder": name, "node_dim": 7}, graphs(), ["node_dim=7", "node_dim=5"])
            for name in ("gcn", "gat", "gin", "gine", "mpnn", "dmpnn", "attentivefp")
        ),
        ({"encoder": "gat", "edge_dim": 8}, graphs(), ["edge_dim=8", "edge_dim=3"]),
        ({"encoder": "mpnn", "edge_dim": 8}, graphs(), ["edge_dim=8", "edge_dim=3"]),
        ({"encoder": "mpnn"}, graphs(edge_attr=None), ["encoder='mpnn'", "none", "'gcn'"]),
        ({"encoder": "mpnn"}, graphs(edge_attr=torch.zeros(6)), ["encoder='mpnn'", "[18]", "'gcn'"]),
        ({"num_targets": 2}, graphs(), ["num_targets=2", "[3, 1]", "[3, 2]"]),
        ({}, graphs(2, **DESCRIBED), ["descriptor_dim=0", "descriptor_dim=3"]),
        ({"descriptor_dim": 3}, graphs(), ["descriptor_dim=3", "[rdkit]"]),
        ({"descriptor_dim": 7}, graphs(2, **DESCRIBED), ["descriptor_dim=7", "[2, 3]", "descriptor_dim=3"]),
    ],
)
def test_batches_of_molecules_are_refused(options, batch, faults):
    with pytest.raises(ConfigurationError) as error:
        silence(molecule_model(**options)).training_step(batch, 0)
    assert [fault for fault in faults if fault not in str(error.value)] == []


def test_molecules_without_bond_features_suit_a_gcn():
    assert molecule_model(encoder="gcn")(graphs(edge_attr=None)).isfinite().all()


@pytest.mark.parametrize(
    ("x", "faults"),
    [
        (torch.zeros(2, 6, 5), ["[6, 5]", "torch.float32"]),
        (torch.zeros(2, 3, 6, 5), ["[3, 6, 5]", "torch.float32"]),
        (torch.zeros(2, 1, 6, 5, dtype=torch.uint8), ["[1, 6, 5]", "torch.uint8", "floating"]),
    ],
)
def test_samples_of_a_classifier_are_refused(x, faults):
    with pytest.raises(ConfigurationError, match=r"in_shape=\[1, 6, 5\]") as error:
        classifier()(x)
    assert [fault for fault in faults if fault not in str(error.value)] == []


@pytest.mark.parametrize(
    ("y", "faults"),
    [
        (torch.zeros(4, 1, dtype=torch.long), ["[4, 1]", "torch.int64", "4 samples"]),
        (torch.zeros(3, dtype=torch.long), ["[3]", "torch.int64", "4 samples"]),
        (torch.zeros(4), ["[4]", "torch.float32", "4 samples"]),
        (torch.tensor([0, 3, 7, 0]), ["num_classes=3", "[3, 7]"]),
        (torch.tensor([0, -1, 0, 0]), ["num_classes=3", "[-1]"]),
    ],
)
@pytest.mark.parametrize("step", ["training_step", "validation_step", "test_step", "on_train_batch_start"])
def test_labels_of_a_classifier_are_refused(y, faults, step):
    with pytest.raises(ConfigurationError) as error:
        getattr(silence(classifier()), step)((torch.zeros(4, 1, 6, 5), y), 0)
    assert [fault for fault in faults if fault not in str(error.value)] == []


@pytest.mark.parametrize(
    ("batch", "fault"),
    [(torch.zeros(2, 3), "a Tensor"), ([torch.zeros(2)] * 3, "a list of 3"), ([torch.zeros(2)], "of 1")],
)
@pytest.mark.parametrize("make", [classifier, survival])
def test_batches_that_are_no_pairs_are_refused(make, batch, fault):
    with pytest.raises(ConfigurationError, match=fault):
        silence(make()).training_step(batch, 0)


def test_a_batch_of_one_is_refused_where_the_network_needs_two():
    model = silence(classifier(network="cnn3", in_shape=[1, 8, 8]))
    batch = torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.long)
    with pytest.raises(ConfigurationError, match="network='cnn3'.*batch_size"):
        model.training_step(batch, 0)
    model.eval().validation_step(batch, 0)


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        ([torch.zeros(2, 3), torch.zeros(2).long()], r"shape \[2\] .*time and an event"),
        ([torch.zeros(2, 4), torch.ones(2, 2)], r"in_features=3.*\[4\]"),
        ([torch.zeros(2, 3), torch.tensor([[1.0, 2.0], [1.0, 1.0]])], "events"),
        ([torch.zeros(2, 3), torch.tensor([[-1.0, 1.0], [1.0, 1.0]])], "times"),
    ],
)
def test_batches_of_a_survival_model_are_refused(batch, fault):
    with pytest.raises(ConfigurationError, match=fault):
        survival().training_step(batch, 0)


# ---- targets


@pytest.mark.parametrize(
    ("values", "task", "num_classes", "fault"),
    [
        ([[0.5]], "classification", None, "task='classification': .* 0.5 and 0.5"),
        ([[2.0]], "classification", None, "task='classification': .*task='multiclass'"),
        ([[0.5]], "multiclass", None, "task='multiclass': .*fractional"),
        ([[-1.0]], "multiclass", None, "task='multiclass': .* -1 and -1"),
        ([[float("inf")]], "multiclass", None, "task='multiclass': .* inf and inf"),
        ([[70000.0]], "multiclass", None, "num_classes=70001"),
        ([[3.0]], "multiclass", 3, "num_classes=3: .*num_classes=4"),
        ([[3.0, NAN]], None, None, r"targets \[1\]"),
        ([[NAN]], "classification", None, r"targets \[0\]"),
    ],
)
def test_targets_are_refused(values, task, num_classes, fault):
    with pytest.raises(DataError, match=fault):
        infer_task(target_ranges(torch.tensor(values)), task, num_classes)


@pytest.mark.parametrize(
    ("call", "kind", "fault"),
    [
        (
            lambda: build_encoder("gan", node_dim=5, edge_dim=3, hidden_dim=8, num_layers=2, dropout=0.0),
            ConfigurationError,
            "encoder='gan'",
        ),
        (
            lambda: DescriptorScale(2, learns=True).set_statistics(torch.zeros(2), torch.tensor([1.0, NAN])),
            DataError,
            "descriptors [1]",
        ),
        (
            lambda: molecule_model().set_target_statistics(torch.zeros(2), torch.ones(2)),
            ConfigurationError,
            "num_targets=1",
        ),
    ],
)
def test_arguments_of_parts_are_refused(call, kind, fault):
    with pytest.raises(kind, match=re.escape(fault)):
        call()
