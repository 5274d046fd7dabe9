"""Two signals at any distance at any moment: the run ends within ten seconds and can go on."""

import random
import signal
import time

from fault_kinds.kills import compared, go_on, settle, undisturbed, words, write
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, POOR, Outcome

#: Seconds after the second signal.
BOUND = 10.0


def trial(lab: Laboratory, seed: int) -> Outcome:
    """One run and two signals; every third is resumed and compared besides."""
    draws = random.Random(f"signals {seed}")
    name, devices = draws.choice(("fedavg", "steps", "drflm", "coalitions", "tiers")), draws.choice([1, 2])
    seen = undisturbed(lab, name, devices)
    folder = lab.folder("signals", seed)
    write(name, folder)
    first, second = draws.choices((signal.SIGINT, signal.SIGTERM), k=2)
    moment = draws.random() * seen.seconds * 1.05
    distance = draws.choice([0.0, draws.random() * 0.005, draws.random() * 0.05, draws.random() * 0.2])
    whom = draws.choice(["the first", "the whole group"])
    case = (
        f"{name}, {devices} processes, {first.name} after {moment:.3f} s, {second.name} {1000 * distance:.1f} ms later,"
        f" to {whom}"
    )
    command = lab.start(words(devices), folder)
    command.wait(moment)
    for number, pause in ((first, distance), (second, 0.0)):
        command.send(number, *(command.session() if whom == "the whole group" else ()))
        time.sleep(pause)
    begin = time.monotonic()
    if not (command.wait(BOUND) and command.all_ended(BOUND - (time.monotonic() - begin))):
        return Outcome("signals", seed, BAD, case, f"hangs: {command.err[-300:]}")
    if command.code not in (0, 130, 143, -signal.SIGTERM, -signal.SIGINT):
        return Outcome("signals", seed, POOR, case, f"exit code {command.code}: {command.err[-300:]}")
    if "Traceback" in command.err and moment > 0.15 * seen.seconds:
        return Outcome("signals", seed, POOR, case, f"traceback: {command.err[-300:]}")
    if seed % 3:
        return Outcome("signals", seed, GOOD, case)
    command, problem = settle(lab, folder, devices, go_on(lab, folder, devices))
    if problem:
        return Outcome("signals", seed, BAD, case, problem)
    return Outcome("signals", seed, *compared(command, folder, seen, case))
