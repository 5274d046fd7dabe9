"""Messages between ranks, as bytes that can be read without running any code.

Values are packed as MessagePack (https://msgpack.org). Nothing is unpickled: the reader gets values of the types below
or an error, whatever the sender wrote.

================================  =======================================================
value                             in a message
================================  =======================================================
None, bool, int, float, str,      MessagePack's own types; an integer beyond 64 bits is an
bytes, list, dict                 extension, its hexadecimal text
tuple                             a list that begins with a mark
tensor, NumPy array and scalar    the mark with the name of the dtype, shape, raw bytes
dataclass with :func:`sendable`   the mark with the name of the class, values of its fields
================================  =======================================================

A mark is an extension, and its code says what the list is.
"""

from typing import Any, NamedTuple, TypeVar

import msgpack
import numpy as np
import torch
from torch import Tensor

C = TypeVar("C", bound=type)

_TUPLE, _INTEGER, _TENSOR, _ARRAY, _RECORD = range(5)
_TUPLE_MARK = msgpack.ExtType(_TUPLE, b"")
#: Name -> dataclass that :func:`sendable` registered.
_RECORDS: dict[str, Any] = {}


class _Mark(NamedTuple):
    code: int
    name: str


class MessageError(ValueError):
    """A value cannot be sent, or bytes are not a message."""


def sendable(kind: C) -> C:
    """Class decorator that lets a dataclass be sent; its reader does not run ``__init__``."""
    _RECORDS[kind.__qualname__] = kind
    return kind


def encode(value: Any) -> bytes:
    """Pack a value of the table above; others are a MessageError. Subclasses of plain types are sent as those."""
    try:
        return msgpack.packb(value, default=_plain, strict_types=True, unicode_errors="surrogatepass")
    except MessageError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise MessageError(f"cannot send a value to other processes: {str(error).rstrip('.')}.") from error


def decode(message: bytes | bytearray | memoryview) -> Any:
    """Unpack a message of :func:`encode` (else MessageError); types and tensors' bits are those of the value."""
    try:
        return msgpack.unpackb(
            message, strict_map_key=False, unicode_errors="surrogatepass", ext_hook=_extension, list_hook=_restored
        )
    except Exception as error:  # damaged bytes can raise anything
        raise MessageError(f"not a message of this package ({type(error).__name__}: {error}).") from error


def _plain(value: Any) -> Any:
    """Convert what MessagePack does not know to a list with a mark, an extension or a plain type."""
    kind = type(value)
    if kind is tuple or kind is torch.Size:
        return [_TUPLE_MARK, *value]
    if _RECORDS.get(kind.__qualname__) is kind:
        return [msgpack.ExtType(_RECORD, kind.__qualname__.encode()), *vars(value).values()]
    if isinstance(value, Tensor):
        return _parts(_TENSOR, value)
    if isinstance(value, np.ndarray | np.generic):
        return _parts(_ARRAY, torch.from_numpy(np.array(value)))
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return msgpack.ExtType(_INTEGER, format(value, "x").encode())
    plains: tuple[type[Any], ...] = (int, float, str, bytes, dict, list)
    for plain in plains:
        if isinstance(value, plain):
            return plain(value)
    allowed = "only numbers, strings, lists, tuples, dicts, tensors and arrays of numbers"
    raise MessageError(f"cannot send a {kind.__module__}.{kind.__qualname__} to other processes: {allowed}.")


def _parts(code: int, tensor: Tensor) -> list[Any]:
    if tensor.layout != torch.strided or tensor.is_meta:
        raise MessageError(f"cannot send a {tensor.layout} tensor of {tensor.dtype} to other processes: make it dense.")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    mark = msgpack.ExtType(code, str(tensor.dtype).removeprefix("torch.").encode())
    return [mark, list(tensor.shape), flat.view(torch.uint8).numpy().data]


def _extension(code: int, data: bytes) -> Any:
    return int(data, 16) if code == _INTEGER else _Mark(code, data.decode())


def _restored(items: list[Any]) -> Any:
    """The value of a list with a mark; any other list as it is."""
    if not items or type(items[0]) is not _Mark:
        return items
    (code, name), *content = items
    if code == _TUPLE:
        return tuple(content)
    if code == _RECORD:
        made = object.__new__(kind := _RECORDS[name])
        made.__dict__.update(zip(kind.__dataclass_fields__, content, strict=True))
        return made
    if code not in (_TENSOR, _ARRAY):
        raise MessageError(f"unknown extension {code}")
    shape, raw = content
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise MessageError(f"{name!r} is not a dtype")
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    return tensor if code == _TENSOR else tensor.numpy()[()]
