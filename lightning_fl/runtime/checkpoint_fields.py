"""What stands in a run's checkpoint: the name, the kind and, for files of older versions, the default of every field.

One description for every reader: a file that does not fit it is refused with its name and the field's, before anything
of it is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_fl.core.errors import CheckpointError
from lightning_fl.core.metrics import GainSummary, MetricSummary

__all__ = ["FIELDS", "PART_FIELDS", "Field", "completed"]

_REQUIRED: Any = object()


class Field(NamedTuple):
    """A field of a checkpoint.

    Attributes:
        name: its key.
        kind: what it is, in words.
        fits: whether a value is of this kind.
        default: what files without it mean; those without a required one are refused.
    """

    name: str
    kind: str
    fits: Callable[[Any], bool]
    default: Any = _REQUIRED


def completed(content: Mapping[str, Any], description: Sequence[Field], path: Path) -> dict[str, Any]:
    """A checkpoint's content with all of its fields, checked.

    Fields that the description does not name are left as they are.

    Raises:
        CheckpointError: a field is missing or of another kind.
    """
    result = dict(content)
    for field in description:
        if field.name not in result:
            if field.default is _REQUIRED:
                raise CheckpointError(
                    f"{path} has no field {field.name!r} ({field.kind}): it was made by another version of"
                    f" lightning-fl ({content.get('lightning_fl_version')}), or changed. Go on with that version, use"
                    " another checkpoint, or start anew."
                )
            result[field.name] = field.default() if callable(field.default) else field.default
        if not field.fits(result[field.name]):
            raise CheckpointError(
                f"{path}: its field {field.name!r} is not {field.kind}: the file was changed or made by another"
                " version. Use another checkpoint of its folder, or start anew."
            )
    if description is FIELDS:
        _check_shapes(result, path)
    return result


def _check_shapes(state: dict[str, Any], path: Path) -> None:
    """Refuse parts that do not fit each other."""
    clients, models, matrices = state["num_clients"], state["models"], state["collaboration"]
    want = {"aggregation": [len(models), clients], "personalisation": [clients, len(models)]}
    for name, shape in want.items():
        if list(matrices[name].shape) != shape:
            raise CheckpointError(
                f"{path}: its field 'collaboration' has the matrix {name} of shape {list(matrices[name].shape)}, and"
                f" {len(models)} models and {clients} clients ask for {shape}: the file was changed. Use another one."
            )
    layouts = [{name: tuple(vector.shape) for name, vector in model.items()} for model in models]
    if any(layout != layouts[0] for layout in layouts):
        raise CheckpointError(
            f"{path}: its field 'models' has weights of several layouts: the file was changed. Use another one."
        )
    for name, dtype, begin, shape in state["layout"]:
        if dtype not in layouts[0] or begin + prod(shape) > layouts[0][dtype][0]:
            raise CheckpointError(
                f"{path}: its field 'layout' puts {name!r} outside of the weights: the file was changed. Use another"
                " one."
            )
    for field in ("clients", "client_stores"):
        held = [state[field]] if field == "clients" else list(state[field].values())
        if strange := {client for of in held for client in of if client >= clients}:
            raise CheckpointError(
                f"{path}: its field {field!r} has client {min(strange)} of {clients}, counted from 0: the file was"
                " changed. Use another one."
            )


# -- kinds -------------------------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_tensor(value: Any, ndim: int) -> bool:
    """A dense tensor; one that claims more numbers than the file holds is none."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.ndim != ndim:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _is_weights(value: Any) -> bool:
    return _maps(value, str, partial(_is_tensor, ndim=1)) and all(
        str(vector.dtype) == f"torch.{name}" and not vector.is_complex() for name, vector in value.items()
    )


def _is_collaboration(value: Any) -> bool:
    matrices: list[Any] = (
        [value.get(name) for name in ("aggregation", "personalisation")] if isinstance(value, dict) else [None]
    )
    return all(_is_tensor(matrix, 2) and matrix.dtype == torch.float64 for matrix in matrices)


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 4
        and all(map(_is_text, value[:2]))
        and _is_count(value[2])
        and _lists(value[3], _is_count)
    )


def _is_client_state(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name in _CLIENT_STATE and _CLIENT_STATE[name](part) for name, part in value.items()
    )


def _is_file_names(value: Any) -> bool:
    """What clients' files are found by, in the checkpoint's own folder."""
    return (
        isinstance(value, dict)
        and all(_is_text(value.get(name)) for name in ("name", "token"))
        and Path(value["name"]).name == value["name"]
    )


def _is_measured(value: Any) -> bool:
    """Split -> the latest figures."""
    return (
        _maps(value, str, _is_mapping)
        and value.keys() <= {"metrics", "gains", "evaluated_samples"}
        and all(map(_is_figures, value.get("metrics", {}).values()))
        and all(_maps(gains, str, partial(_describes, GainSummary)) for gains in value.get("gains", {}).values())
        and all(_maps(samples, int, _is_number) for samples in value.get("evaluated_samples", {}).values())
    )


def _is_figures(value: Any) -> bool:
    """Metrics by their names."""
    return isinstance(value, dict) and _maps(value.get("of"), str, partial(_describes, MetricSummary))


