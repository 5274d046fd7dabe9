"""Options of callbacks and strategies are declared with their range, and a value outside of it is refused by name."""

import inspect
import math
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt

from lightning_fl import callbacks, strategies
from lightning_fl.callbacks import BiddingPolicy, Tokens
from lightning_fl.callbacks.collaboration.discriminators.networks import DiscriminatorSettings
from lightning_fl.core.errors import ConfigurationError

#: What a constructor needs besides the option that is tried.
NEEDED: dict[str, dict[str, Any]] = {
    "ClientArrivals": {"rounds": {"0": 2}},
    "FLSC": {"num_clusters": 2, "num_best": 1},
    "FedSoft": {"num_models": 2, "lam": 0.1},
    "PretrainedWeights": {"path": "a.pt", "freeze": True},
    "SoftAveraging": {"num_models": 2},
    "TierBidding": {"num_tiers": 2},
    "PersonalLayers": {"layers": ["head"]},
    "UniformSampling": {"cohort_size": 2},
    **{name: {"num_clusters": 2} for name in ("FeSEM", "IFCA", "KMeans")},
}
KINDS = [
    one
    for room in (callbacks, strategies)
    for one in (getattr(room, name) for name in sorted(room.__all__))
    if inspect.isclass(one)
    and issubclass(one, (callbacks.Callback, strategies.FederatedStrategy, BiddingPolicy, Tokens))
]
#: Declared elsewhere: a property, Fabric's, a choice or a list of names.
ELSEWHERE = ("timeout", "start_method", "layers")


def options(kind: type) -> Iterator[tuple[str, Any]]:
    """Options of a class with their annotations, those of its bases left out."""
    for name, one in inspect.signature(kind).parameters.items():
        if one.kind is not one.VAR_KEYWORD:
            yield name, one.annotation


def numbers(annotation: Any) -> Iterator[tuple[type, list[Any]]]:
    """Each number of an annotation: its type and its bounds."""
    if annotation in (int, float):
        yield annotation, []
    elif get_origin(annotation) is Annotated and get_args(annotation)[0] in (int, float):
        base, *metadata = get_args(annotation)
        yield base, [one for each in metadata for one in (each if isinstance(each, GroupedMetadata) else [each])]
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation)[get_origin(annotation) is dict :]:
            yield from numbers(part)


def outside(annotation: Any) -> Iterator[Any]:
    """Values just outside the range that an annotation declares."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from outside(part)
    elif origin is Literal:
        yield "neither of them"
    elif origin in (list, tuple):
        yield from ([value] for value in outside(get_args(annotation)[0]))
    elif origin is dict:
        yield from ({"0": value} for value in outside(get_args(annotation)[1]))
    elif origin is Annotated:
        for base, bounds in numbers(annotation):
            step = 1 if base is int else 1e-9
            yield from (one.ge - step for one in bounds if isinstance(one, Ge))
            yield from (one.gt for one in bounds if isinstance(one, Gt))
            yield from (one.le + step for one in bounds if isinstance(one, Le) and one.le < 2**31 - 1)
            yield from (one.lt for one in bounds if isinstance(one, Lt))
            yield from () if base is int else (math.nan, math.inf)


CASES = [
    (kind, name, value)
    for kind in (*KINDS, DiscriminatorSettings)
    for name, annotation in options(kind)
    for value in outside(annotation)
    if name not in ELSEWHERE
]


@pytest.mark.parametrize("kind", [one for one in KINDS if ".figures." not in one.__module__])
def test_every_number_has_a_range(kind: type) -> None:
    bare = [name for name, annotation in options(kind) for _, bounds in numbers(annotation) if not bounds]
    assert set(bare) <= {*ELSEWHERE}


def test_there_are_cases() -> None:
    assert len(CASES) > 250


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_value_outside_the_range(kind: type, name: str, value: Any) -> None:
    owner = "FedCollab.discriminator" if kind is DiscriminatorSettings else kind.__name__
    with pytest.raises(ConfigurationError, match=rf"{owner}\.{name}\b.*="):
        kind(**{**NEEDED.get(kind.__name__, {}), name: value})
