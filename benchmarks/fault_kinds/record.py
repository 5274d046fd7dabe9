"""What a run has recorded, in a form in which two runs can be compared."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

__all__ = ["differences", "record_of", "summary_of", "tensors"]

#: What two equal runs need not share: when, from where and how fast.
_OF_THE_MOMENT = ("wall_time_seconds", "resumed_from", "versions")


#: What numpy's numbers and arrays are made of again, which schedules of learning rates leave in checkpoints.
_NUMPY: list[Any] = [
    np.dtype,
    np.ndarray,
    np.float64(0).__reduce__()[0],
    np.zeros(1).__reduce__()[0],
    *{type(np.dtype(kind)) for kind in "?bhilqBHILQefdFD"},
]


def tensors(path: Path) -> Any:
    """A file of torch's, read without running any code from it."""
    with torch.serialization.safe_globals(_NUMPY):
        return torch.load(path, map_location="cpu", weights_only=True)


def record_of(run: Path) -> dict[str, Any]:
    """Everything in a run's folder: name -> what must be equal."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir() or "tfevents" in name:
            continue
        if path.suffix == ".ckpt":
            content = tensors(path)
            content.pop("wall_time_seconds", None)
            found |= {f"{name}:{key}": value for key, value in _flat(content).items()}
        elif path.suffix == ".png":
            found[name] = hashlib.sha256(np.asarray(Image.open(path)).tobytes()).hexdigest()
        elif name == "summary.json":
            summary = json.loads(path.read_text())
            found |= {f"{name}:{k}": v for k, v in _flat(summary).items() if k.split(".")[0] not in _OF_THE_MOMENT}
        elif name == "config.yaml":
            config = yaml.safe_load(path.read_text())
            config.pop("ckpt_path", None)
            found[name] = json.dumps(config, default=str)
        elif path.suffix == ".csv":
            found |= {f"{name}:{i}": line for i, line in enumerate(path.read_text().splitlines())}
        else:
            found[name] = "is there"
    return found | _curves(run)


def _curves(run: Path) -> dict[str, Any]:
    """TensorBoard's scalars and pictures, of all event files together: tag -> by step."""
    found: dict[str, Any] = {}
    for path in sorted(run.glob("events.out.tfevents.*")):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0, "images": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                found.setdefault(f"tensorboard {tag}", {})[event.step] = event.value
        for tag in events.Tags()["images"]:
            found.setdefault(f"tensorboard {tag}", {}).update({event.step: "picture" for event in events.Images(tag)})
    return found


def _flat(content: Any, path: str = "") -> dict[str, Any]:
    """Nested content by dotted path; tensors as their bits."""
    if isinstance(content, dict):
        items: Any = content.items()
    elif isinstance(content, (list, tuple)):
        items = enumerate(content)
    elif isinstance(content, torch.Tensor):
        array = content.detach().contiguous().view(torch.uint8) if content.dim() else content
        return {path: f"{content.dtype} {tuple(content.shape)} {hashlib.sha256(array.numpy().tobytes()).hexdigest()}"}
    else:
        return {path: repr(content)}
    found: dict[str, Any] = {path: "empty"} if not content else {}
    for key, value in items:
        found |= _flat(value, f"{path}.{key}" if path else str(key))
    return found


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What differs, by name; empty if nothing does."""
    lines = []
    for name in expected:
        if name not in found:
            lines.append(f"{name} is missing")
        elif found[name] != expected[name]:
            lines.append(f"{name}: {_short(found[name])} instead of {_short(expected[name])}")
    return lines + [f"{name} is too many" for name in found if name not in expected]


def summary_of(lines: list[str]) -> str:
    """The kinds of differences with their numbers, and the first of each."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        kinds.setdefault(line.split(":")[0].split(" ")[0] if "tensorboard" in line else line.split(":")[0], []).append(
            line
        )
    return "; ".join(f"{len(of)} x {of[0]}" for of in kinds.values())


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else f"{text[:77]}..."
