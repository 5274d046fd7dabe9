"""Round times of two checkouts of the package, side by side in one run.

    uv run --group bench python benchmarks/two_checkouts.py OTHER_CHECKOUT [cnn|gnn|all] [--repeats 9] [--cpu-time]

The arms of ``overhead.py`` that run the package are run in a process for each checkout, with one thread, by turns
(here and there, then there and here), with the workloads that lie in the checkout's own ``benchmarks``. Every repeat
has two new processes. A ratio is taken within a repeat; its median is printed with the least and the largest. Both
checkouts end with the same weights where the checksums are equal.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
OURS = "lightning-fl"


class Worker:
    """A process that runs the arms of one checkout when it is told to.

    Args:
        checkout: whose package and workloads.
        task: of ``overhead.py``.
        cpu_time: measure process time instead of wall time.
    """

    def __init__(self, checkout: Path, task: str, cpu_time: bool) -> None:
        words = [sys.executable, __file__, str(checkout), task, "--worker", *(["--cpu-time"] if cpu_time else [])]
        path = os.pathsep.join([str(checkout), str(checkout / "benchmarks")])
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        self.arms: list[str] = self._answer()

    def run(self, arm: str) -> tuple[float, float]:
        """The median time of a round in milliseconds, and the checksum of the weights at the end."""
        assert self._process.stdin is not None
        self._process.stdin.write(arm + "\n")
        self._process.stdin.flush()
        milliseconds, checksum = self._answer()
        return milliseconds, checksum

    def _answer(self):  # type: ignore[no-untyped-def]
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a worker ended with exit code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def work(checkout: Path, task: str, cpu_time: bool) -> None:
    """Answer on standard output; whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = [str(checkout), str(checkout / "benchmarks")]
    import logging
    import warnings

    import overhead
    import torch

    import lightning_fl

    assert Path(lightning_fl.__file__).is_relative_to(checkout), f"{lightning_fl.__file__} is not of {checkout}"
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    overhead.clock = time.process_time if cpu_time else time.perf_counter
    arms = {"cnn": lambda: overhead.cnn(10), "gnn": lambda: overhead.gnn(40)}[task]()
    print(json.dumps([name for name in arms if name.startswith(OURS)]), file=answers, flush=True)
    for line in sys.stdin:
        ends, checksum = arms[line.strip()]()
        gaps = [after - before for before, after in itertools.pairwise(ends)]
        print(json.dumps([1e3 * statistics.median(gaps), checksum]), file=answers, flush=True)


def compare(other: Path, task: str, repeats: int, cpu_time: bool) -> None:
    """Print a Markdown table of one task."""
    times: dict[str, list[list[float]]] = {}
    sums: dict[str, list[set[float]]] = {}
    for repeat in range(repeats):
        # Where a process happens to lie in memory makes a tenth of its speed: each repeat has two new ones.
        workers = [Worker(checkout, task, cpu_time) for checkout in (HERE, other)]
        for arm in [name for name in workers[0].arms if name in workers[1].arms]:
            for side in (0, 1) if repeat % 2 else (1, 0):
                milliseconds, checksum = workers[side].run(arm)
                times.setdefault(arm, [[], []])[side].append(milliseconds)
                sums.setdefault(arm, [set(), set()])[side].add(checksum)
        for worker in workers:
            worker.close()
    print(f"\n### {task}\n\n| arm | here, ms | there, ms | here / there | least | largest | same weights |")
    print("|---|---|---|---|---|---|---|")
    for arm, of_sides in times.items():
        ratios = [a / b for a, b in zip(*of_sides, strict=True)]
        here, there = map(statistics.median, of_sides)
        print(
            f"| {arm} | {here:.2f} | {there:.2f} | {statistics.median(ratios):.3f} | {min(ratios):.3f} |"
            f" {max(ratios):.3f} | {'yes' if sums[arm][0] == sums[arm][1] else 'NO'} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("task", nargs="?", default="all", choices=["cnn", "gnn", "all"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time, on a busy machine")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.other.resolve(), arguments.task, arguments.cpu_time)
        return
    for task in ("cnn", "gnn") if arguments.task == "all" else (arguments.task,):
        compare(arguments.other.resolve(), task, arguments.repeats, arguments.cpu_time)


if __name__ == "__main__":
    main()
