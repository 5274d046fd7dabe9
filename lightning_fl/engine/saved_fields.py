"""Checkpoint form of dataclass fields, derived from their types."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor

from lightning_fl.core.collaboration import Collaboration
from lightning_fl.engine.weights.flat import Weights

_SAVED = "saved"


@dataclass(frozen=True)
class Saved:
    """How a checkpoint keeps a field."""

    #: Key in the checkpoint, or ``a.b`` for entry b of the mapping a; "" for the field's name.
    key: str = ""
    evaluates: bool = False  #: an evaluation that reads the checkpoint restores the field, too
    trains: bool = False  #: only training reads the field: it is reset for an evaluation after a fit
    per_client: bool = False  #: entries of hosted clients, which on private ranks are in the clients' own files
    required: bool = False  #: a file without it is refused; otherwise the field keeps its default
    plain: Any = None  #: type of the saved form, where it is not that of the field
    save: Callable[[Any], Any] | None = None  #: object -> saved form, where :func:`to_plain` does not do it
    #: (object, saved form, flat module, names of clients) -> value, where :func:`from_plain` does not do it.
    load: Callable[[Any, Any, Any, Any], Any] | None = None


def saved(**options: Any) -> dict[str, Any]:
    """Metadata of a field that checkpoints keep; the arguments are those of :class:`Saved`."""
    return {_SAVED: Saved(**options)}


def saved_fields(kind: type) -> Iterator[tuple[Field[Any], str, Saved]]:
    """Field, key in the checkpoint and how it is kept, of the fields of a dataclass that checkpoints keep."""
    for one in fields(kind):
        if (how := one.metadata.get(_SAVED)) is not None:
            yield one, how.key or one.name, how


def get_entry(state: Mapping[str, Any], key: str, default: Any = MISSING) -> Any:
    """The entry ``a`` or ``a.b`` of a mapping."""
    first, _, rest = key.partition(".")
    return get_entry(state.get(first, {}), rest, default) if rest else state.get(first, default)


def set_entry(state: dict[str, Any], key: str, value: Any) -> None:
    """Set the entry ``a`` or ``a.b`` of a mapping."""
    first, _, rest = key.partition(".")
    if rest:
        set_entry(state.setdefault(first, {}), rest, value)
    else:
        state[first] = value


def to_plain(value: Any) -> Any:
    """Plain values and tensors of a field's value."""
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(to_plain, value))
    return value


def from_plain(value: Any, hint: Any, device: torch.device) -> Any:
    """The value of a type that :func:`to_plain` returned."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Weights:
        return Weights.from_state_dict(value, device)
    if hint is Collaboration:
        return Collaboration.from_state_dict(value)
    if is_dataclass(hint):
        return hint(**value)  # type: ignore[operator]
    if origin in (list, set, frozenset):
        return origin(from_plain(part, args[0], device) for part in value)
    if origin is dict:
        return {key: from_plain(part, args[1], device) for key, part in value.items()}
    return value


def fits(value: Any, hint: Any) -> bool:
    """Whether a value, perhaps of a damaged or hostile file, is the saved form of a type; whole numbers are counts."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in args)
    if origin in (list, set, frozenset):
        return isinstance(value, list | tuple) and all(fits(part, args[0]) for part in value)
    if origin is tuple:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(args)
            and all(fits(part, one) for part, one in zip(value, args, strict=True))
        )
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, args[0]) and fits(part, args[1]) for key, part in value.items()
        )
    if origin is Literal:
        return isinstance(value, str)
    if hint is Weights:
        return fits(value, dict[str, Tensor]) and all(
            str(vector.dtype) == f"torch.{name}" and vector.ndim == 1 and not vector.is_complex()
            for name, vector in value.items()
        )
    if hint is Collaboration:
        return (
            fits(value, dict[str, Tensor])
            and "aggregation" in value
            and all(matrix.ndim == 2 and matrix.dtype == torch.float64 for matrix in value.values())
            and ("personalisation" in value or len(value["aggregation"]) == 1)
        )
    if hint is Tensor:
        return (
            isinstance(value, Tensor)
            and value.layout == torch.strided
            and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
        )
    if is_dataclass(hint):
        known = {one.name: one for one in fields(hint)}
        needed = {name for name, one in known.items() if one.default is MISSING and one.default_factory is MISSING}
        return (
            isinstance(value, dict)
            and needed <= value.keys() <= known.keys()
            and all(fits(part, known[name].type) for name, part in value.items())
        )
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return value is None if hint in (None, type(None)) else isinstance(value, hint)
