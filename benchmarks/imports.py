"""What a command imports: seconds and memory by top-level package.

    uv run python benchmarks/imports.py fit --config drflm_esol --trainer.max_rounds 1 --trainer.devices 1

Times are those of ``python -X importtime``, which itself takes a tenth of them. Memory is what the process has grown by
when Python reports an import, so that what a command allocates between two imports counts for the second one.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter

_LINE = re.compile(rb"import time: +(\d+) \| +\d+ \| *(\w+)")
_PAGE = resource.getpagesize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=float, default=0.02, help="seconds of the packages that have a row")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="of lightning-fl")
    options = parser.parse_args()
    seconds: Counter[str] = Counter()
    bytes_: Counter[str] = Counter()
    before, other = 0, b""
    start = time.perf_counter()
    command = [sys.executable, "-X", "importtime", "-m", "lightning_fl", *options.words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if found := _LINE.match(line):
                package, resident = found[2].decode(), _resident(process.pid) or before
                seconds[package] += int(found[1]) / 1e6
                bytes_[package] += resident - before
                before = resident
            elif not line.startswith(b"import time:"):
                other += line
    whole = time.perf_counter() - start
    print(f"{'package':24}{'seconds':>9}{'MiB':>8}")
    shown = [package for package, value in seconds.most_common() if value >= options.least]
    for package in shown:
        print(f"{package:24}{seconds[package]:9.2f}{bytes_[package] / 2**20:8.1f}")
    print(
        f"{f'{len(seconds) - len(shown)} others':24}{sum(seconds[each] for each in seconds if each not in shown):9.2f}"
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    print(f"{'all imports':24}{seconds.total():9.2f}\n{'the whole command':24}{whole:9.2f}{peak:8.1f} at its peak")
    if process.returncode:
        sys.stderr.write(other.decode(errors="replace"))
    return process.returncode


def _resident(pid: int) -> int:
    """Bytes in memory of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
