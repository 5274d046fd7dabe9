"""Every option that is a number, of every class that a recipe can name, refuses what is none, by its own name."""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
import torch
from annotated_types import Gt, Lt, doc
from torch.utils.data import TensorDataset

import lightning_fl
from lightning_fl import callbacks, data, models, strategies
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Size,
    check_fields,
    checked,
    faults_of,
    warn_beyond_end,
)
from lightning_fl.recipe.instantiate import construct

_SAMPLES = TensorDataset(torch.zeros(4, 1), torch.zeros(4))

#: What a class must be given besides the option that is tried.
_GIVEN: dict[str, dict[str, Any]] = {
    "ClassificationModel": {"network": "mlp", "in_shape": [1, 8, 8], "num_classes": 3},
    "ClientArrivals": {"rounds": {}},
    "Dirichlet": {"num_clients": 3, "alpha": 1.0},
    "FLSC": {"num_clusters": 2, "num_best": 1},
    "FeSEM": {"num_clusters": 2},
    "FedSoft": {"num_models": 2, "lam": 0.1},
    "GroupBy": {"column": "group", "num_clients": 2},
    "HFDataset": {"path": "a.parquet", "target": "y", "partitioner": data.IID(num_clients=2)},
    "IFCA": {"num_clusters": 2},
    "IID": {"num_clients": 3},
    "ImageDomains": {"domains": ["mnist", "usps"]},
    "ImageData": {"partitioner": data.IID(num_clients=2)},
    "ImageFolders": {"root": "images", "size": 8},
    "KMeans": {"num_clusters": 2},
    "LabelPermutation": {"permutations": [[0, 1]]},
    "LabelTypes": {"shares": [[1.0]]},
    "Mixture": {"num_clients": 3},
    "MoleculeCSV": {"path": "a.csv", "target_columns": ["y"], "group_column": "group"},
    "MoleculeNet": {"partitioner": data.IID(num_clients=2)},
    "Partitioned": {"data": _SAMPLES, "partitioner": data.IID(num_clients=2)},
    "Pathological": {"num_clients": 3, "classes_per_client": 2},
    "PrivateTargets": {"files": {"a": "a.csv"}, "num_targets": 2},
    "PretrainedWeights": {"path": "a.pt", "freeze": True},
    "Scaffold": {"num_clients": 2},
    "ScaffoldLDA": {"num_clients": 2, "alpha": 1.0},
    "Silos": {"datamodules": [_SAMPLES]},
    "SoftAveraging": {"num_models": 2},
    "SurvivalModel": {"in_features": 3},
    "TableData": {"name": "adult", "partitioner": data.IID(num_clients=2)},
    "TierBidding": {"num_tiers": 2},
}
#: No options of a recipe: records that the package makes itself, and bases.
_NOT_NAMED = {
    *("ClusterSplit", "ClientTurn", "ClientUpdate", "Contribution", "LocalWork", "ModelUpdate", "Phase"),
    "FederatedDataModule",
    *("FederatedStrategy", "ImageCard", "MoleculeCard", "TableCard"),
}
#: Class and option -> values that are fine.
_FINE = {
    ("Rotation", "degrees"): (-1,),
    ("FederatedTrainer", "devices"): (-1, "x"),
    ("PFedGraph", "threshold"): (-1,),
    # of a target a name, too
    **{(f"{name}Figure", "target"): ("x",) for name in ("Calibration", "Parity", "PrecisionRecall", "ROC")},
}
#: In Python one may also give these without the list that they stand in.
_LISTS = {("Silos", "num_samples")}


def _options() -> Iterator[Any]:
    packages: tuple[ModuleType, ...] = (callbacks, data, models, strategies)
    kinds = [getattr(package, name) for package in packages for name in package.__all__]
    for kind in (*kinds, lightning_fl.FederatedTrainer):
        if not inspect.isclass(kind) or inspect.isabstract(kind) or kind.__name__ in _NOT_NAMED:
            continue
        for name, parameter in inspect.signature(kind).parameters.items():
            annotation = str(parameter.annotation)
            if "float" in annotation or "int" in annotation:
                yield pytest.param(kind, name, annotation, id=f"{kind.__name__}.{name}")


