"""The table of public modules in ``docs/public_modules.md``: each under Lightning's Trainer and federated.

``uv sync --group modules && uv run --no-sync python benchmarks/public_modules.py --write``; with names (or parts of
names) only these cases are tried and the table is printed. Every package has a process of its own, so that packages do
not see each other.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "public_modules.md"
BEGIN, END = "<!-- public modules: written by benchmarks/public_modules.py -->", "<!-- end of public modules -->"
FOUND = "found: "
HEAD = (
    "| module | package | version | plain `Trainer` | federated | bits of one client equal |\n|---|---|---|---|---|---|"
)

sys.path[:0] = [str(ROOT / "tests" / "modules"), str(ROOT)]

import public  # noqa: E402, F401
from harness import CASES, try_case  # noqa: E402


def rows(names: list[str]) -> list[str]:
    """Cases of one package, tried in a process of their own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LIGHTNING_FL_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", __file__, "--here", *names]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
    lines = [line.removeprefix(FOUND) for line in done.stdout.splitlines() if line.startswith(FOUND)]
    found = {name: cells for name, *cells in map(json.loads, lines)}
    return [_row(name, found.get(name, [f"process ended with {done.returncode}", "", ""])) for name in names]


def try_here(names: list[str]) -> None:
    """Try cases in this process and print a line of JSON for each."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            outcome = try_case(name, Path(folder))
        print(FOUND + json.dumps([name, outcome.plain, outcome.federated, outcome.one_client]), flush=True)


def _row(name: str, cells: list[str]) -> str:
    case = CASES[name]
    package = f"{case.package} (network)" if case.wraps else case.package
    return f"| {name} | {package} | {case.version} | {' | '.join(map(_short, cells))} |"


def _short(cell: str) -> str:
    text = cell.replace("|", "\\|")
    return text if len(text) < 160 else text[:157] + "..."


def main() -> None:
    """Try the cases that are asked for, write or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all cases if none is given")
    parser.add_argument("--write", action="store_true", help="into docs/public_modules.md")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        return try_here(asked.names)
    chosen = [name for name in CASES if not asked.names or any(part.lower() in name.lower() for part in asked.names)]
    table = []
    chosen.sort(key=lambda name: (CASES[name].wraps, CASES[name].package, name))
    for _, names in itertools.groupby(chosen, key=lambda name: (CASES[name].wraps, CASES[name].package)):
        table += (found := rows(list(names)))
        print(*found, sep="\n", flush=True)
    if asked.write:
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text("\n".join([before + BEGIN, "", HEAD, *table, "", END]) + after)
    return None


if __name__ == "__main__":
    main()
