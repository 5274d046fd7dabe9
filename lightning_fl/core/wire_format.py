"""Messages between ranks, as bytes that can be read without running any code.

Values are packed as MessagePack (https://msgpack.org). Nothing is unpickled: the reader gets values of the types below
or an error, whatever the sender wrote.

================================  =======================================================
value                             in a message
================================  =======================================================
None, bool, int, float, str,      MessagePack's own types; integers beyond 64 bits
bytes, list, dict                 as hexadecimal text
tuple                             an extension around a list
tensor, NumPy array and scalar    an extension: name of the dtype, shape, raw bytes
dataclass with :func:`sendable`   an extension: name of the class, the values of its fields
================================  =======================================================
"""

from typing import Any, TypeVar

import msgpack
import numpy as np
import torch
from torch import Tensor

__all__ = ["MessageError", "decode", "encode", "sendable"]

C = TypeVar("C", bound=type)

_TUPLE, _INTEGER, _TENSOR, _ARRAY, _RECORD = range(5)
#: Name -> dataclass that :func:`sendable` registered.
_RECORDS: dict[str, Any] = {}


class MessageError(ValueError):
    """A value cannot be sent, or bytes are not a message."""


def sendable(kind: C) -> C:
    """Class decorator that lets a dataclass be sent; its reader does not run ``__init__``."""
    _RECORDS[kind.__qualname__] = kind
    return kind


def encode(value: Any) -> bytes:
    """Pack a value into a message.

    Args:
        value: see the table above. Tensors are dense. An instance of a subclass of a plain type is sent as that type.

    Raises:
        MessageError: the value holds another type or is nested too deep.
    """
    try:
        return _pack(value)
    except MessageError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise MessageError(f"cannot send a value to other processes: {str(error).rstrip('.')}.") from error


def decode(message: bytes | bytearray | memoryview) -> Any:
    """Unpack a message; types and, for tensors, all bits equal those of the encoded value.

    Raises:
        MessageError: the bytes are not a message of :func:`encode`.
    """
    try:
        return _unpack(message)
    except Exception as error:  # damaged bytes can raise anything
        raise MessageError(f"not a message of this package ({type(error).__name__}: {error}).") from error


def _pack(value: Any) -> bytes:
    return msgpack.packb(value, default=_extension, strict_types=True, unicode_errors="surrogatepass")


def _extension(value: Any) -> Any:
    """Convert what MessagePack does not know to an extension or to a plain type."""
    kind = type(value)
    if kind is tuple or kind is torch.Size:
        return msgpack.ExtType(_TUPLE, _pack(list(value)))
    if _RECORDS.get(kind.__qualname__) is kind:
        return msgpack.ExtType(_RECORD, _pack([kind.__qualname__, *vars(value).values()]))
    if isinstance(value, Tensor):
        return msgpack.ExtType(_TENSOR, _tensor(value))
    if isinstance(value, np.ndarray | np.generic):
        return msgpack.ExtType(_ARRAY, _tensor(torch.from_numpy(np.array(value))))
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return msgpack.ExtType(_INTEGER, _pack(format(value, "x")))
    plains: tuple[type[Any], ...] = (int, float, str, bytes, dict, list)
    for plain in plains:
        if isinstance(value, plain):
            return plain(value)
    raise MessageError(
        f"cannot send a {kind.__module__}.{kind.__qualname__} to other processes: only numbers, strings, lists, tuples,"
        " dicts, tensors and arrays of numbers. Convert a dataclass or named tuple to a dict, and a set to a list."
    )


def _tensor(tensor: Tensor) -> bytes:
    if tensor.layout != torch.strided or tensor.is_meta:
        raise MessageError(f"cannot send a {tensor.layout} tensor of {tensor.dtype} to other processes: make it dense.")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    name = str(tensor.dtype).removeprefix("torch.")
    return _pack([name, list(tensor.shape), flat.view(torch.uint8).numpy().data])


def _unpack(message: bytes | bytearray | memoryview) -> Any:
    return msgpack.unpackb(message, strict_map_key=False, unicode_errors="surrogatepass", ext_hook=_restored)


def _restored(code: int, data: bytes) -> Any:
    content = _unpack(data)
    if code == _INTEGER:
        return int(content, 16)
    if code == _TUPLE and isinstance(content, list):
        return tuple(content)
    if code == _RECORD:
        name, *values = content
        made = object.__new__(kind := _RECORDS[name])
        made.__dict__.update(zip(kind.__dataclass_fields__, values, strict=True))
        return made
    if code in (_TENSOR, _ARRAY):
        name, shape, raw = content
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise MessageError(f"{name!r} is not a dtype")
        flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        tensor = flat.reshape(shape)
        return tensor if code == _TENSOR else tensor.numpy()[()]
    raise MessageError(f"extension {code} around a {type(content).__name__}")
