"""Ray task of a study: one ``lightning-fl fit`` in a subprocess. Imports nothing heavy on the nodes."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1


def run_command(arguments: list[str], log: str, folder: str, environment: Mapping[str, str], stop: str) -> int:
    """Run ``lightning-fl ARGUMENTS`` in a subprocess; returns its exit code, negative for a signal.

    Its output is appended to ``log``; when the file ``stop`` appears, it is asked to finish its round and save it.
    """
    import ray

    with Path(log).open("ab") as file:
        node = ray.get_runtime_context().get_node_id()
        file.write(f"$ lightning-fl {' '.join(arguments)}\n# on Ray node {node}\n".encode())
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "lightning_fl", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=folder,
            env={**os.environ, **environment},
            preexec_fn=_die_with_parent,
        )
    asked = False
    while process.poll() is None:
        if not asked and Path(stop).exists():
            asked = True
            process.terminate()
        time.sleep(_POLL_SECONDS)
    return process.returncode


def _die_with_parent() -> None:
    """Kill the run with its task, since another task may resume the cell."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
