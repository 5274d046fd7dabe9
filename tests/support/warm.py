"""A Python that has imported everything, and forks itself into what ``python WORDS`` would be.

``python warm.py CHANNEL`` reads requests from a socket until that is closed: words, environment, folder and cores as
JSON in a line, with three pipes for standard output, standard error, and the fork's number and exit code. It has one
thread only and has computed nothing, so that what a fork does is what a process of its own would do.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module, metadata
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).parent

#: What runs import, at the latest when they come to it.
MODULES = (
    "torch._dynamo",  # with the first step of an optimiser
    "tensorboard.plugins.hparams.api_pb2",
    "torch.utils.tensorboard",
    "torch_geometric.nn",
    "lightning.pytorch",
    "lightning_fl.callbacks",
    "lightning_fl.data",
    "lightning_fl.models",
    "lightning_fl.strategies",
    "lightning_fl.trainer.report",
    "matplotlib.pyplot",
    "pandas",
    "rdkit.Chem.Descriptors",
    "rdkit.Chem.Scaffolds.MurckoScaffold",
    "sklearn.datasets",
    "tiny",
    "corners",
)


def import_everything() -> None:
    """Import what runs need, and what making the command's parser needs."""
    metadata.entry_points, metadata.version = cache(metadata.entry_points), cache(metadata.version)  # as in conftest.py
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what dependencies say of each other
        for name in MODULES:
            import_module(name)
    import torch

    from lightning_fl.cli import main

    torch.set_num_threads(1)
    with redirect_stdout(StringIO()):
        assert main(["fit", "--config", "drflm_esol", "--print_config"]) == 0
    gc.collect()
    gc.freeze()  # what all forks share is not looked through, and so not copied, by each of them
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1, "a fork may wait for another thread"


def serve(channel: socket.socket) -> None:
    """Fork for every request, until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that were forked here
    while True:
        request, pipes, _, _ = socket.recv_fds(channel, 1 << 16, 3)
        while request and not request.endswith(b"\n"):
            request += channel.recv(1 << 16)
        if not request:
            return
        if not os.fork():
            channel.close()
            supervise(json.loads(request), *pipes)
        for pipe in pipes:
            os.close(pipe)


def supervise(request: dict[str, Any], out: int, err: int, told: int) -> NoReturn:
    """Fork once more, and tell the number of that fork and how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        os.close(told)
        become(request, out, err)
    os.close(out)
    os.close(err)
    os.write(told, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: dict[str, Any], out: int, err: int) -> NoReturn:
    """Be ``python WORDS`` from here on."""
    code: Any = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs the tests behind it
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # found anew, by this environment
        os.chdir(request["folder"])
        if request["cores"] is not None:
            os.sched_setaffinity(0, request["cores"])
        execute(*request["words"])
        code = 0
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    # As ``multiprocessing`` ends its forks: to take all modules apart would copy the memory that is shared.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def execute(first: str, *rest: str) -> None:
    """Do as Python does with its words: ``-m MODULE ...``, ``-c CODE ...`` or ``SCRIPT ...``."""
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(first).parent)
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    import_everything()
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # without taking apart all that was imported
