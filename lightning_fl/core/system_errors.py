"""Messages for errors of the system or a device, with what to do."""

import errno
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Files of Python and installed packages; an environment may lie on top of another.
_LIBRARIES = re.compile(
    rf"{re.escape(sysconfig.get_path('stdlib'))}[/\\]|<frozen|<string|.*[/\\](site|dist)-packages[/\\]"
)

#: Errors of memory have many types and one number: the only ones that are known by their texts.
_NO_MEMORY = re.compile(r"(allocate|enough|of) memory|unable to allocate|bad_alloc|STATUS_ALLOC_FAILED", re.I)
_MEMORY = "make the model, data.batch_size or trainer.stacked_clients smaller, or lower trainer.devices."
_GPU = "see nvidia-smi, or set trainer.accelerator=cpu, which names the line if a label or index is out of range."
_FEWER = "lower trainer.devices, trainer.num_threads or the data's num_workers, or raise the limit (ulimit -{})."
_DISK = "free some space, or set trainer.default_root_dir to another disk."
_ALLOWED = "choose a place that can be read and written."
_GONE = "another process or machine of the run is gone; its output has the reason."
_REMEDIES: dict[int | None, str] = {
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: _FEWER.format("u"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FEWER.format("n")),
    **dict.fromkeys((errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", None)), _DISK),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _ALLOWED),
    **dict.fromkeys((errno.ECONNRESET, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH), _GONE),
    **dict.fromkeys((errno.EADDRINUSE, errno.EADDRNOTAVAIL), "set MASTER_PORT to a free port for all ranks."),
}


def refusal(error: BaseException) -> str | None:
    """What the system refused and what to do, as a sentence; ``None`` for an error of another kind."""
    for each in chain(error):
        line = (str(each).strip().splitlines() or [type(each).__name__])[0]
        line = re.sub(r"^\[[^\]]*\]\s*(err == 0\.)?[\s:.]*", "", line)[:200]  # the place in torch's own code
        if _lacks_memory(each):
            return f"out of memory ({line.rstrip('.')}): {_MEMORY}"
        if _breaks_device(each):
            return f"the GPU failed ({line.rstrip('.')}): {_GPU}"
        if isinstance(each, RecursionError):
            return f"{line}: look for a recipe or module that contains itself."
        if type(each) is RuntimeError and line == "can't start new thread":
            return f"{line}: {_REMEDIES[errno.EAGAIN]}"
        if isinstance(each, OSError) and each.strerror and (each.filename or each.errno in _REMEDIES):
            path = f": {os.fsdecode(each.filename)}" if isinstance(each.filename, str | bytes) else ""
            return f"{each.strerror}{path}: {_REMEDIES.get(each.errno, 'look at this file or folder.')}"
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether memory of a GPU or the machine was lacking, so that smaller work can continue; causes count as well."""
    return any(map(_lacks_memory, chain(error)))


def breaks_device(error: BaseException) -> bool:
    """Whether a GPU can compute nothing more in this process, which is so after most errors of CUDA; causes count."""
    return any(map(_breaks_device, chain(error)))


def _lacks_memory(error: BaseException) -> bool:
    known_by_text = isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    return known_by_text or isinstance(error, MemoryError)


def _breaks_device(error: BaseException) -> bool:
    """Known by the names of torch's classes, as commands that need no torch do not import it."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not _lacks_memory(error) and not names.isdisjoint(("AcceleratorError", "DistBackendError"))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause or context, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def place_of(error: BaseException, package: str = "") -> str:
    """Return the innermost line of user code: ``" (model.py, line 12, in training_step)"``, or an empty string."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN)]
    users = [frame for frame in frames if not _LIBRARIES.match(frame.filename)]
    users = users or [frame for frame in frames if package and f"{os.sep}{package}" in frame.filename]
    if not users:
        return ""
    path = min(os.path.relpath(users[-1].filename), users[-1].filename, key=len)
    return f" ({path}, line {users[-1].lineno}, in {users[-1].name})"
