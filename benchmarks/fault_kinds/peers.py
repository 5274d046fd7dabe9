"""Two machines with folders of their own, one of which is lost: the other ends, naming it, and both can go on.

At times one or both are killed once more while they go on.
"""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch

from fault_kinds.judging import error_lines
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, POOR, Outcome
from fault_kinds.ports import reserved_port
from fault_kinds.record import differences, record_of, summary_of
from fault_kinds.warm_python import Started

SCRIPT = Path(__file__).resolve().parents[2] / "tests" / "support" / "machine.py"
#: Seconds that a rank waits for a silent one, and within which all have ended.
TIMEOUT, BOUND = 8, 40.0
ROUNDS = 8


def prepare(folder: Path) -> None:
    """Each machine has its own silo."""
    draws = torch.Generator().manual_seed(0)
    for silo in range(2):
        machine = folder / f"machine_{silo}"
        machine.mkdir(parents=True, exist_ok=True)
        x = torch.randn(12 + 4 * silo, 3, generator=draws)
        torch.save({"x": x, "y": x.sum(1, keepdim=True)}, machine / f"silo_{silo}.pt")


def start(
    lab: Laboratory, folder: Path, port: str, *more: str, programs: dict[int, list[str]] | None = None
) -> list[Started]:
    """Both machines; ``programs``: what some run in place of the script."""
    found = []
    for node in range(2):
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": str(node)}
        program = (programs or {}).get(node, [str(SCRIPT)])
        words = ["fit", "--num-nodes", "2", "--silos", "2", "--rounds", str(ROUNDS), "--timeout", str(TIMEOUT)]
        found.append(lab.start([*program, *words, *more], folder / f"machine_{node}", variables))
    return found


def record(folder: Path) -> dict[str, Any]:
    """What both machines have recorded in the runs that ended last."""
    found: dict[str, Any] = {}
    for node in range(2):
        machine = folder / f"machine_{node}"
        told = json.loads((machine / "record.json").read_text())
        run = machine / told.pop("log_dir")
        found |= {f"machine {node} {name}": value for name, value in told.items()}
        found |= {f"machine {node}/{name}": value for name, value in record_of(run).items()}
    # Files of clients bear the round and the run's token.
    return {name: value for name, value in found.items() if "token" not in name}


def undisturbed(lab: Laboratory) -> tuple[dict[str, Any], float]:
    """The record of two machines that nothing disturbs, and how long it took."""

    def make() -> tuple[dict[str, Any], float]:
        folder = lab.folder("peers_undisturbed", 0)
        prepare(folder)
        begin = time.monotonic()
        with reserved_port() as port:
            both = start(lab, folder, port)
            if not all(one.wait(60) for one in both) or any(one.code for one in both):
                raise RuntimeError(f"two machines fail undisturbed: {both[0].err[-500:]} {both[1].err[-500:]}")
        return record(folder), time.monotonic() - begin

    return lab.once("peers", make)


def go_on(lab: Laboratory, folder: Path, *more: str) -> list[Started]:
    """Both machines go on to the end, or begin anew where no checkpoint was saved yet."""
    with reserved_port() as port:
        both = start(lab, folder, port, "--ckpt-path", "last", *more)
        if all(one.wait(BOUND) for one in both) and all("no last.ckpt" in one.err for one in both):
            both = start(lab, folder, port, *more)
        for one in both:
            one.wait(BOUND)
    return both


def trial(lab: Laboratory, seed: int) -> Outcome:
    """One machine killed or stopped at a random moment."""
    draws = random.Random(f"peers {seed}")
    expected, seconds = undisturbed(lab)
    folder = lab.folder("peers", seed)
    prepare(folder)
    number = draws.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP])
    lost, moment = draws.randrange(2), draws.random() * seconds
    case = f"{signal.Signals(number).name} to machine {lost} after {moment:.2f} s of {seconds:.2f} s"
    with reserved_port() as port:
        both = start(lab, folder, port)
        both[lost].wait(moment)
        both[lost].send(number)
        other = both[1 - lost]
        begin = time.monotonic()
        if not other.wait(BOUND):
            return Outcome("peers", seed, BAD, case, f"the other hangs: {other.err[-400:]}")
        bound = time.monotonic() - begin
        if number == signal.SIGSTOP:
            both[lost].send(signal.SIGCONT)
        if not both[lost].wait(BOUND):
            return Outcome("peers", seed, BAD, case, f"the lost one hangs: {both[lost].err[-400:]}")
    problem = judge_survivor(other, number, lost)
    if draws.random() < 0.4:
        again, moment = draws.choice([[0], [1], [0, 1]]), draws.random() * seconds
        case += f"; SIGKILL to {' and '.join(map(str, again))} {moment:.2f} s after going on"
        with reserved_port() as port:
            both = start(lab, folder, port, "--ckpt-path", "last")
            both[again[0]].wait(moment)
            for node in again:
                both[node].send(signal.SIGKILL)
            if not all(one.wait(BOUND) for one in both):
                return Outcome("peers", seed, BAD, case, f"hang: {both[0].err[-300:]} {both[1].err[-300:]}")
    both = go_on(lab, folder)
    if not all(one.wait(0) for one in both) or any(one.code for one in both):
        errors = " / ".join(one.err[-300:] for one in both)
        return Outcome("peers", seed, BAD, case, f"does not go on: {errors}")
    if lines := differences(expected, record(folder)):
        return Outcome("peers", seed, BAD, case, summary_of(lines))
    return Outcome("peers", seed, POOR if problem else GOOD, case, problem, {"other_ended_after": round(bound, 2)})


def judge_survivor(other: Started, number: int, lost: int) -> str:
    """What is wrong with the end of the machine that was not lost; empty if nothing is."""
    if other.code == 0:
        return ""  # it had ended, or had no more need of the lost one
    if "Traceback" in other.err:
        return f"traceback: {other.err[-300:]}"
    lines = error_lines(other)
    if len(lines) > 3:
        return f"{len(lines)} lines: {' '.join(lines)[:300]}"
    told = number in (signal.SIGINT, signal.SIGTERM)
    names = (f"rank {lost}", f"node {lost}", f"(NODE_RANK {lost})")  # the last of one that has not come
    if not told and not any(name in other.err for name in names):
        return f"does not name rank {lost}: {other.err[-300:]}"
    return ""
