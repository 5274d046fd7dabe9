"""The table of public modules in ``docs/lightning-support.md``: each under Lightning's Trainer and federated.

``uv sync --group modules && uv run --no-sync python benchmarks/public_modules.py --write``; with names (or parts of
names) only these cases are tried and the table is printed. Every case has a process of its own, so that packages do not
see each other.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lightning-support.md"
BEGIN, END = "<!-- public modules: written by benchmarks/public_modules.py -->", "<!-- end of public modules -->"
HEAD = (
    "| module | package | version | plain `Trainer` | federated | bits of one client equal |\n|---|---|---|---|---|---|"
)

sys.path[:0] = [str(ROOT / "tests" / "modules"), str(ROOT)]

import public  # noqa: E402, F401
from harness import CASES, try_case  # noqa: E402


def row(name: str) -> str:
    """One case, tried in a process of its own."""
    case = CASES[name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LIGHTNING_FL_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", __file__, "--one", name]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    lines = done.stdout.strip().splitlines()
    found = json.loads(lines[-1]) if done.returncode == 0 and lines else None
    cells = [_short(cell) for cell in found] if found else [f"process ended with {done.returncode}", "", ""]
    package = f"{case.package} (network)" if case.wraps else case.package
    return f"| {name} | {package} | {case.version} | {' | '.join(cells)} |"


def one(name: str) -> None:
    """Try a case here and print the three cells as JSON."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        outcome = try_case(name, Path(folder))
    print(json.dumps([outcome.plain, outcome.federated, outcome.one_client]))


def _short(cell: str) -> str:
    text = cell.replace("|", "\\|")
    return text if len(text) < 160 else text[:157] + "..."


def main() -> None:
    """Try the cases that are asked for, write or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all cases if none is given")
    parser.add_argument("--write", action="store_true", help="into docs/lightning-support.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        return one(asked.one)
    chosen = [name for name in CASES if not asked.names or any(part.lower() in name.lower() for part in asked.names)]
    rows = []
    for name in sorted(chosen, key=lambda name: (CASES[name].wraps, CASES[name].package, name)):
        rows.append(row(name))
        print(rows[-1], flush=True)
    if asked.write:
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text("\n".join([before + BEGIN, "", HEAD, *rows, "", END]) + after)
    return None


if __name__ == "__main__":
    main()
