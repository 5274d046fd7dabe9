"""Messages between ranks, as bytes that can be read without running any code.

Values are packed as MessagePack (https://msgpack.org). Nothing is unpickled: the reader gets values of the types below
or an error, whatever the sender wrote.

================================  ==================================================
value                             in a message
================================  ==================================================
None, bool, int, float, str,      MessagePack's own types; integers beyond 64 bits
bytes, list, dict                 as hexadecimal text
tuple, set, frozenset, complex    an extension around a list
tensor, NumPy array and scalar    an extension: name of the dtype, shape, raw bytes
classes with :func:`sendable`     an extension: name of the class, list of its parts
================================  ==================================================
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import msgpack
import numpy as np
import torch
from torch import Tensor

__all__ = ["MAX_DEPTH", "MessageError", "decode", "encode", "sendable"]

C = TypeVar("C", bound=type)

#: Nested extensions in a message. MessagePack itself limits nested lists and dicts to a few hundred.
MAX_DEPTH = 32

_LENGTH_BYTES = 2  # of the header that holds a tensor's dtype and shape

_TUPLE, _SET, _FROZENSET, _COMPLEX, _INTEGER, _TENSOR, _ARRAY, _SCALAR, _RECORD = range(9)

#: Extension -> type, conversion to a list, conversion from a list.
_COLLECTIONS: dict[int, tuple[type, Callable[[Any], list[Any]], Callable[[list[Any]], Any]]] = {
    _TUPLE: (tuple, list, tuple),
    _SET: (set, list, set),
    _FROZENSET: (frozenset, list, frozenset),
    _COMPLEX: (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
}
_CODES = {kind: code for code, (kind, _, _) in _COLLECTIONS.items()}

_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2"),
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

#: Name -> class that :func:`sendable` registered.
_RECORDS: dict[str, Any] = {}
#: One packer per depth of extensions, created on first use: a packer cannot be used inside itself.
_PACKERS: list[msgpack.Packer] = []


class MessageError(ValueError):
    """A value cannot be sent, or bytes are not a message."""


def sendable(kind: C) -> C:
    """Class decorator that lets instances be sent.

    The class has ``to_plain()``, which returns a list of sendable values, and ``from_plain(list)``, which restores an
    instance and raises ``ValueError`` or ``TypeError`` for any other list.
    """
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
        return _pack(value, 0)
    except (ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(f"cannot send a value to other processes: {str(error).rstrip('.')}.") from error


def decode(message: bytes | bytearray | memoryview) -> Any:
    """Unpack a message; types and, for tensors, all bits equal those of the encoded value.

    Raises:
        MessageError: the bytes are not a message of :func:`encode`.
    """
    try:
        return _unpack(message, 0)
    except MessageError:
        raise
    except Exception as error:  # damaged bytes can raise anything
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise MessageError(f"not a message of this package ({reason}).") from error


def _pack(value: Any, depth: int) -> bytes:
    if depth == len(_PACKERS):
        if depth > MAX_DEPTH:
            raise MessageError(f"cannot send a value with more than {MAX_DEPTH} nested tuples.")
        _PACKERS.append(
            msgpack.Packer(
                default=lambda other: _extension(other, depth + 1), strict_types=True, unicode_errors="surrogatepass"
            )
        )
    packer = _PACKERS[depth]
    try:
        return packer.pack(value)
    except BaseException:
        packer.reset()
        raise


def _extension(value: Any, depth: int) -> Any:
    """Convert what MessagePack does not know to an extension or to a plain type."""
    kind = type(value)
    if (code := _CODES.get(kind)) is not None:
        return msgpack.ExtType(code, _pack(_COLLECTIONS[code][1](value), depth))
    if _RECORDS.get(kind.__qualname__) is kind:
        return msgpack.ExtType(_RECORD, _pack([kind.__qualname__, value.to_plain()], depth))
    if isinstance(value, Tensor):
        return msgpack.ExtType(_TENSOR, _tensor(value, depth))
    if isinstance(value, np.ndarray | np.generic):
        return msgpack.ExtType(_ARRAY if isinstance(value, np.ndarray) else _SCALAR, _array(np.asarray(value), depth))
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return msgpack.ExtType(_INTEGER, _pack(format(value, "x"), depth))
    plains: tuple[type[Any], ...] = (int, float, str, bytes, dict, list)
    for plain in plains:
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):  # torch.Size
        return _extension(tuple(value), depth)
    hint = " Convert a dataclass or named tuple to a dict." if is_dataclass(value) or isinstance(value, tuple) else ""
    raise MessageError(
        f"cannot send a {kind.__module__}.{kind.__qualname__} to other processes: only numbers, strings, lists,"
        f" tuples, dicts, sets, tensors and arrays of numbers.{hint}"
    )


def _tensor(tensor: Tensor, depth: int) -> bytes:
    name = _DTYPE_NAMES.get(tensor.dtype)
    if name is None or tensor.layout != torch.strided or tensor.is_meta:
        raise MessageError(f"cannot send a {tensor.layout} tensor of {tensor.dtype} to other processes: make it dense.")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return _with_header(name, list(tensor.shape), flat.view(torch.uint8).numpy(), depth)


def _array(array: np.ndarray, depth: int) -> bytes:
    if array.dtype.kind not in "biufc":
        raise MessageError(f"cannot send an array of {array.dtype} to other processes: only arrays of numbers.")
    return _with_header(array.dtype.str, list(array.shape), np.frombuffer(array.tobytes(), np.uint8), depth)


def _with_header(dtype: str, shape: list[int], content: np.ndarray, depth: int) -> bytes:
    """Length of the header, header, raw bytes."""
    header = _pack([dtype, shape], depth)
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "big"), header, content.data])


def _unpack(message: bytes | bytearray | memoryview, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise MessageError(f"more than {MAX_DEPTH} nested extensions.")
    return msgpack.unpackb(
        message,
        strict_map_key=False,
        unicode_errors="surrogatepass",
        ext_hook=lambda code, data: _restored(code, data, depth + 1),
    )


def _restored(code: int, data: bytes, depth: int) -> Any:
    if code in (_TENSOR, _ARRAY, _SCALAR):
        begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
        name, shape = _unpack(data[_LENGTH_BYTES:begin], depth)
        if code == _TENSOR:
            return _restored_tensor(name, shape, data, begin)
        array = _restored_array(name, shape, data, begin)
        return array if code == _ARRAY else array[()]
    content = _unpack(data, depth)
    if code == _INTEGER and isinstance(content, str):
        return int(content, 16)
    if not isinstance(content, list):
        raise MessageError(f"extension {code} holds a {type(content).__name__}.")
    if code == _RECORD:
        return _record(*content)
    if code in _COLLECTIONS:
        return _COLLECTIONS[code][2](content)
    raise MessageError(f"unknown extension {code}.")


def _record(name: str, content: list[Any]) -> Any:
    kind = _RECORDS.get(name)
    if kind is None or not isinstance(content, list):
        raise MessageError(f"object of class {str(name)[:40]!r}, which is never sent.")
    return kind.from_plain(content)


def _restored_tensor(name: str, shape: list[int], data: bytes, begin: int) -> Tensor:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise MessageError(f"tensor of unknown dtype {str(name)[:40]!r}.")
    _check_shape(shape, len(data) - begin, dtype.itemsize)
    if begin == len(data):
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=begin).copy()).view(dtype).reshape(shape)


def _restored_array(name: str, shape: list[int], data: bytes, begin: int) -> np.ndarray:
    dtype = np.dtype(str(name)[:8])
    if dtype.kind not in "biufc":
        raise MessageError(f"array of {dtype}, which is not a number.")
    _check_shape(shape, len(data) - begin, dtype.itemsize)
    return np.frombuffer(data[begin:], dtype).reshape(shape).copy()


def _check_shape(shape: list[int], num_bytes: int, itemsize: int) -> None:
    """Refuse a shape that does not match the bytes, before allocating it."""
    count = 1
    for size in shape:
        if type(size) is not int or not 0 <= size <= 1 << 62:
            raise MessageError("tensor with an invalid shape.")
        count *= size
    if len(shape) > 64 or count * itemsize != num_bytes:
        raise MessageError(f"tensor of shape {shape[:8]} in {num_bytes} bytes.")
