"""Reading of SMILES in several processes."""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue

from lightning_fl.core.errors import DataError
from lightning_fl.data.molecules import codes
from lightning_fl.data.molecules.codes import Codes, read_codes

_BLOCK = 256
#: Number of molecules, 1 s of work, from which further processes are started.
_PARALLEL_FROM = 5000
#: Each takes 100 MB.
_MAX_WORKERS = 8


def read_blocks(smiles: Iterable[str], workers: int | None = None) -> Iterator[Codes]:
    """Read molecules in their order, lazily, one block at a time.

    ``workers`` counts the processes, this one included; ``None``: one per core of this rank, or one for few molecules.
    """
    texts = iter(smiles)
    if workers is None:
        first = list(islice(texts, _PARALLEL_FROM))
        workers = 1 if len(first) < _PARALLEL_FROM else _count_own_cores()
        texts = chain(first, texts)
    blocks = _blocks(texts)
    return map(read_codes, blocks) if workers == 1 else _read_in_parallel(blocks, workers - 1)


def _blocks(texts: Iterator[str]) -> Iterator[list[str]]:
    while block := list(islice(texts, _BLOCK)):
        yield block


def _count_own_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    return max(1, min(cores // ranks, _MAX_WORKERS))


def _read_in_parallel(blocks: Iterator[list[str]], num_processes: int) -> Iterator[Codes]:
    """Read in further processes, and in this one while all of them have enough to do."""
    processes: list[subprocess.Popen[bytes]] = []
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    pending: deque[Future[Codes]] = deque()
    pool = ThreadPoolExecutor(num_processes)
    try:
        for _ in range(num_processes):
            processes.append(_start())
            idle.put(processes[-1])
        for block in blocks:
            if sum(not future.done() for future in pending) < 2 * num_processes:
                pending.append(pool.submit(_read_remotely, idle, block))
            else:
                pending.append(Future())
                pending[-1].set_result(read_codes(block))
            while pending and pending[0].done():
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # an interrupt, too
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        pool.shutdown()
        for process in processes:
            process.communicate()


def _start() -> subprocess.Popen[bytes]:
    # -P: files next to this one have the names of standard modules. A new session: Ctrl-C must reach only this process,
    # which then ends the others.
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(codes.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def _read_remotely(idle: "SimpleQueue[subprocess.Popen[bytes]]", block: list[str]) -> Codes:
    process = idle.get()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(block).encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = b""
    finally:
        idle.put(process)  # a dead one too, so that no thread waits for it forever
    if not answer.endswith(b"\n"):
        raise DataError(
            f"a process that reads molecules ended with exit code {process.wait()}; see its output above. If it ran out"
            " of memory, allow fewer processes (taskset, or the cores of the job)."
        )
    return Codes.of_line(answer)
