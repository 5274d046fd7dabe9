"""Disks that are full, fill up, fail once, or are read-only: one clear error, and nothing that was kept is lost."""

import errno
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

from fault_kinds import hooks
from fault_kinds.judging import error_lines
from fault_kinds.kills import LIMIT, compared, finished_run, go_on, settle, undisturbed, words, write
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, POOR, SKIPPED, Outcome
from fault_kinds.record import differences, record_of, summary_of, tensors
from fault_kinds.warm_python import Started

__all__ = ["judge_full_disk", "trial"]

_ERRORS = {
    errno.ENOSPC: "no space left",
    errno.EIO: "input/output error",
    errno.EROFS: "read-only",
    errno.EDQUOT: "quota",
}


def trial(lab: Laboratory, seed: int) -> Outcome:
    """One run on a disk with a fault, and the same run gone on with when the fault is mended."""
    draws = random.Random(f"disks {seed}")
    name, devices = draws.choice(("fedavg", "drflm", "coalitions", "tiers", "steps")), draws.choice([1, 1, 2])
    seen = undisturbed(lab, name, devices)
    folder = lab.folder("disks", seed)
    write(name, folder)
    how = draws.choices(["at the n-th change", "tmpfs", "read-only"], [6, 3, 1])[0]
    case = f"{name}, {devices} processes, {how}"
    program = words(devices)
    mounted = how != "at the n-th change"
    if mounted:
        size = draws.choice([4, 40, 100, 200, 400, 800, 1200]) if how == "tmpfs" else 4
        if not _mount(folder / "runs", f"size={size}k"):
            return Outcome("disks", seed, SKIPPED, case, "a tmpfs cannot be mounted here: it takes root")
        if how == "read-only":
            _mount(folder / "runs", "remount,ro")
        case += f" of {size} KiB" if how == "tmpfs" else ""
    else:
        at, lasts, error = int(10 ** draws.uniform(0, 2.9)), draws.random() < 0.6, draws.choice(list(_ERRORS))
        case += f" ({at}: {errno.errorcode[error]}, {'from then on' if lasts else 'once'})"
        program = ["-c", hooks.full_disk(str(folder / "runs"), at, lasts, error), *program[2:]]
    try:
        command = lab.start(program, folder)
        command.wait(LIMIT)
        verdict, problem = judge_full_disk(command, folder, seen.record)
        if verdict == BAD or (command.code == 0):
            return Outcome("disks", seed, verdict, case, problem)
        if mounted:
            _mount(folder / "runs", "remount,rw,size=1g")
        command, late = settle(lab, folder, devices, go_on(lab, folder, devices))
        if late:
            return Outcome("disks", seed, BAD, case, late)
        after, _, lost = compared(command, folder, seen, case)
        return Outcome("disks", seed, *((after, case, lost) if after == BAD else (verdict, case, problem)))
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder / "runs"], check=False)


def _mount(folder: Path, options: str) -> bool:
    folder.mkdir(exist_ok=True)
    if shutil.which("mount") is None or os.geteuid():
        return False
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    return done.returncode == 0


def judge_full_disk(command: Started, folder: Path, expected: dict[str, object]) -> tuple[str, str]:
    """The verdict on a run whose disk failed, and what is wrong with it; ``expected`` is the undisturbed record."""
    if command.code is None:
        return BAD, f"hang: {command.err[-300:]}"
    if command.code < 0:
        return BAD, f"died of signal {-command.code}"
    for path in folder.glob("runs/version_*/**/*"):
        if path.suffix == ".ckpt" and not path.name.startswith("."):
            try:
                tensors(path)
            except Exception as error:
                return BAD, f"{path.relative_to(folder)} is not whole: {error}"
        if path.name == "summary.json":
            try:
                json.loads(path.read_text())
            except ValueError:
                return BAD, "summary.json is not whole"
    said = error_lines(command)
    text = "\n".join(said)
    if "Traceback" in command.err or "Exception ignored" in command.err:
        return POOR, f"traceback: {text[-300:]}"
    if command.code == 0:
        run = finished_run(folder)
        lines = differences(expected, record_of(run)) if run else ["summary.json is missing"]
        silent = [
            line
            for line in lines
            if not any(Path(line.split(":")[0].split(" ")[0]).name in one for one in [command.err])
        ]
        heavy = [line for line in silent if "models/" in line or "summary" in line or "ckpt" in line]
        if not lines:
            return GOOD, "not reached"
        return (BAD if heavy else POOR if silent else GOOD), f"exit 0: {summary_of(lines)}; said: {text[-200:]}"
    if len(said) > 3:
        return POOR, f"{len(said)} lines: {text[:400]}"
    if not any(word in text.lower() for word in [*_ERRORS.values(), "space", "written", "write"]):
        return POOR, f"does not name the disk: {text[:300]}"
    return GOOD, text
