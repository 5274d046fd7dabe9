"""Safe reading of tensor and array files.

Any bytes give plain values, tensors and arrays, or one error that names the file; no code in a file runs.
``torch.save`` writes a zip archive with a CRC-32 checksum per record, which ``torch.load`` ignores. It is verified
here, so that a flipped bit is detected.
"""

import hashlib
import io
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from filelock import FileLock
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.core.errors import CheckpointError, DataError, FederatedError
from lightning_fl.files.atomic import remove_leftovers, whole_file

T = TypeVar("T")

#: Classes that restore NumPy numbers and arrays: a schedule computed with NumPy gives NumPy learning rates.
NUMPY: list[Any] = [
    np.dtype,
    np.ndarray,
    np.float64(0).__reduce__()[0],
    np.zeros(1).__reduce__()[0],
    *{type(np.dtype(kind)) for kind in "?bhilqBHILQefdFD"},
]

_ZIP = b"PK\x03\x04"


def read_torch(
    path: Path | str,
    kind: str,
    remedy: str,
    *,
    error: type[FederatedError] = CheckpointError,
    place: str | None = None,
    known: Sequence[Any] = (),
) -> Any:
    """Load a file that ``torch.save`` wrote to the CPU: plain values and tensors.

    ``kind`` (such as "a checkpoint"), ``remedy`` and ``place`` (by default the path) are for the message of ``error``,
    raised if the file cannot be read, is of another kind, is damaged, or holds objects of classes not ``known``.
    """
    path = Path(path)
    try:
        _expect_file(path)
        _check_archive(path)
        with torch.serialization.safe_globals(list(known)), warnings.catch_warnings():
            # For a pickle, which is refused: torch suggests to load it unsafely.
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as found:  # corrupt bytes can raise anything; no code in the file runs
        raise error(f"{place or path} is damaged or not {kind} ({_reason(found)}). {remedy}") from found


def read_numpy(
    path: Path | str,
    kind: str,
    remedy: str,
    *,
    error: type[FederatedError],
    place: str | None = None,
    prefixes: tuple[str, ...] | None = None,
) -> dict[str, np.ndarray]:
    """Load the arrays of a ``.npz`` file by name, or the array of a ``.npy`` file under "".

    The arguments are those of :func:`read_torch`, except that ``remedy`` is the second half of a sentence, and
    ``prefixes`` are beginnings of the names to read from a ``.npz`` file; ``None`` to read a ``.npy`` file.
    """
    path = Path(path)
    try:
        _expect_file(path)
        with path.open("rb") as file:
            if not file.read(6).startswith((_ZIP, b"PK\x05\x06", b"\x93NUMPY")):  # NumPy would take it for a pickle
                raise _Unreadable("it was not written by numpy")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray) is not (prefixes is None):
                raise _Unreadable(f"it holds {'several arrays' if prefixes is None else 'a single array'}")
            if prefixes is None:
                return {"": loaded}
            arrays = {name: loaded[name] for name in loaded.files if name.startswith(prefixes)}
        if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise _Unreadable(f"{strange[0]!r} in it is not an array")
        return arrays
    except Exception as found:  # as above
        raise error(f"{place or path} cannot be read as {kind} ({_reason(found)}): {remedy}") from found


def unreadable_part(content: dict[str, Any], known: Sequence[Any] = ()) -> tuple[str, str] | None:
    """Find an object that :func:`read_torch` would refuse: its place and class; ``None`` if there is none."""
    if _refused(content, known) is None:
        return None
    for name, value in content.items():
        if (kind := _refused(value, known)) is not None:
            parts = value.items() if isinstance(value, dict) else ()
            inner = next((f" of {key}" for key, part in parts if _refused(part, known) is not None), "")
            return f"{name}{inner}", kind
    return None


def _refused(value: Any, known: Sequence[Any]) -> str | None:
    """Class of an object in a value that would be refused, or ``None``."""
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    try:
        with torch.serialization.safe_globals(list(known)):
            torch.load(stream, weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        return named[1] if named else type(value).__name__
    return None


def load_or_compute(cache: Path | None, kind: str, smiles: Sequence[str], compute: Callable[[], T]) -> T:
    """Load a value of some molecules from a folder (``None`` for none), or compute and store it.

    Warns of a damaged entry, which is computed again, and of a folder that cannot be written, which is not used. The
    ``kind`` of value, RDKit's version and the molecules are the key of the entry; ``compute`` returns tensors and plain
    values, as ``torch.save`` stores them without classes.
    """
    if cache is None:
        return compute()
    import rdkit

    key = hashlib.sha256(json.dumps([f"{kind}, rdkit {rdkit.__version__}", list(smiles)]).encode()).hexdigest()
    path, lock = cache / f"{key}.pt", FileLock(cache / f"{key}.lock")
    with suppress(OSError, NotImplementedError):  # writing the entry reports what is wrong with the folder
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            lock.acquire()  # of several processes one computes it
    try:
        value: T | None = _read_entry(path)
        if value is None:
            value = compute()
            _write_entry(path, value)
    finally:
        if lock.is_locked:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()
    return value


def _read_entry(path: Path) -> Any:
    try:
        if path.exists():
            return read_torch(path, "a file of features", "They are computed again.", error=DataError)
    except PermissionError:
        pass  # writing the entry reports it
    except DataError as error:
        rank_zero_warn(f"cached features {path} are damaged ({type(error).__name__}) and are computed again.")
    return None


def _write_entry(path: Path, value: object) -> None:
    content = io.BytesIO()  # in memory first: torch.save hides errors of the disk behind its own
    torch.save(value, content)
    try:
        remove_leftovers(path.parent)
        with whole_file(path, by_several=True) as file:
            file.write(content.getbuffer())
    except OSError as error:
        rank_zero_warn(f"cannot cache features in {path.parent} ({error}): make LIGHTNING_FL_CACHE a writable folder.")


class _Unreadable(ValueError):
    """Reason for refusing a file, for the message."""


def _expect_file(path: Path) -> None:
    """Refuse pipes, which block, and devices, which never end."""
    if path.exists() and not path.is_file():
        raise _Unreadable("it is not a file")


def _check_archive(path: Path) -> None:
    """Verify the checksums of a torch archive."""
    with path.open("rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            raise _Unreadable("it was not written by torch.save of torch 1.6 or newer")
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        # torch never compresses: a record that expands could fill the memory.
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise _Unreadable("its records are compressed, which torch.save never does")
        # Archives without checksums (torch.serialization.set_crc32_options) have zeros instead.
        if any(record.CRC for record in records) and (name := archive.testzip()) is not None:
            raise _Unreadable(f"the checksum of its record {name.rpartition('/')[2]!r} does not match")


def _reason(error: Exception) -> str:
    """Reason that a file cannot be read, without the texts of torch and NumPy, which suggest unsafe loading."""
    match error:
        case _Unreadable():
            return str(error)
        case OSError():
            return error.strerror or type(error).__name__
        case pickle.UnpicklingError():
            return "it holds more than values and tensors, which is never loaded"
        case MemoryError():
            return "it needs more memory than available"
        case ValueError() if "Object arrays" in str(error):
            return "it holds Python objects, which are never loaded"
    return "a checksum in it does not match" if "CRC" in str(error) else "truncated or corrupt"
