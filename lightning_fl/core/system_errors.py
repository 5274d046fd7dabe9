"""What the machine refuses, in words: memory, disks, processes, ports, and what else the system or torch may say no to.

The one place that knows these errors: an error of a user's code, or a mistake of this package's, is neither.
"""

import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator

__all__ = ["breaks_device", "chain", "out_of_memory", "place_of", "refusal"]

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib"))

_MEMORY = (
    "out of memory ({}): make the model, data.batch_size or trainer.stacked_clients smaller, or run fewer processes"
    " (trainer.devices)."
)
_DISK = "no space left on the disk, or in the quota ({}): free some, or set trainer.default_root_dir to another disk."
_STARTS = (
    "the system starts no further thread or process ({}): lower trainer.devices, trainer.num_threads or the data's"
    " num_workers, or raise the limit (ulimit -u)."
)
_FILES = (
    "too many files are open ({}): raise the limit (ulimit -n), or lower trainer.devices or the data's num_workers."
)
_SHARED = "shared memory failed ({}): make /dev/shm larger, or set the data's num_workers to 0."
_WRITE = "the system does not allow it ({}): give a place that can be read and written."
_PORT = "a port cannot be opened ({}): another program listens there; set MASTER_PORT to a free one for all ranks."
_PEER = "a connection broke ({}): another process of the run, or another machine, is gone; its output says why."
_WORKER = (
    "a worker that loads data was ended ({}): if nobody ended it, the system did for want of memory; lower the data's"
    " num_workers or data.batch_size."
)
_DEEP = "something is nested too deeply for Python ({}): look for a recipe or a module that contains itself."
_LIBRARY = "a library cannot be loaded on this machine ({}): install it again, for this Python and this system."
_GPU = "the GPU refuses to go on ({}): look what nvidia-smi says, or set trainer.accelerator=cpu."

_ASSERT = (
    "the GPU refuses to go on ({}): a label or an index is out of range, most often; trainer.accelerator=cpu, or"
    " CUDA_LAUNCH_BLOCKING=1 in the environment, tells the line."
)

#: What leaves a GPU's context, and so this process, unable to compute anything more.
_BREAKS = re.compile(
    r"CUDA error|device-side assert|NCCL error|unspecified launch failure"
    r"|CUDNN_STATUS_(INTERNAL_ERROR|EXECUTION_FAILED|MAPPING_ERROR|NOT_INITIALIZED)",
    re.I,
)
_NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|cannot allocate memory|unable to allocate|bad_alloc"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
    re.I,
)

#: What the system says, by its number; every other one is answered with the file's name.
_BY_NUMBER = {
    errno.ENOMEM: _MEMORY,
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
    errno.EFBIG: _DISK,
    errno.EAGAIN: _STARTS,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EACCES: _WRITE,
    errno.EPERM: _WRITE,
    errno.EROFS: _WRITE,
    errno.EADDRINUSE: _PORT,
    errno.EADDRNOTAVAIL: _PORT,
    errno.ECONNRESET: _PEER,
    errno.ECONNREFUSED: _PEER,
    errno.ECONNABORTED: _PEER,
    errno.ENOTCONN: _PEER,
    errno.EHOSTUNREACH: _PEER,
    errno.ENETUNREACH: _PEER,
    errno.ETIMEDOUT: _PEER,
}

#: What torch and others say in words of their own.
_BY_WORDS = {
    _NO_MEMORY.pattern: _MEMORY,
    r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed|file write failed": _DISK,
    r"can't start new thread|thread constructor failed|Resource temporarily unavailable": _STARTS,
    r"Too many open files": _FILES,
    r"DataLoader worker .*(exited|killed)": _WORKER,
    r"shared memory|shm_open|Bus error|torch_shm": _SHARED,
    r"address already in use|failed to listen": _PORT,
    r"Connection (reset|closed|refused|aborted)|gloo.*(timed out|error)|Broken pipe|Socket Timeout": _PEER,
    r"cannot open shared object file|undefined symbol|version `?\w+_[\d.]+'? not found": _LIBRARY,
    r"device-side assert": _ASSERT,
    r"CUDA error|NCCL error|CUDNN_STATUS|no kernel image": _GPU,
}


def refusal(error: BaseException) -> str | None:
    """What the machine refused, and the mend.

    Args:
        error: as raised; what caused it counts as well.

    Returns:
        A sentence, or ``None`` for an error of another kind.
    """
    return next((said for each in chain(error) if (said := _said(each)) is not None), None)


def _said(error: BaseException) -> str | None:
    text = _first_line(error)
    if isinstance(error, MemoryError):
        return _MEMORY.format(text)
    if isinstance(error, RecursionError):
        return _DEEP.format(text)
    if isinstance(error, OSError) and error.errno is not None:
        known = _BY_NUMBER.get(error.errno)
        named = f"{text}: look at this file or folder." if error.filename else None
        return named if known is None else known.format(text)
    if isinstance(error, (OSError, RuntimeError, ImportError, EOFError)):
        whole = str(error)
        return next((said.format(text) for words, said in _BY_WORDS.items() if re.search(words, whole, re.I)), None)
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was lacking, a GPU's or this machine's: with less to do, work can go on.

    Args:
        error: as raised; what caused it counts as well.
    """
    return any(_lacks_memory(each) for each in chain(error))


def breaks_device(error: BaseException) -> bool:
    """Whether a GPU can compute nothing more in this process: after some errors of CUDA every call raises them again.

    Args:
        error: as raised; what caused it counts as well.
    """
    return any(
        not _lacks_memory(each)
        and (
            _is_torch_s(each, "AcceleratorError")
            or (isinstance(each, RuntimeError) and _BREAKS.search(str(each)) is not None)
        )
        for each in chain(error)
    )


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or _is_torch_s(error, "OutOfMemoryError"):
        return True
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def _is_torch_s(error: BaseException, name: str) -> bool:
    """Whether it is an error of a class of torch's; commands that need no torch do not import it for this."""
    kind = getattr(sys.modules.get("torch"), name, None)
    return isinstance(kind, type) and isinstance(error, kind)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it or was handled when it was raised, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else "")
    # torch's begin with a place of its own: "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: ..."
    line = re.sub(r"^\[[^\]]*\]\s*(err == 0\.\s*)?:?\s*", "", (str(error).strip().splitlines() or [""])[0])
    return line.rstrip(".")[:200] or type(error).__name__


def place_of(error: BaseException, package: str = "") -> str:
    """Where in the user's code an error was raised: ``" (model.py, line 12, in training_step)"``, or nothing.

    It is the innermost line outside of installed packages, or else of a package that the user chose.

    Args:
        error: as raised.
        package: that the user's module is from.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN)]
    users = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<frozen", "<string"))]
    if not users and package:
        users = [frame for frame in frames if f"{os.sep}{package}" in frame.filename]
    if not users:
        return ""
    frame = users[-1]
    inside = os.path.relpath(frame.filename)
    path = frame.filename if inside.startswith(os.pardir) else inside
    return f" ({path}, line {frame.lineno}, in {frame.name})"
