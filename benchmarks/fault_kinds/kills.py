"""SIGKILL at random moments, and going on with ``--ckpt_path last`` until the run ends."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, Outcome
from fault_kinds.record import differences, record_of, summary_of
from fault_kinds.small_recipes import recipe, write_data, write_recipe
from fault_kinds.warm_python import Started

#: A user's, which torch makes at the first step of an optimiser and uses again in every run.
_CACHE_OF_TORCH = "torchinductor_"

__all__ = ["RECIPES", "Undisturbed", "finished_run", "go_on", "settle", "undisturbed", "words", "write"]

RECIPES = ("fedavg", "drflm", "coalitions", "tiers", "stacked", "steps", "table")
#: Seconds within which a run, slowed by all others on the machine, has ended.
LIMIT = 120.0


@dataclass
class Undisturbed:
    """A run that nothing interrupted: its record, and when it did what, in seconds."""

    record: dict[str, Any]
    seconds: float
    saved: float
    exporting: float


def write(name: str, folder: Path) -> None:
    """A recipe as ``r.yaml`` and its data."""
    write_data(folder)
    write_recipe(recipe(name), folder / "r.yaml")


def words(devices: int, *more: str) -> list[str]:
    """The command that trains."""
    return ["-m", "lightning_fl", "fit", "--config", "r.yaml", "--trainer.devices", str(devices), *more]


def undisturbed(lab: Laboratory, name: str, devices: int) -> Undisturbed:
    """The same run without a fault, made once."""

    def make() -> Undisturbed:
        folder = lab.folder(f"undisturbed_{name}", devices)
        write(name, folder)
        begin = time.monotonic()
        command = lab.start(words(devices), folder)
        moments: dict[str, float] = {}
        run = folder / "runs" / "version_0"
        last, before = run / "checkpoints" / "last.ckpt", None
        while not command.wait(0.002):
            now = time.monotonic() - begin
            if now > LIMIT:
                raise RuntimeError(f"{name} does not end undisturbed: {command.err}")
            if (stamp := _stamp(last)) != before:
                before, moments["saved"] = stamp, now
            if "exporting" not in moments and (run / "models").exists():
                moments["exporting"] = now
        seconds = time.monotonic() - begin
        if command.code:
            raise RuntimeError(f"{name} fails undisturbed: {command.err}")
        result = Undisturbed(record_of(run), seconds, moments["saved"], moments.get("exporting", seconds))
        lab.clean(folder)
        return result

    return lab.once(f"undisturbed {name} {devices}", make)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def finished_run(folder: Path) -> Path | None:
    """The last run that wrote its summary."""
    runs = sorted(folder.glob("runs/version_*/summary.json"), key=lambda path: int(path.parent.name[8:]))
    return runs[-1].parent if runs else None


def go_on(lab: Laboratory, folder: Path, devices: int) -> Started:
    """Start to resume."""
    return lab.start(words(devices, "--ckpt_path", "last"), folder)


def settle(lab: Laboratory, folder: Path, devices: int, command: Started) -> tuple[Started, str]:
    """Wait for the end; where the run says that no checkpoint was saved yet, begin anew. What is wrong with it."""
    if command.wait(LIMIT) and command.code == 2 and "no last.ckpt" in command.err:
        command = lab.start(words(devices), folder)
    if not command.wait(LIMIT):
        return command, f"hang after going on: {command.err[-300:]}"
    return command, f"exit {command.code} on going on: {command.err[-400:]}" if command.code else ""


def _moment(
    draws: random.Random, seen: Undisturbed, folder: Path, devices: int
) -> tuple[str, Callable[[Started], None]]:
    """When to kill: a name, and what waits for that moment."""
    how = draws.choices(
        ["any time", "while saving", "after the last save", "while exporting", "at the end"], [4, 2, 2, 2, 1]
    )[0]
    delay = draws.random()

    def newest() -> Path | None:
        runs = [path for path in folder.glob("runs/version_*") if path.name[8:].isdigit()]
        return max(runs, key=lambda path: int(path.name[8:]), default=None)

    known = newest()

    def wait_for(command: Started, seen_in: Callable[[Path], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not command.wait(0):
            run = newest()
            if run is not None and run != known and seen_in(run):
                return
            time.sleep(0.0005)

    if how == "any time":
        return f"after {delay * seen.seconds:.2f} s", lambda command: void(command.wait(delay * seen.seconds))
    if how == "at the end":
        late = seen.seconds - delay * min(0.5, seen.seconds - seen.exporting + 0.1)
        return f"after {late:.2f} s of {seen.seconds:.2f} s", lambda command: void(command.wait(late))
    if how == "while saving":
        count = draws.randrange(1, 8)

        def saving(command: Started) -> None:
            times, inside = 0, False

            def being_written(run: Path) -> bool:
                nonlocal times, inside
                now = any(path.name.startswith(".") for path in (run / "checkpoints").glob(".*"))
                times += now and not inside
                inside = now
                return times >= count and now

            wait_for(command, being_written, seen.seconds * 3)
            time.sleep(delay * 0.004)

        return f"while checkpoint {count} is written", saving
    if how == "after the last save":
        gap = delay * (seen.seconds - seen.saved)

        def saved(command: Started) -> None:
            wait_for(command, lambda run: (run / "models").exists(), seen.seconds * 3)
            command.wait(gap)

        return f"{gap:.2f} s after the last save", saved

    def exporting(command: Started) -> None:
        wait_for(command, lambda run: (run / "models").exists(), seen.seconds * 3)
        command.wait(delay * 0.05)

    return "while models are exported", exporting


def void(_: object) -> None:
    """Nothing of a result."""


def trial(lab: Laboratory, seed: int) -> Outcome:
    """One run, killed once or twice."""
    draws = random.Random(f"kills {seed}")
    name, devices = draws.choice(RECIPES), draws.choice([1, 2])
    seen = undisturbed(lab, name, devices)
    folder = lab.folder("kills", seed)
    write(name, folder)
    real = draws.random() < 0.05
    case = [f"{name}, {devices} processes{', processes of their own' if real else ''}"]
    command = lab.start(words(devices), folder, real=real)
    for _ in range(draws.choice([1, 1, 2])):
        when, wait = _moment(draws, seen, folder, devices)
        whom = draws.choice(["all", "all", "the first", "another"]) if devices == 2 else "all"
        case.append(f"{whom} killed {when}")
        wait(command)
        if problem := _kill(command, whom):
            return Outcome("kills", seed, BAD, "; ".join(case), problem)
        if command.code == 0 and finished_run(folder):
            case[-1] += " (too late)"
            break
        command = go_on(lab, folder, devices)
    command, problem = settle(lab, folder, devices, command)
    if problem:
        return Outcome("kills", seed, BAD, "; ".join(case), problem)
    return Outcome("kills", seed, *compared(command, folder, seen, "; ".join(case)))


def compared(command: Started, folder: Path, seen: Undisturbed, case: str) -> tuple[str, str, str]:
    """Verdict, case and problem of a run that was disturbed and has ended."""
    run = finished_run(folder)
    if run is None:
        return BAD, case, "exit 0 without summary.json"
    lines = differences(seen.record, record_of(run))
    left = [path.name for path in command.temporary.iterdir() if not path.name.startswith(_CACHE_OF_TORCH)]
    lines += [f"left in TMPDIR: {name}" for name in left]
    lines += [f"left in /dev/shm: {path.name}" for path in Path("/dev/shm").glob("torch_*")]
    return (BAD if lines else GOOD), case, summary_of(lines)


def _kill(command: Started, whom: str) -> str:
    """Kill all, the first or another process; what is wrong with how the others end."""
    pids = command.session()
    chosen = pids if whom == "all" else pids[:1] if whom == "the first" else pids[1:2]
    if chosen:
        command.send(signal.SIGKILL, *chosen)
    command.wait(40)
    if not command.all_ended(40):
        left = command.session()
        command.kill_all()
        return f"{len(left)} processes left 40 s after {whom} was killed: {command.err[-300:]}"
    if whom == "another" and chosen and "Traceback" in command.err:
        return f"traceback where another process was killed: {command.err[-300:]}"
    return ""
