"""The system's clock jumps back and forth while a run goes on: it ends the same."""

import random

from fault_kinds import hooks
from fault_kinds.kills import LIMIT, RECIPES, compared, undisturbed, words, write
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, Outcome


def trial(lab: Laboratory, seed: int) -> Outcome:
    """One run under one to five jumps."""
    draws = random.Random(f"clock {seed}")
    name, devices = draws.choice(RECIPES), draws.choice([1, 2])
    seen = undisturbed(lab, name, devices)
    folder = lab.folder("clock", seed)
    write(name, folder)
    count = draws.randint(1, 5)
    code = hooks.clock(draws.randrange(1 << 30), seen.seconds, count)
    case = f"{name}, {devices} processes, {count} jumps of the clock"
    command = lab.start(["-c", code, *words(devices)[2:]], folder)
    if not command.wait(LIMIT) or command.code:
        return Outcome("clock", seed, BAD, case, f"exit {command.code}: {command.err[-400:]}")
    return Outcome("clock", seed, *compared(command, folder, seen, case))
