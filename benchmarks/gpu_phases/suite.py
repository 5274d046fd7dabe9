"""The tests of one process, with their trainers on the device: how many fail, and by which messages."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gpu_phases.common import Arm, Options, Row, cores, has

ROOT = Path(__file__).parents[2]
_FOLDERS = ("tests/engine", "tests/callbacks", "tests/strategies", "tests/models", "tests/functional")
_SHOWN = 25


def suite(options: Options) -> Iterator[Row]:
    """Run them, a worker a core."""
    if options.stand_in:
        yield Row("tests of one process", "not run", note="pytest --cuda-standin runs them")
        return
    folders = ("tests/engine/turn/test_results.py",) if options.tiny else _FOLDERS
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", "not processes"]
    command += ["-p", "gpu_phases.force_device", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    if has("xdist") and not options.tiny:
        command += ["-n", str(max(cores() - 2, 1))]
    paths = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "FORCED_DEVICE": options.device, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    found: Counter[str] = Counter()
    last = "nothing"
    with subprocess.Popen(
        [*command, *folders], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            last = line.strip() or last
            message = message_of(line)
            if message:
                found[message] += 1
    yield Row("tests of one process", last, "no failure")
    for message, count in found.most_common(_SHOWN):
        yield Row(message, count, "0")


def message_of(line: str) -> str | None:
    """What a failure's line (``FILE:LINE: Error: ...``) says, without numbers; ``None`` for other lines."""
    match = re.match(r"(?:E\s+)?\S+\.py:\d+: (.+)", line.strip())
    return None if match is None else re.sub(r"\d+", "#", match[1])[:160]


ARMS: dict[str, Arm] = {"suite": suite}
