"""How an answer to a bad input is judged."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from fault_kinds.outcome import BAD, GOOD, POOR
from fault_kinds.warm_python import Started

__all__ = ["LIMIT", "error_lines", "judge_refusal", "trained", "whole_record"]

#: Seconds within which a small command must have ended.
LIMIT = 60.0
#: What only a programmer understands, or what leads a user into danger.
_INNER = re.compile(
    r"object at 0x|functools\.|__init__\(|jsonargparse|unexpected keyword argument|NoneType|has no attribute '_"
    r"|mistake of lightning-fl's own|argument after \*\*|enforce fail|\b(Key|Type|Index|Attribute|Unicode\w+)Error\b"
)
_UNSAFE = re.compile(r"weights_only|allow_pickle|unsafely|pickle\.load")


def error_lines(command: Started) -> list[str]:
    """What it printed besides warnings and information."""
    lines = [line for line in command.err.splitlines() if line.strip()]
    errors = list(dict.fromkeys(line for line in lines if line.startswith("error:")))
    if errors:
        first = lines.index(errors[0])
        return [line for line in lines[first:] if line in errors or not line.startswith("error:")]
    return lines


def trained(folder: Path) -> bool:
    """A round has left its figures in some run below a folder."""
    return any(len(path.read_text(errors="replace").splitlines()) > 1 for path in folder.rglob("metrics.csv"))


def judge_refusal(command: Started, folder: Path, names: Sequence[str], *, early: bool = True) -> tuple[str, str]:
    """The verdict on a command that ended with an error, and what is wrong with it.

    Args:
        command: it has ended, or hangs.
        folder: where it ran.
        names: one of these must be in the message; none if anything clear will do.
        early: it must be refused before training.
    """
    if command.code is None:
        return BAD, "hang"
    if command.code < 0 or command.code > 128:
        return BAD, f"died with {command.code}: {command.err[-200:]}"
    text = command.err
    lines = error_lines(command)
    if "Traceback (most recent call last)" in text:
        return POOR, f"traceback: {lines[-1] if lines else ''}"
    if not lines:
        return POOR, f"exit {command.code} without a word"
    said = "\n".join(lines)
    if found := _UNSAFE.search(text):
        return POOR, f"passes on unsafe advice ({found[0]}): {said}"
    # All faults of a recipe are said at once, a line each.
    if len([line for line in lines if not re.match(r"error: [\w.\[\]]+: ", line)]) > 3:
        return POOR, f"{len(lines)} lines: {said}"
    if len(said) > 1200 + 200 * len(lines):
        return POOR, f"{len(said)} characters: {said[:300]}"
    if found := _INNER.search(said):
        return POOR, f"inner words ({found[0]}): {said}"
    if any(names) and not any(_flat(name) in _flat(said) for name in names if name):
        return POOR, f"names none of {list(names)[:6]}: {said}"
    if early and trained(folder):
        return POOR, f"only after training began: {said}"
    return GOOD, said


def _flat(text: str) -> str:
    return " ".join(text.split()).casefold()


def whole_record(run: Path) -> str:
    """What is missing in the record of a run that ended well; empty if nothing is."""
    summary = run / "summary.json"
    if not summary.is_file():
        return "exit 0 without summary.json"
    record = json.loads(summary.read_text())
    names = record["client_names"]
    models = sorted(path.name for path in (run / "models").glob("*.ckpt"))
    if len(set(names)) != len(names):
        return f"two clients of one name: {names}"
    clients = [name for name in models if not re.fullmatch(r"shared_\d+\.ckpt", name)]
    if len(clients) != len(names):
        return f"{len(names)} clients {names[:6]}, but {len(clients)} models: {models[:8]}"
    for split, metrics in record.get("metrics", {}).items():
        for name, metric in metrics.items():
            if metric["mean"] is None:
                return f"exit 0 with {name} of {split} not finite"
    return ""
