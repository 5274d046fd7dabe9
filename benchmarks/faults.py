"""The fault laboratory: what becomes of runs under kills, signals, full disks, lost peers, hostile files and clients.

    uv run python benchmarks/faults.py [KIND ...] [--trials N] [--seed S] [--only KIND:SEED ...] [--python PATH]

Every trial is drawn by its kind and its seed, in a folder of its own, and is compared with what the same run does
undisturbed, or judged by its answer. Printed are a line for each that did not survive, with its seed, by which
``--only`` repeats it, and a table of how many were tried and survived; the exit code is 1 if any did not. ``--python``
names the interpreter of another installation that is to be tried. Runs are forks of a Python that has imported
everything, so that a trial takes a second or a few. Linux only.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import import_module
from pathlib import Path

from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, SKIPPED, Outcome

KINDS = ("inputs", "kills", "signals", "files", "disks", "peers", "clients", "clock")


def one(lab: Laboratory, kind: str, seed: int) -> Outcome:
    """One trial, judged; what it leaves running counts against it."""
    begin = time.monotonic()
    try:
        outcome = import_module(f"fault_kinds.{kind}").trial(lab, seed)
    except Exception:
        outcome = Outcome(kind, seed, BAD, "the trial itself failed", traceback.format_exc()[-800:])
    folder = lab.scratch / f"{kind}_{seed}"
    unfinished = [run for run in folder.glob("runs/version_*") if not (run / "summary.json").exists()]
    outcome.notes["unfinished_runs"] = len(unfinished)
    left = lab.clean(folder)
    if left and outcome.survived:
        outcome.verdict, outcome.problem = BAD, f"{len(left)} processes are left; {outcome.problem}"
    outcome.notes["seconds"] = round(time.monotonic() - begin, 2)
    return outcome


def table(outcomes: list[Outcome]) -> str:
    """Kind, tried, survived, poor, bad."""
    lines = ["| kind | tried | survived | poor | bad | skipped |", "|---|---|---|---|---|---|"]
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    for kind in [*kinds, *(["all"] if len(kinds) > 1 else [])]:
        of_kind = Counter(o.verdict for o in outcomes if kind in (o.kind, "all"))
        skipped = of_kind[SKIPPED]
        lines.append(
            f"| {kind} | {sum(of_kind.values()) - skipped} | {of_kind['good']} | {of_kind['poor']} | {of_kind['bad']} |"
            f" {skipped or ''} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Try what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; all if none is given")
    parser.add_argument("--trials", type=int, default=10, help="of each kind (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial; the others count on from it")
    parser.add_argument("--only", nargs="+", metavar="KIND:SEED", help="these trials only")
    parser.add_argument("--python", default=sys.executable, help="of the installation that is tried (default: this)")
    parser.add_argument("--jobs", type=int, default=1, help="trials at once (default: 1)")
    parser.add_argument("--scratch", help="keep all folders and outputs here")
    parser.add_argument("--json", help="write every outcome to this file")
    asked = parser.parse_args()
    if unknown := set(asked.kinds) - set(KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}")
    kinds = asked.kinds or KINDS
    trials = [(kind, asked.seed + i) for i in range(asked.trials) for kind in kinds]
    if asked.only:
        trials = [(kind, int(seed)) for kind, _, seed in (one.partition(":") for one in asked.only)]
    scratch = Path(asked.scratch or tempfile.mkdtemp(prefix="faults_")).resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    lab = Laboratory(asked.python, scratch, keep=asked.scratch is not None)
    outcomes: list[Outcome] = []
    try:
        with ThreadPoolExecutor(asked.jobs) as pool:
            for done in as_completed([pool.submit(one, lab, *each) for each in trials]):
                outcomes.append(done.result())
                if not outcomes[-1].survived:
                    print(outcomes[-1].line(), flush=True)
    finally:
        lab.close()
        if asked.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
        if asked.json:
            Path(asked.json).write_text(
                json.dumps([vars(o) for o in sorted(outcomes, key=lambda o: (o.kind, o.seed))], indent=1)
            )
    outcomes.sort(key=lambda outcome: (kinds.index(outcome.kind) if outcome.kind in kinds else 0, outcome.seed))
    print(table(outcomes), flush=True)
    return int(any(not outcome.survived and outcome.verdict != SKIPPED for outcome in outcomes))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
