"""Files of tensors and arrays, read without running any code from them.

Whatever bytes a file holds, reading it gives plain values, tensors and arrays or one error that names the file. torch
packs what it saves as a zip archive with a checksum (CRC-32) of every record, which its own reader never looks at; here
it is compared, so that a flipped bit is noticed wherever it lies.
"""

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_fl.core.errors import CheckpointError, FederatedError
from lightning_fl.files.user_file import foreign_content

__all__ = ["NUMPY", "read_numpy", "read_torch", "unreadable_part"]

#: What numpy's numbers and arrays are made of again: learning rates are numpy's where a schedule is computed with it.
NUMPY: list[Any] = [
    np.dtype,
    np.ndarray,
    np.float64(0).__reduce__()[0],
    np.zeros(1).__reduce__()[0],
    *{type(np.dtype(kind)) for kind in "?bhilqBHILQefdFD"},
]

_ZIP = b"PK\x03\x04"
#: Bytes that tell what kind of file it is.
_HEAD_BYTES = 512


def read_torch(
    path: Path | str,
    what: str,
    mend: str,
    *,
    error: type[FederatedError] = CheckpointError,
    place: str | None = None,
    known: Sequence[Any] = (),
    legacy: bool = False,
) -> Any:
    """What ``torch.save`` wrote, on the CPU: plain values and tensors.

    Args:
        path: the file.
        what: messages call it, such as "a checkpoint".
        mend: what is to be done if it cannot be read, a sentence.
        error: what is raised.
        place: what messages call the file; ``None`` for its path.
        known: further classes of which it may hold objects.
        legacy: also read what torch before 1.6 wrote, which has no checksums.

    Raises:
        FederatedError: of the class ``error``: the file cannot be read, is of another kind or damaged, or holds more
            than values.
    """
    path = Path(path)
    try:
        _expect_file(path)
        packed = _check_archive(path)
        if not (packed or legacy):
            raise _Unreadable("it was not written by torch.save")
        with torch.serialization.safe_globals(list(known)), warnings.catch_warnings():
            # Of a file of pickle's, which is refused: it advises to load it unsafely.
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as found:  # damaged bytes lead to anything; none of it comes from code in the file
        raise error(f"{place or path} is damaged or not {what} ({_reason(found)}). {mend}") from found


def read_numpy(
    path: Path | str,
    what: str,
    mend: str,
    *,
    error: type[FederatedError],
    place: str | None = None,
    prefixes: tuple[str, ...] | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file by their names, or of a ``.npy`` file its one under "".

    Args:
        path: the file.
        what: messages call it, such as ".npz".
        mend: what is to be done if it cannot be read, a sentence's second half.
        error: what is raised.
        place: what messages call the file; ``None`` for its path.
        prefixes: a ``.npz`` file is expected, whose arrays with names that begin so are read; ``None`` for a single
            array.

    Raises:
        FederatedError: of the class ``error``: the file cannot be read, is of another kind or damaged, or holds Python
            objects.
    """
    path = Path(path)
    try:
        _expect_file(path)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if not head.startswith((_ZIP, b"PK\x05\x06", b"\x93NUMPY")):  # numpy would take it for a pickle
                raise _Unreadable(foreign_content(head) or "it was not written by numpy")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray) is not (prefixes is None):
                raise _Unreadable(f"it holds {'several arrays' if prefixes is None else 'a single array'}")
            if prefixes is None:
                return {"": loaded}
            arrays = {name: loaded[name] for name in loaded.files if name.startswith(prefixes)}
        if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise _Unreadable(f"{strange[0]!r} in it is no array")
        return arrays
    except Exception as found:  # as above
        raise error(f"{place or path} cannot be read as {what} ({_reason(found)}): {mend}") from found


def unreadable_part(content: dict[str, Any], known: Sequence[Any] = ()) -> tuple[str, str] | None:
    """Where a dict holds what :func:`read_torch` would refuse, and the name of its class; ``None`` for nowhere.

    Args:
        content: dicts in it are looked through one level deep.
        known: as in :func:`read_torch`.
    """
    for name, value in content.items():
        kind = _refused(value, known)
        if kind is None:
            continue
        parts = value.items() if isinstance(value, dict) else ()
        inner = next((key for key, part in parts if _refused(part, known) is not None), None)
        return f"{name}{'' if inner is None else f' of {inner}'}", kind
    return None


def _refused(value: Any, known: Sequence[Any]) -> str | None:
    """The class of an object in a value that would not be read again."""
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


class _Unreadable(ValueError):
    """Why a file is not read, in words of our own."""


def _expect_file(path: Path) -> None:
    """Refuse what is no file: a pipe would be waited for, a device read for ever."""
    if path.exists() and not path.is_file():
        raise _Unreadable("it is no file")


def _check_archive(path: Path) -> bool:
    """Whether a file is an archive of torch's, whose checksums hold.

    Archives without checksums (``torch.serialization.set_crc32_options``) bear zeros in their place.
    """
    with path.open("rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            return False
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        # torch packs nothing together: what claims to be larger than the file would fill the memory.
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise _Unreadable("its records are compressed, which torch.save never does")
        if any(record.CRC for record in records) and (name := archive.testzip()) is not None:
            raise _Unreadable(f"the checksum of its record {name.rpartition('/')[2]!r} does not hold")
    return True


def _reason(error: Exception) -> str:
    """Why a file cannot be read. What torch and numpy say is not passed on: they advise to load unsafely."""
    if isinstance(error, _Unreadable):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than values and tensors, which is never loaded"
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    if isinstance(error, zipfile.BadZipFile) and "CRC" in str(error):
        return "a checksum in it does not hold"
    if isinstance(error, ValueError) and "Object arrays" in str(error):
        return "it holds Python objects, which are never loaded"
    return "its bytes are cut off or garbled"
