"""Range checks, declared once in the annotations of a constructor's or function's arguments.

Ranges are `annotated-types <https://github.com/annotated-types/annotated-types>`_ metadata, which the recipe's parser
and the reference documentation read as well. NaN is in no range: ``nan < 0`` is false, and so is ``nan >= 0``.
"""

import ast
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, fields
from functools import cache, wraps
from inspect import cleandoc, get_annotations, getsource, signature
from itertools import pairwise
from numbers import Integral, Real
from operator import ge, gt, le, lt
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin

from annotated_types import DocInfo, Ge, GroupedMetadata, Gt, Interval, Le, Lt

from lightning_fl.core.errors import ConfigurationError, cut

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

#: Above it a count means nothing, and torch's sizes overflow.
_MAX_COUNT = 2**31 - 1
_BOUNDS = ((Ge, "ge", "at least", ge), (Gt, "gt", "above", gt), (Le, "le", "at most", le), (Lt, "lt", "below", lt))

Count = Annotated[int, Interval(ge=1, le=_MAX_COUNT)]
Size = Annotated[int, Interval(ge=0, le=_MAX_COUNT)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
Seed = Annotated[int, Interval(ge=0, le=2**64 - 1)]


def checked(function: F) -> F:
    """Check the arguments of a constructor or function against their annotations before it runs.

    Checked are ``Annotated`` numbers and ``Literal`` choices, alone, in a union, or in a list, tuple or dict. ``None``
    passes where the annotation allows it. The error names the class of ``self``, if there is one, and every
    argument outside its range.
    """
    described = signature(function)
    declared = {name: one.annotation for name, one in described.parameters.items() if _rules(one.annotation)}
    method = next(iter(described.parameters), "") == "self"

    @wraps(function)
    def check(*args: Any, **kwargs: Any) -> Any:
        try:
            given = described.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # raises Python's own message
        owner = f"{type(given['self']).__name__}." if method else ""
        _raise(faults_of({name: declared[name] for name in declared if name in given}, given, owner))
        return function(*args, **kwargs)

    return check  # type: ignore[return-value]


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def checked_fields(cls: type[T]) -> type[T]:
    """Make a class's annotated attributes keyword-only arguments of its constructor, which checks and stores them.

    A dataclass with the checks of :func:`checked`, compared by identity; ``__post_init__`` does the rest.
    """
    for name in get_annotations(cls):
        if name not in vars(cls):
            setattr(cls, name, field())  # else a base class's attribute would be the default
    made = dataclass(kw_only=True, eq=False)(cls)
    made.__init__ = checked(made.__init__)  # type: ignore[method-assign]
    return made


def check_fields(record: Any, owner: str = "") -> None:
    """Check a dataclass's fields like :func:`checked`, in ``__post_init__``; ``owner`` precedes names: "trainer."."""
    _raise(faults_of({one.name: one.type for one in fields(record)}, vars(record), owner))


def documented(cls: C) -> C:
    """Append to a dataclass's docstring the ``Args:`` section that the strings below its fields make.

    ``help`` and the help of the command line read that section. The signature shows the type of an ``InitVar`` itself.
    """
    hints = cls.__init__.__annotations__  # type: ignore[misc]
    hints.update({name: hint.type for name, hint in hints.items() if isinstance(hint, InitVar)})
    with suppress(OSError):  # the source is not installed
        (definition,) = ast.parse(textwrap.dedent(getsource(cls))).body
        lines = []
        for one, text in pairwise(definition.body):  # type: ignore[attr-defined]
            if isinstance(one, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                meaning = " ".join(str(text.value.value).split())
                lines.append(f"    {ast.unparse(one.target)}: {meaning}")
        before, mark, after = cleandoc(cls.__doc__ or "").partition("\n\nExample")
        cls.__doc__ = "\n".join([before, "", "Args:", *lines]) + mark + after
    return cls


def number_or_share(name: str, value: float) -> float:
    """Check an option that is a number of clients, or a share of them below 1; returns the value."""
    if value > 1 and not float(value).is_integer():
        raise ConfigurationError(f"{name}={value}: give a number of clients, or a share of them below 1.")
    return value


def number_of(value: float, total: int) -> int:
    """A number of clients from :func:`number_or_share`; at least 1 for a share above 0."""
    return int(value) if value >= 1 or value == 0 else max(1, round(value * total))


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Check a constructor's arguments like :func:`checked`, but from inside.

    For Lightning modules: ``save_hyperparameters`` collects a subclass's arguments through adjacent frames, between
    which the decorator's would be. The values are the constructor's ``locals()``, before other names are bound.
    """
    annotations = {name: one.annotation for name, one in signature(function).parameters.items() if name != "self"}
    _raise(faults_of(annotations, values, f"{type(values['self']).__name__}."))


def faults_of(annotations: Mapping[str, Any], values: Mapping[str, Any], owner: str = "") -> list[str]:
    """A sentence for every value outside the range that its annotation declares; ``owner`` precedes its name."""
    return [f"{owner}{fault}" for name, rule in annotations.items() for fault in _faults(name, values[name], rule)]


def warn_beyond_end(owner: object, max_rounds: int, **options: object) -> None:
    """Warn of options that name a round, or several in a list or dict, after the last one: they have no effect."""
    from lightning.fabric.utilities.rank_zero import rank_zero_warn

    name_of_owner = owner if isinstance(owner, str) else type(owner).__name__
    for name, value in _each(options):
        if isinstance(value, int) and value > max_rounds:
            rank_zero_warn(f"{name_of_owner}.{name}={value} has no effect: the run ends at max_rounds={max_rounds}.")


def _raise(faults: list[str]) -> None:
    if faults:
        raise ConfigurationError(" ".join(faults))


def _rules(annotation: Any) -> bool:
    """Whether an annotation restricts values beyond their type."""
    return get_origin(annotation) in (Annotated, Literal) or any(map(_rules, get_args(annotation)))


def _faults(name: str, value: object, rule: Any) -> Iterator[str]:
    origin = get_origin(rule)
    if origin in (Union, UnionType):
        options = [one for one in get_args(rule) if one is not type(None)]
        if value is None and len(options) < len(get_args(rule)):
            return
        fitting = [one for one in options if _may_be(value, one)]
        found = [list(_faults(name, value, one)) for one in fitting or options]
        if not fitting:  # an alternative of another type finds no fault in the value
            found = [faults for faults in found if faults]
        yield from min(found, key=len, default=[])
    elif origin is Annotated:
        base, *metadata = get_args(rule)
        if base not in (int, float):
            yield from _faults(name, value, base)
        elif (wanted := _number_fault(value, base, metadata)) is not None:
            shown = value if isinstance(value, Real) else repr(value)
            yield f"{name}={cut(shown)}: must be {wanted}."
    elif origin is Literal:
        if value not in get_args(rule):
            yield f"{name}={cut(repr(value))}: choose one of {', '.join(dict.fromkeys(map(str, get_args(rule))))}."
    elif isinstance(value, Mapping) and get_args(rule):
        for key, one in value.items():
            yield from _faults(f"{name}[{key}]", one, get_args(rule)[-1])
    elif isinstance(value, list | tuple) and get_args(rule):
        kinds = [one for one in get_args(rule) if one is not Ellipsis]
        for place, one in enumerate(value):
            yield from _faults(f"{name}[{place}]", one, kinds[min(place, len(kinds) - 1)])


def _may_be(value: object, rule: Any) -> bool:
    """Whether a value has the type of one alternative of a union, whatever its range."""
    base = get_args(rule)[0] if get_origin(rule) is Annotated else rule
    kind = get_origin(base) or base
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return (kind is Literal and isinstance(value, str)) or (isinstance(kind, type) and isinstance(value, kind))


def _number_fault(value: Any, base: type, metadata: list[Any]) -> str | None:
    """What a number must be, if this is not one: "at least 1"."""
    ranges, hint = _ranges(tuple(metadata))
    number = isinstance(value, Integral if base is int else Real) and not isinstance(value, bool)
    number = number and abs(value) <= sys.float_info.max  # not for NaN
    if number and all(inside(value, bound) for _, bound, inside in ranges):
        return None
    wanted = [f"{said} {bound}" for said, bound, _ in ranges if bound != _MAX_COUNT or (number and value > bound)]
    kind = "" if number else "a whole number" if base is int else "a finite number"
    return ", ".join(filter(None, (kind, " and ".join(wanted)))) + hint


@cache
def _ranges(metadata: tuple[Any, ...]) -> tuple[list[tuple[str, Any, Callable[[Any, Any], bool]]], str]:
    """Bounds as (words, bound, comparison), and the hint of an ``annotated_types.doc``."""
    flat = [one for entry in metadata for one in (entry if isinstance(entry, GroupedMetadata) else [entry])]
    found = [
        (words, getattr(one, name), inside)
        for one in flat
        for kind, name, words, inside in _BOUNDS
        if isinstance(one, kind)
    ]
    hint = "".join(f" ({one.documentation})" for one in flat if isinstance(one, DocInfo))
    return found, hint


def _each(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield each value that is not ``None`` with its name, those of a list as ``ratios[0]``."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _each({f"{name}[{key}]": one for key, one in value.items()})
        elif isinstance(value, list | tuple):
            yield from _each({f"{name}[{place}]": one for place, one in enumerate(value)})
        elif value is not None:
            yield name, value
