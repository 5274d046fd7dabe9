"""``lightning-fl study`` whose fork server is a fork of this process, with all imported already (``warm.py``)."""

import contextlib
import os
import runpy
import signal
import threading
from collections.abc import Sequence
from multiprocessing import forkserver, util

_spawn = util.spawnv_passfds


def fork_the_server(path: bytes, arguments: Sequence[str], kept: Sequence[int]) -> int:
    """As ``multiprocessing`` starts its helpers, but the fork server without a new interpreter."""
    if "forkserver" not in arguments[-1]:
        return _spawn(path, arguments, kept)
    if pid := os.fork():
        return pid
    for number in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, *kept}:
        with contextlib.suppress(OSError):
            os.close(number)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    forkserver._forkserver._lock = threading.Lock()  # type: ignore[attr-defined]  # held by what starts the server
    with contextlib.suppress(SystemExit):
        exec(arguments[-1], {})
    os._exit(0)


if __name__ == "__main__":
    util.spawnv_passfds = fork_the_server  # type: ignore[attr-defined]
    runpy.run_module("lightning_fl", run_name="__main__", alter_sys=True)