def _given(value: object, kind: type, name: str, annotation: str) -> object:
    """The value as the annotation has it, in a list or dict."""
    if annotation.startswith("dict[str"):
        return {"a": value}
    if annotation.startswith("list[list"):
        return [[value]]
    if "float, float, float" in annotation:
        return [value, 0.1, 0.1]
    several = annotation.startswith(("list[", "tuple[", "collections.abc.Sequence["))
    if several and ((kind.__name__, name) in _LISTS or "dict" not in annotation):
        return [value]
    return value


@pytest.mark.parametrize(("kind", "name", "annotation"), _options())
def test_an_option_refuses_what_is_no_number_of_its_range(kind, name, annotation):
    if annotation.startswith("dict[int"):
        return  # of policies, which are objects
    wrong: list[object] = [math.nan, math.inf, -math.inf, -1, "x", 10**400]
    wrong += [] if "float" in annotation else [True, 1.5]
    key = "trainer" if kind is lightning_fl.FederatedTrainer else kind.__name__
    key = "FedCollab.discriminator" if key == "DiscriminatorSettings" else key
    for value in wrong:
        if value in _FINE.get((kind.__name__, name), ()):
            continue
        arguments = {**_GIVEN.get(kind.__name__, {}), name: _given(value, kind, name, annotation)}
        with pytest.raises(ConfigurationError) as refused:
            construct(kind, **arguments)
        assert f"{key}.{name}" in str(refused.value)


@checked
def _checked(
    *,
    count: Count = 1,
    size: Size | None = None,
    share: Fraction = 0.5,
    std: NonNegative = 0.0,
    rate: Positive | Literal["auto"] = "auto",
    ratios: tuple[Fraction, Fraction] | None = None,
    rounds: dict[str, Count | list[Count]] | None = None,
    layers: list[str] | Count = 1,
    mode: Literal["mean", "max"] = "mean",
    open: Annotated[float, Gt(0), Lt(1), doc("such as 0.9")] = 0.5,
    free: float = 0.0,
) -> str:
    """Options of all kinds."""
    return "passed"


class _Owner:
    @checked
    def __init__(self, count: Count, *, std: NonNegative = 0.0) -> None:
        self.given = count, std


@dataclass
class _Record:
    count: Count = 1
    std: NonNegative | None = None

    def __post_init__(self) -> None:
        check_fields(self, "record.")


#: Values out of range, and what of them the message names.
_REFUSED: list[tuple[Callable[..., Any], dict[str, Any], list[str]]] = [
    (_checked, {"count": 0}, ["count=0"]),
    (_checked, {"count": 1.0}, ["count=1.0", "whole"]),
    (_checked, {"count": True}, ["count=True", "whole"]),
    (_checked, {"count": None}, ["count=None"]),
    (_checked, {"count": 2**31}, ["count=2147483648", "2147483647"]),
    (_checked, {"size": -1}, ["size=-1"]),
    (_checked, {"share": 1.5}, ["share=1.5"]),
    (_checked, {"share": -0.1}, ["share=-0.1"]),
    (_checked, {"std": math.nan}, ["std=nan", "finite"]),
    (_checked, {"std": math.inf}, ["std=inf", "finite"]),
    (_checked, {"std": 10**400}, ["std=1000", "..."]),
    (_checked, {"std": "1"}, ["std='1'"]),
    (_checked, {"rate": 0}, ["rate=0"]),
    (_checked, {"rate": "fast"}, ["rate='fast'", "auto"]),
    (_checked, {"ratios": (0.5, 2)}, ["ratios[1]=2"]),
    (_checked, {"rounds": {"a": 1, "b": 0}}, ["rounds[b]=0"]),
    (_checked, {"rounds": {"a": [1, -2]}}, ["rounds[a][1]=-2"]),
    (_checked, {"layers": 0}, ["layers=0"]),
    (_checked, {"mode": "median"}, ["mode='median'", "mean", "max"]),
    (_checked, {"open": 1.0}, ["open=1.0", "such as 0.9"]),
    (_checked, {"open": 0}, ["open=0"]),
    (_checked, {"count": 0, "share": 2, "std": 0}, ["count=0", "share=2"]),
    (_Owner, {"count": 0, "std": -1}, ["_Owner.count=0", "_Owner.std=-1"]),
    (_Record, {"count": 0, "std": -1}, ["record.count=0", "record.std=-1"]),
]