def _describes(summary: type[GainSummary | MetricSummary], value: Any) -> bool:
    """Whether a mapping holds what a summary is made of: numbers, and those of the clients."""
    known = {field.name: field.default is MISSING for field in fields(summary)}
    return (
        _maps(value, str, _anything)
        and {name for name, needed in known.items() if needed} <= value.keys() <= known.keys()
        and _maps(value["clients"], int, _is_number)
        and all(
            part is None or isinstance(part, bool | int | float) for name, part in value.items() if name != "clients"
        )
    )


def _is_record(value: Any) -> bool:
    """What the run's record was, and how far its curves were written."""
    return (
        _maps(value, str, _anything)
        and _maps(value.get("summary", {}), str, _anything)
        and _lists(value.get("unwritten", []), lambda row: _maps(row, str, _anything))
        and _is_count(value.get("num_rows", 0))
        and ("unwritten" in value) == ("num_rows" in value)
    )


def _lists(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(fits, value))


def _maps(value: Any, key: type, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, key) and not isinstance(name, bool) and fits(part) for name, part in value.items()
    )


def _anything(value: Any) -> bool:
    return True


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_store(name: str, value: Any) -> bool:
    """What every client keeps under a name: of the names that the engine reads, tensors."""
    fits = _is_state_dict if name in ("personal_layers", "final_models", "own_models", "pfedgraph") else _anything
    return isinstance(name, str) and _maps(value, int, fits)


def _is_state_dict(value: Any) -> bool:
    return _maps(value, str, lambda part: isinstance(part, Tensor) and _is_tensor(part, part.ndim))


def _is_account(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _maps(value.get(name, {}), int, _is_count) for name in ("bytes_received", "bytes_sent")
    )


#: Of a client's state, :class:`~lightning_fl.engine.client.ClientState`.
_CLIENT_STATE: dict[str, Callable[[Any], bool]] = {
    "global_step": _is_count,
    "rounds_seen": _is_count,
    "batches": _is_count,
    "passes": _is_count,
    "optimizers": lambda value: _lists(value, _is_mapping),
    "schedulers": lambda value: _lists(value, _is_mapping),
    "groups": lambda value: _lists(value, lambda of: _lists(of, _is_mapping)),
    "parameters": lambda value: _lists(value, lambda of: _lists(of, lambda names: _lists(names, _is_text))),
}


#: Of ``NAME.ckpt``.
FIELDS: tuple[Field, ...] = (
    Field("lightning_fl_version", "a text", _is_text),
    Field("module", "the name of a class", _is_text),
    Field("seed", "a whole number", lambda value: isinstance(value, int)),
    Field("round", "a number of rounds", _is_count),
    Field("num_clients", "a number of clients", lambda value: _is_count(value) and value > 0),
    Field("models", "a list of weights", lambda value: _lists(value, _is_weights) and len(value) > 0),
    Field("collaboration", "a pair of matrices", _is_collaboration),
    Field("callbacks", "the callbacks' states by their names", lambda value: _maps(value, str, _anything)),
    Field("clients", "clients' states by number", lambda value: _maps(value, int, _is_client_state), dict),
    Field("wall_time_seconds", "a number", _is_number, 0.0),
    Field("callback_metrics", "numbers by name", lambda value: _maps(value, str, _is_number), dict),
    Field("layout", "a list of names, types, places and shapes", lambda value: _lists(value, _is_entry), list),
    Field("personal_layers", "a list of texts", lambda value: _lists(value, _is_text), list),
    Field("trainable", "yes or no by name", lambda value: _maps(value, str, lambda flag: flag in (True, False)), dict),
    Field("constant", "a list of texts", lambda value: _lists(value, _is_text), list),
    Field("absent_clients", "a list of clients", partial(_lists, fits=_is_count), list),
    Field("resting_clients", "a list of clients", partial(_lists, fits=_is_count), list),
    Field(
        "client_stores",
        "what clients keep, by name and number",
        lambda value: isinstance(value, dict) and all(_is_store(name, of) for name, of in value.items()),
        dict,
    ),
    Field(
        "model_states",
        "what the server keeps, by model",
        lambda value: _maps(value, int, lambda of: _maps(of, str, _anything)),
        dict,
    ),
    Field("communication", "an account of bytes", _is_account, dict),
    Field("client_files", "a name and a token", lambda value: value is None or _is_file_names(value), None),
    Field("client_names", "a list of texts", lambda value: value is None or _lists(value, _is_text), None),
    Field("hyper_parameters", "values by name", lambda value: _maps(value, str, _anything), dict),
    Field("recipe", "texts by name", lambda value: value is None or _maps(value, str, _is_text), None),
    Field(
        "data",
        "sums of clients' data by number and split",
        lambda value: _maps(value, int, lambda of: _maps(of, str, _is_text)),
        dict,
    ),
    Field("measured", "the latest figures by split", _is_measured, dict),
    Field("record", "a run's record", lambda value: value is None or _is_record(value), None),
)

#: Of ``NAME.client-I.round-R.ckpt``.
PART_FIELDS: tuple[Field, ...] = (
    Field("lightning_fl_version", "a text", _is_text),
    Field("client", "a client's name", _is_text),
    Field("round", "a number of rounds", _is_count),
    Field("token", "a text", _is_text),
    Field("state", "a client's state", lambda value: value is None or _is_client_state(value), None),
    Field("stores", "what the client keeps, by name", lambda value: _maps(value, str, _anything), dict),
    Field("data", "sums of its data by split", lambda value: _maps(value, str, _is_text), dict),
)
