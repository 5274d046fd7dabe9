"""What a run left behind, in values that can be compared with those of another run."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

#: Of a summary: what is another in every run.
_OWN = ("wall_time_seconds", "resumed_from")


def record_of(run: Path) -> dict[str, Any]:
    """File or part of one -> its content, of all that a run's folder holds, less times and the folder's name."""
    record: dict[str, Any] = {}
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = str(path.relative_to(run))
        if path.name.startswith("events.out"):
            record.setdefault("curves", []).extend(_scalars(path))
        elif path.suffix == ".ckpt":
            record[name] = _plain(torch.load(path, weights_only=True))
        elif path.name == "summary.json":
            record[name] = _summary(json.loads(path.read_text()))
        elif path.name != "profile.csv":
            record[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".png" else path.read_text()
    for name in ("config.yaml", "hparams.yaml"):  # with the folder, and the checkpoint that it went on from
        record.pop(name, None)
    if "curves" in record:
        record["curves"] = sorted(record["curves"], key=str)
    return record


def differences(run: Path, other: Path) -> list[str]:
    """The files of two runs that are not the same, or are in one of them only."""
    first, second = record_of(run), record_of(other)
    return [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]


def same_values(first: Any, second: Any) -> bool:
    """Whether values are equal, however nested: tensors in type and shape too, on any device; NaN is equal to NaN."""
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return (
            isinstance(first, torch.Tensor)
            and isinstance(second, torch.Tensor)
            and (first.dtype, first.shape) == (second.dtype, second.shape)
            and torch.allclose(first.cpu(), second.cpu(), rtol=0, atol=0, equal_nan=True)
        )
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(same_values(value, second[key]) for key, value in first.items())
        )
    if isinstance(first, list | tuple):
        return isinstance(second, list | tuple) and len(first) == len(second) and all(map(same_values, first, second))
    return bool(first == second or (first != first and second != second))


def _summary(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name not in _OWN}


def _scalars(path: Path) -> list[tuple[str, int, float]]:
    return [
        (value.tag, event.step, make_ndarray(value.tensor).item())
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "scalars"
    ]


def _plain(value: Any) -> Any:
    """A checkpoint's content with its tensors' bits in place of them, which ``==`` compares."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if key not in (*_OWN, "token", "record")} | (
            {"record": {**_plain(value["record"]), "summary": _summary(value["record"]["summary"])}}
            if "record" in value
            else {}
        )
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return "nan" if isinstance(value, float) and value != value else value
