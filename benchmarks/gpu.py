"""What a GPU shows of this package, in eight minutes: facts, what runs, tests, bits, waits, memory, speed.

    python benchmarks/gpu.py --out gpu-report                         # everything, on the first CUDA device
    python benchmarks/gpu.py --phases facts bits speed --out report
    python benchmarks/gpu.py --device cpu --tiny --out report         # whether the script itself works
    python benchmarks/gpu.py --device stand-in --tiny --out report    # likewise, with the tests' software device

Every phase has a time limit, and every arm of a phase a process of its own, so that one that hangs, or breaks the
device, costs nothing but itself; what it found until then is kept. ``OUT/rows.jsonl`` has a line for every finding as
it comes, ``OUT/gpu.json`` all of them with the phases' times, ``OUT/gpu.md`` a table.

PyTorch Geometric must be there. RDKit and jsonargparse may be missing: phase ``facts`` says how to bring wheels to a
machine without a network, and what needs them is named as not run. The package itself is taken from the checkout that
holds this file.
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

SCRIPT = ROOT / "benchmarks" / "gpu.py"
#: Seconds of each phase, of eight minutes.
LIMITS = {"facts": 25, "runs": 85, "suite": 110, "bits": 60, "waits": 35, "memory": 45, "speed": 115}
_AT_ONCE = 8


def run_arm(phase: str, arm: str, options: Any) -> None:
    """Print the rows of one arm, each as a line of JSON, in this process."""
    warnings.filterwarnings("ignore")
    found = importlib.import_module(f"gpu_phases.{phase}")
    with ExitStack() as device:
        if options.stand_in:
            from gpu_phases.stand_in import standing_in

            device.enter_context(standing_in())
        for row in found.ARMS[arm](options):
            print(json.dumps(row.as_dict(phase, arm), default=str), file=sys.__stdout__, flush=True)


class Report:
    """Rows as they come, in a file and on the screen.

    Args:
        folder: for the files.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.seconds: dict[str, float] = {}
        self._file = (folder / "rows.jsonl").open("w")

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        print(f"{row['phase']:7} {row['what']}: {row['value']}{_more(row)}", flush=True)

    def write(self, about: dict[str, Any]) -> None:
        """All of it as JSON and as a table."""
        (self.folder / "gpu.json").write_text(
            json.dumps({**about, "seconds": self.seconds, "rows": self.rows}, indent=1)
        )
        lines = [f"# {about['device']}, {about['when']}", ""]
        for phase, seconds in self.seconds.items():
            lines += [f"## {phase} ({seconds:.0f} s)", "", "| what | found | aim | note |", "|---|---|---|---|"]
            for row in (row for row in self.rows if row["phase"] == phase):
                cells = (str(row[key]).replace("|", "/").replace("\n", " ") for key in ("what", "value", "aim", "note"))
                lines.append(f"| {' | '.join(cells)} |")
            lines.append("")
        (self.folder / "gpu.md").write_text("\n".join(lines))


def _more(row: dict[str, Any]) -> str:
    parts = [f"aim: {row['aim']}" if row["aim"] else "", row["note"]]
    return f" ({'; '.join(filter(None, parts))})" if any(parts) else ""


def in_own_process(phase: str, arm: str, words: Sequence[str], until: float) -> list[dict[str, Any]]:
    """The rows of one arm, run in a process until a time; what it found before it failed or was ended, and why.

    Args:
        phase: its phase.
        arm: its name.
        words: of the command line, for the arm.
        until: by the monotonic clock.
    """
    left = until - time.monotonic()
    if left <= 1:
        return [_row(phase, arm, "not run", "no time left")]
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--arm", f"{phase}:{arm}", *words]
    environment = {**os.environ, "LIGHTNING_FL_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "err")]
        with files[0].open("w") as out, files[1].open("w") as err:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=out, stderr=err, start_new_session=True
            )
            try:
                process.wait(left)
                problem = None if process.returncode == 0 else f"exit status {process.returncode}"
            except subprocess.TimeoutExpired:
                problem = f"ended after {left:.0f} s"
            finally:
                _end(process)
        said, errors = (path.read_text(errors="replace") for path in files)
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if problem is not None:
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        rows.append(_row(phase, arm, "failed", f"{problem}: {last.strip()[:300]}"))
    return rows


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _row(phase: str, arm: str, value: str, note: str) -> dict[str, Any]:
    return {"phase": phase, "arm": arm, "what": arm, "value": value, "aim": "", "note": note}


def run_phase(phase: str, words: Sequence[str], limit: float, report: Report, only: Sequence[str]) -> None:
    """A phase's arms, all or ``only`` some, one after another, or several at once where they measure no time."""
    found = importlib.import_module(f"gpu_phases.{phase}")
    began = time.monotonic()
    with ThreadPoolExecutor(_AT_ONCE if getattr(found, "PARALLEL", False) and _many_cores() else 1) as pool:
        arms = [
            pool.submit(in_own_process, phase, arm, words, began + limit)
            for arm in found.ARMS
            if arm in only or not only
        ]
        for arm in arms:
            for row in arm.result():
                report.add(row)
    report.seconds[phase] = time.monotonic() - began


def _many_cores() -> bool:
    return (os.cpu_count() or 1) >= 2 * _AT_ONCE


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu", "stand-in"])
    parser.add_argument("--phases", nargs="+", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--arms", nargs="+", default=[], help="of these phases only the arms of these names")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"))
    parser.add_argument("--seconds", type=float, default=sum(LIMITS.values()), help="for all phases, were all run")
    parser.add_argument("--tiny", action="store_true", help="a few clients and steps: for trying the script")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        from gpu_phases.common import Options

        phase, _, arm = arguments.arm.partition(":")
        stand_in = arguments.device == "stand-in"
        run_arm(phase, arm, Options("cuda" if stand_in else arguments.device, arguments.tiny, stand_in))
        return
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device that torch can use: give --device cpu to try the script")
    words = ["--device", arguments.device, *(["--tiny"] if arguments.tiny else [])]
    report = Report(arguments.out)
    name = torch.cuda.get_device_name(0) if arguments.device == "cuda" else arguments.device
    about = {"device": name, "torch": torch.__version__, "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    scale = arguments.seconds / sum(LIMITS.values())
    for phase in arguments.phases:
        run_phase(phase, words, LIMITS[phase] * scale, report, arguments.arms)
        report.write(about)


if __name__ == "__main__":
    main()
