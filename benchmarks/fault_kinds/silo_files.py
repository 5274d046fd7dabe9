"""Damaged files of what a private silo keeps for itself, beside a checkpoint, on the machine that trains it."""

import random
import shutil
from pathlib import Path
from typing import Any

from fault_kinds import peers
from fault_kinds.damage import damage, executed
from fault_kinds.judging import judge_refusal
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, Outcome
from fault_kinds.ports import reserved_port
from fault_kinds.record import differences, summary_of

__all__ = ["trial_silo"]

_BEFORE, _AFTER = ("--rounds", "3"), ("--rounds", "5")


def _prepared(lab: Laboratory) -> tuple[Path, dict[str, Any]]:
    """Two machines that have trained three rounds, and what comes of it when they go on."""

    def make() -> tuple[Path, dict[str, Any]]:
        folder, whole = lab.folder("silos_prepared", 0), lab.folder("silos_whole", 0)
        peers.prepare(folder)
        with reserved_port() as port:
            both = peers.start(lab, folder, port, *_BEFORE)
            if not all(one.wait(peers.BOUND) for one in both) or any(one.code for one in both):
                raise RuntimeError(f"two machines fail undisturbed: {both[0].err[-500:]} {both[1].err[-500:]}")
        shutil.copytree(folder, whole, dirs_exist_ok=True)
        both = peers.go_on(lab, whole, *_AFTER)
        if any(one.code != 0 for one in both):
            raise RuntimeError(f"two machines do not go on: {both[0].err[-500:]} {both[1].err[-500:]}")
        return folder, peers.record(whole)

    return lab.once("silos", make)


def trial_silo(lab: Laboratory, seed: int, draws: random.Random) -> Outcome:
    """One silo's file damaged: both machines say so and end, whichever of them has it."""
    prepared, expected = _prepared(lab)
    folder = lab.folder("files", seed)
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    node = draws.randrange(2)
    parts = sorted(folder.glob(f"machine_{node}/**/last.client-*.round-*.ckpt"))
    path = parts[-1]
    case = f"{path.relative_to(folder)} {damage(path, _others(folder), draws)}; two machines go on"
    both = peers.go_on(lab, folder, *_AFTER)
    if any(executed(folder, one.temporary) for one in both):
        return Outcome("files", seed, BAD, case, "THE PAYLOAD WAS EXECUTED")
    if any(one.code is None for one in both):
        return Outcome("files", seed, BAD, case, f"hang: {both[0].err[-300:]} {both[1].err[-300:]}")
    if both[0].code == both[1].code == 0:
        lines = differences(expected, peers.record(folder))
        return Outcome("files", seed, BAD if lines else GOOD, case, summary_of(lines) or "no effect")
    if 0 in (both[0].code, both[1].code):
        return Outcome("files", seed, BAD, case, f"exit codes {both[0].code} and {both[1].code}")
    judged = [judge_refusal(one, folder / "nothing", [path.name]) for one in both]
    wrong = [one for one in judged if one[0] != GOOD]
    verdict, problem = wrong[0] if wrong else judged[node]
    return Outcome("files", seed, verdict, case, problem)


def _others(folder: Path) -> list[Path]:
    """Files of the other kinds, and the other machine's, that may be copied there by mistake."""
    return [*sorted(folder.glob("machine_*/**/*.client-*.ckpt")), *sorted(folder.glob("machine_0/**/last.ckpt"))]
