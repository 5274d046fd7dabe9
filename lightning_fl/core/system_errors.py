"""What the system or a device refused, by type and number of an error, as sentences that say what to do."""

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

#: Errors of memory have many types and one number: the only ones that are known by their texts.
_NO_MEMORY = re.compile(r"(allocate|enough|of) memory|unable to allocate|bad_alloc|STATUS_ALLOC_FAILED", re.I)

_MEMORY = (
    "out of memory ({}): make the model, data.batch_size or trainer.stacked_clients smaller, or run fewer processes"
    " (trainer.devices)."
)
_STARTS = (
    "cannot start another thread or process ({}): lower trainer.devices, trainer.num_threads or the data's num_workers,"
    " or raise the limit (ulimit -u)."
)
_GPU = (
    "the GPU failed ({}): see nvidia-smi, or set trainer.accelerator=cpu, which names the line if a label or index is"
    " out of range."
)
_DISK = "no space left on the disk, or in the quota ({}): free some, or set trainer.default_root_dir to another disk."
_BY_NUMBER = {
    "ENOMEM": _MEMORY,
    "EAGAIN": _STARTS,
    **dict.fromkeys(("ENOSPC", "EDQUOT", "EFBIG"), _DISK),
    **dict.fromkeys(
        ("EMFILE", "ENFILE"),
        "too many files are open ({}): raise ulimit -n, or lower trainer.devices or the data's num_workers.",
    ),
    **dict.fromkeys(
        ("EACCES", "EPERM", "EROFS"), "the system does not allow it ({}): choose a place that can be read and written."
    ),
    **dict.fromkeys(
        ("EADDRINUSE", "EADDRNOTAVAIL"),
        "a port cannot be opened ({}): another program listens there; set MASTER_PORT to a free one for all ranks.",
    ),
    **dict.fromkeys(
        ("ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "ENOTCONN", "EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT"),
        "a connection broke ({}): another process or machine of the run is gone; its output has the reason.",
    ),
}


def refusal(error: BaseException) -> str | None:
    """Describe what the system refused and what to do.

    Returns:
        A sentence, or ``None`` for an error of another kind.
    """
    return next((found for each in chain(error) if (found := _refusal(each)) is not None), None)


def _refusal(error: BaseException) -> str | None:
    line = _first_line(error)
    if _lacks_memory(error):
        return _MEMORY.format(line)
    if _breaks_device(error):
        return _GPU.format(line)
    if isinstance(error, RecursionError):
        return f"something is nested too deeply for Python ({line}): look for a recipe or module that contains itself."
    if type(error) is RuntimeError and line == "can't start new thread":
        return _STARTS.format(line)
    if isinstance(error, OSError) and error.errno is not None:
        known = _BY_NUMBER.get(errno.errorcode.get(error.errno, ""))
        return known.format(line) if known else f"{line}: look at this file or folder." if error.filename else None
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether memory of a GPU or the machine was lacking, so that smaller work can continue; causes count as well."""
    return any(map(_lacks_memory, chain(error)))


def breaks_device(error: BaseException) -> bool:
    """Whether a GPU can compute nothing more in this process, which is so after most errors of CUDA; causes count."""
    return any(map(_breaks_device, chain(error)))


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, *_torch_errors("OutOfMemoryError"))):
        return True
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def _breaks_device(error: BaseException) -> bool:
    lost = _torch_errors("AcceleratorError", "distributed.DistBackendError")
    return isinstance(error, lost) and not _lacks_memory(error)


def _torch_errors(*names: str) -> tuple[type[BaseException], ...]:
    """Error classes of torch; none if it is not imported, as in commands that do not need it."""
    kinds = []
    for name in names:
        place, _, last = name.rpartition(".")
        kind = getattr(sys.modules.get(f"torch.{place}".rstrip(".")), last, None)
        kinds += [kind] if isinstance(kind, type) else []
    return tuple(kinds)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause or context, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else "")
    # torch begins with a place of its own: "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: ..."
    line = re.sub(r"^\[[^\]]*\]\s*(err == 0\.\s*)?:?\s*", "", (str(error).strip().splitlines() or [""])[0])
    return line.rstrip(".")[:200] or type(error).__name__


def place_of(error: BaseException, package: str = "") -> str:
    """Return the innermost line of user code: ``" (model.py, line 12, in training_step)"``, or an empty string.

    Args:
        error: as raised.
        package: installed package of the user's module, which counts as user code if nothing else does.
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
