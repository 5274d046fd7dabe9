"""What a study's Ray task does: one ``lightning-fl fit`` in a process of its own. Imports nothing heavy."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["run_words"]

_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1


def run_words(
    words: list[str], log: str, folder: str, environment: Mapping[str, str], stop: str, node: str = ""
) -> int:
    """Run ``lightning-fl WORDS``; returns its exit code, negative for a signal.

    Args:
        words: the words.
        log: where its output is added.
        folder: the working directory.
        environment: what is set besides the node's own.
        stop: a file; once it is there, the run is asked to finish its round and save it.
        node: the node's name, for the log.
    """
    with Path(log).open("ab") as file:
        file.write(f"$ lightning-fl {' '.join(words)}\n# on Ray node {node}\n".encode())
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "lightning_fl", *words],
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
    """A run must not outlive its task: another one may take up its cell."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
