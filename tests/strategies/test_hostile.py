"""What a hostile rank sends is an error on the others, which names it, and runs nothing there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import SUPPORT, Process, reserved_port, succeed

pytestmark = [pytest.mark.processes, pytest.mark.slow]
SCRIPT = SUPPORT / "hostile.py"


def test_nothing_that_a_rank_sends_is_unpickled_or_believed(tmp_path: Path, start_warm: Callable[..., Process]) -> None:
    with reserved_port() as port:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "OMP_NUM_THREADS": "1"}
        succeed(*(start_warm(SCRIPT, tmp_path, environment={**shared, "LOCAL_RANK": str(r)}) for r in range(2)))
    seen = json.loads((tmp_path / "seen.json").read_text())
    for name in ("pickle", "broadcast pickle", "garbage", "broadcast garbage"):
        assert seen[name].startswith("TrainingError: rank 1 (")
        assert ") sent a message that cannot be read: " in seen[name]
    for name in ("others", "names"):
        assert seen[name].startswith("TrainingError: rank 1 (")
        assert "values of clients" in seen[name]
    assert seen["good"] == "{0: 0, 1: 'well'}"
    assert f"announced a message of {1 << 60} bytes; this machine takes at most" in seen["oversized"]
    assert not (tmp_path / "sprung").exists()
