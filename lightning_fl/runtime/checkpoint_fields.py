"""Entries of a run's checkpoint, and the checks of a file before anything of it is used.

The entries of the federation's state are those of :class:`~lightning_fl.engine.federation.Federation`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_fl.core.errors import CheckpointError
from lightning_fl.engine.client import ClientState
from lightning_fl.engine.federation import FINAL_MODELS, OWN_MODELS, PERSONAL_LAYERS, Federation
from lightning_fl.engine.saved_fields import fits, get_entry, saved_fields, set_entry, to_plain


@dataclass
class _ClientFiles:
    name: str
    token: str


@dataclass
class _Record:
    summary: dict[str, Any] = field(default_factory=dict)
    unwritten: list[dict[str, Any]] = field(default_factory=list)
    num_rows: int = 0


@dataclass
class _Run:
    """Entries of ``NAME.ckpt`` besides the federation's."""

    lightning_fl_version: str
    module: str
    seed: int
    num_clients: int
    callbacks: dict[str, Any]
    lightning_callbacks: dict[str, Any] = field(default_factory=dict)
    layout: list[tuple[str, str, int, list[int]]] = field(default_factory=list)
    client_files: _ClientFiles | None = None
    client_names: list[str] | None = None
    hyper_parameters: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, str] | None = None
    data: dict[int, dict[str, str]] = field(default_factory=dict)
    record: _Record | None = None


@dataclass
class _ClientPart:
    """Entries of ``NAME.client-I.round-R.ckpt``."""

    lightning_fl_version: str
    client: str
    round: int
    token: str
    state: ClientState | None = None
    stores: dict[str, Any] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)


def check_state(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Check and return a checkpoint's content, with the defaults of missing entries. Unknown entries are kept."""
    fresh = Federation()
    entries = _entries(_Run)
    for one, key, how in saved_fields(Federation):
        default = ... if how.save is not None else to_plain(getattr(fresh, one.name))
        entries.append((key, how.plain or one.type, MISSING if how.required else default))
    state = _complete(content, entries, path)
    _check_shapes(state, path)
    return state


def check_client_part(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Content of a client's own file with the defaults of missing entries."""
    return _complete(content, _entries(_ClientPart), path)


def class_path(module: object) -> str:
    """The import path of an object's class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def plain_hyper_parameters(module: object) -> dict[str, Any]:
    """A module's hyper-parameters that are plain values, or lists and dicts of these."""
    return {name: value for name, value in dict(getattr(module, "hparams", {})).items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _entries(kind: type) -> list[tuple[str, Any, Any]]:
    """Key, type and default: ``MISSING`` if a file must have the entry, ``...`` if loading handles its absence."""
    made = [(one, one.default if one.default_factory is MISSING else one.default_factory()) for one in fields(kind)]
    return [(one.name, one.type, default) for one, default in made]


def _complete(content: Mapping[str, Any], entries: Iterable[tuple[str, Any, Any]], path: Path) -> dict[str, Any]:
    state = dict(content)
    for key, hint, default in entries:
        first, _, rest = key.partition(".")
        if rest and not isinstance(state.get(first, {}), dict):
            raise _changed(path, first)
        if (value := get_entry(state, key)) is not MISSING:
            if not fits(value, hint):
                raise _changed(path, first)
        elif default is MISSING:
            version = content.get("lightning_fl_version")
            what = f"{path} has no field {key!r}: made by another lightning-fl version ({version}), or changed"
            raise CheckpointError(f"{what}. Resume with that version, or start a new run.")
        elif default is not ...:
            set_entry(state, key, default)
    return state


def _changed(path: Path, key: str, fault: str = "is of another type") -> CheckpointError:
    remedy = "the file was changed or made by another version. Use another file, or start a new run"
    return CheckpointError(f"{path}: its field {key!r} {fault}: {remedy}.")


def _check_shapes(state: dict[str, Any], path: Path) -> None:
    """Refuse entries that do not fit each other."""
    clients, models, matrices = state["num_clients"], state["models"], state["collaboration"]
    if not clients or not models:
        raise _changed(path, "models" if clients else "num_clients", "is empty")
    for name, shape in {"aggregation": [len(models), clients], "personalisation": [clients, len(models)]}.items():
        if name in matrices and (found := list(matrices[name].shape)) != shape:
            raise _changed(path, "collaboration", f"has {name} of shape {found} in place of {shape}")
    layouts = [{name: tuple(vector.shape) for name, vector in model.items()} for model in models]
    if any(layout != layouts[0] for layout in layouts):
        raise _changed(path, "models", "has weights of several layouts")
    for name, dtype, begin, shape in state["layout"]:
        if dtype not in layouts[0] or begin + prod(shape) > layouts[0][dtype][0]:
            raise _changed(path, "layout", f"puts {name!r} outside of the weights")
    for key, held in (("clients", [state["clients"]]), ("client_stores", list(state["client_stores"].values()))):
        if strange := {client for of in held for client in of if client >= clients}:
            raise _changed(path, key, f"has client {min(strange)} of {clients}, counted from 0")
    for name in (OWN_MODELS, FINAL_MODELS, PERSONAL_LAYERS):
        if not fits(state["client_stores"].get(name, {}), dict[int, dict[str, Tensor]]):
            raise _changed(path, "client_stores", f"has other things than weights in {name!r}")
    about = state["client_files"]
    if about is not None and Path(about["name"]).name != about["name"]:
        raise _changed(path, "client_files", "names a file of another folder")