@pytest.mark.parametrize(("function", "arguments", "named"), _REFUSED)
def test_declared_ranges_refuse(function, arguments, named):
    with pytest.raises(ConfigurationError) as refused:
        function(**arguments)
    assert [name for name in named if name not in str(refused.value)] == []
    assert "std=0" not in str(refused.value)  # a value in its range


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"count": 2**31 - 1, "size": 0, "share": 1, "std": 0},
        {"size": None, "ratios": None, "rounds": None},
        {"ratios": (0, 1.0), "rounds": {"a": 1, "b": [1, 2]}, "layers": ["head"]},
        {"rate": 0.1, "mode": "max", "open": 0.5, "free": math.nan},
    ],
)
def test_declared_ranges_let_pass(arguments):
    assert _checked(**arguments) == "passed"
    assert _Owner(2, std=0.5).given == (2, 0.5)
    assert _Record(std=None).count == 1


def test_a_call_with_the_wrong_arguments_is_a_type_error():
    with pytest.raises(TypeError, match="cuont"):
        _checked(cuont=0)
    with pytest.raises(TypeError, match="count"):
        _Owner()  # type: ignore[call-arg]


def test_faults_of_names_every_value_with_its_owner():
    declared = {"rate": Positive, "clients": list[Count]}
    assert list(faults_of(declared, {"rate": 1, "clients": [3]}, "a.")) == []
    rate, client = faults_of(declared, {"rate": 0, "clients": [3, 0]}, "a.")
    assert rate.startswith("a.rate=0:")
    assert client.startswith("a.clients[1]=0:")


class MyMixup(callbacks.LocalMixup):
    pass


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        (
            [callbacks.LocalMixup(), callbacks.LearningCurves(), callbacks.LocalMixup(alpha=0.5)],
            ["trainer.callbacks[0]", "trainer.callbacks[2]", "LocalMixup"],
        ),
        ([callbacks.LabelNoise(), callbacks.LabelNoise()], ["trainer.callbacks[1]", "LabelNoise"]),
        ([callbacks.LocalMixup(), MyMixup()], ["trainer.callbacks[1]", "LocalMixup", "MyMixup"]),
    ],
)
def test_a_callback_twice_is_refused(chosen, named):
    with pytest.raises(ConfigurationError) as refused:
        lightning_fl.FederatedTrainer(callbacks=chosen)
    assert [name for name in named if name not in str(refused.value)] == []
    lightning_fl.FederatedTrainer(callbacks=[callbacks.LabelNoise(clients=[0]), callbacks.LabelNoise(clients=[1])])


def test_rounds_after_the_end_are_warned_of():
    with pytest.warns(UserWarning, match="max_rounds=3") as warned:
        warn_beyond_end("Owner", 3, rounds={"a": 3, "b": 4}, start=5, every=None, late=[1, 9])
    named = ["Owner.rounds[b]=4 ", "Owner.start=5 ", "Owner.late[1]=9 "]
    assert [str(each.message).startswith(name) for each, name in zip(warned, named, strict=True)] == [True] * 3


def test_personal_layers_are_named():
    with pytest.raises(ConfigurationError, match=r"PersonalLayers.layers=\[\]"):
        callbacks.PersonalLayers(layers=[])
