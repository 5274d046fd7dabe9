"""What ranks tell each other, as bytes that can be read without running any code.

Plain values and tensors in MessagePack (https://msgpack.org). Nothing is ever unpickled: who reads a message gets
values of the types below or an error, whatever the sender wrote.

================================  ==================================================
value                             in a message
================================  ==================================================
None, bool, int, float, str,      MessagePack's own; integers beyond 64 bits as text
bytes, list, dict
tuple, set, frozenset, complex    an extension around a list
tensor, numpy array and scalar    an extension: name of the dtype, shape, raw bytes
classes with :func:`sendable`     an extension: name of the class, what it is made of
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

#: Extensions inside each other, in a message. (Lists and dicts inside each other: a few hundred, MessagePack's limit.)
MAX_DEPTH = 32

_LENGTH_BYTES = 2  # of the length of what describes a tensor's bytes

_TUPLE, _SET, _FROZENSET, _COMPLEX, _INTEGER, _TENSOR, _ARRAY, _SCALAR, _RECORD = range(9)

_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2"),
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

#: Name -> the class.
_RECORDS: dict[str, Any] = {}


class MessageError(ValueError):
    """A value that cannot be sent, or bytes that are no message."""


def sendable(kind: C) -> C:
    """Let instances of a class be sent: a class decorator.

    The class has ``to_plain()``, which gives a list of what can be sent, and ``from_plain(list)``, which makes an
    instance again and raises a ``ValueError`` or ``TypeError`` where the list is none of these.
    """
    _RECORDS[kind.__qualname__] = kind
    return kind


def encode(value: Any) -> bytes:
    """A value as a message.

    Args:
        value: see the table above; tensors of any of torch's dtypes, dense. What derives from a plain type is sent as
            that type.

    Raises:
        MessageError: a value of another type is in it, or it is nested too deep.
    """
    try:
        return _pack(value, 0)
    except (ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(f"a value cannot be sent to other processes: {str(error).rstrip('.')}.") from error


def decode(message: bytes | bytearray | memoryview) -> Any:
    """The value of a message, equal in type and, of tensors, in every bit to what was encoded.

    Raises:
        MessageError: the bytes are no message of :func:`encode`'s.
    """
    try:
        return _unpack(message, 0)
    except MessageError:
        raise
    except Exception as error:  # whatever its bytes lead to
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise MessageError(f"it is no message of this package's ({reason}).") from error


# -- encoding ----------------------------------------------------------------------------------------------------

#: A packer for each depth of extensions, made when it is needed first: one cannot be used inside itself.
_PACKERS: list[msgpack.Packer] = []


def _pack(value: Any, depth: int) -> bytes:
    if depth == len(_PACKERS):
        if depth > MAX_DEPTH:
            raise MessageError(f"a value has more than {MAX_DEPTH} tuples inside each other.")
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
    """What MessagePack does not know, as an extension or as something that it knows."""
    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, _pack(list(value), depth))
    if _RECORDS.get(kind.__qualname__) is kind:
        return msgpack.ExtType(_RECORD, _pack([kind.__qualname__, value.to_plain()], depth))
    if isinstance(value, Tensor):
        return msgpack.ExtType(_TENSOR, _tensor(value, depth))
    if isinstance(value, np.ndarray | np.generic):
        return msgpack.ExtType(_ARRAY if isinstance(value, np.ndarray) else _SCALAR, _array(np.asarray(value), depth))
    for code, of_kind, as_list in _COLLECTIONS:
        if kind is of_kind:
            return msgpack.ExtType(code, _pack(as_list(value), depth))
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return msgpack.ExtType(_INTEGER, _pack(format(value, "x"), depth))
    plains: tuple[type[Any], ...] = (int, float, str, bytes, dict, list)
    for plain in plains:
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):  # torch.Size
        return _extension(tuple(value), depth)
    hint = " Spell a dataclass or a named tuple as a dict." if is_dataclass(value) or isinstance(value, tuple) else ""
    raise MessageError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be sent to other processes: only numbers, strings, lists,"
        f" tuples, dicts, sets, tensors and arrays of numbers can.{hint}"
    )


_COLLECTIONS: list[tuple[int, type, Callable[[Any], list[Any]]]] = [
    (_SET, set, list),
    (_FROZENSET, frozenset, list),
    (_COMPLEX, complex, lambda value: [value.real, value.imag]),
]


def _tensor(tensor: Tensor, depth: int) -> bytes:
    name = _NAMES.get(tensor.dtype)
    if name is None or tensor.layout != torch.strided or tensor.is_meta:
        raise MessageError(
            f"a {tensor.layout} tensor of {tensor.dtype} cannot be sent to other processes: make it dense."
        )
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return _raw(name, list(tensor.shape), flat.view(torch.uint8).numpy(), depth)


def _array(array: np.ndarray, depth: int) -> bytes:
    if array.dtype.kind not in "biufc":
        raise MessageError(f"an array of {array.dtype} cannot be sent to other processes: only arrays of numbers can.")
    return _raw(array.dtype.str, list(array.shape), np.frombuffer(array.tobytes(), np.uint8), depth)


def _raw(name: str, shape: list[int], content: np.ndarray, depth: int) -> bytes:
    """The length of what describes the bytes, the description, the bytes."""
    about = _pack([name, shape], depth)
    return b"".join([len(about).to_bytes(_LENGTH_BYTES, "big"), about, content.data])


# -- decoding ----------------------------------------------------------------------------------------------------


def _unpack(message: bytes | bytearray | memoryview, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise MessageError(f"it has more than {MAX_DEPTH} extensions inside each other.")
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
        raise MessageError(f"its extension {code} holds a {type(content).__name__}.")
    if code == _TUPLE:
        return tuple(content)
    if code == _RECORD:
        return _record(*content)
    if code in (_SET, _FROZENSET):
        return (set if code == _SET else frozenset)(content)
    if code == _COMPLEX:
        return complex(*content)
    raise MessageError(f"it has an extension {code}, which there is not.")


def _record(name: str, content: list[Any]) -> Any:
    kind = _RECORDS.get(name)
    if kind is None or not isinstance(content, list):
        raise MessageError(f"it has an object of class {str(name)[:40]!r}, of which none are sent.")
    return kind.from_plain(content)


def _restored_tensor(name: str, shape: list[int], data: bytes, begin: int) -> Tensor:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise MessageError(f"it has a tensor of dtype {str(name)[:40]!r}, which there is not.")
    _check_shape(shape, len(data) - begin, dtype.itemsize)
    if begin == len(data):
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=begin).copy()).view(dtype).reshape(shape)


def _restored_array(name: str, shape: list[int], data: bytes, begin: int) -> np.ndarray:
    dtype = np.dtype(str(name)[:8])
    if dtype.kind not in "biufc":
        raise MessageError(f"it has an array of {dtype}, which is not of numbers.")
    _check_shape(shape, len(data) - begin, dtype.itemsize)
    return np.frombuffer(data[begin:], dtype).reshape(shape).copy()


def _check_shape(shape: list[int], num_bytes: int, itemsize: int) -> None:
    """Refuse a shape that the bytes do not fill, before anything of that shape is made."""
    count = 1
    for size in shape:
        if type(size) is not int or not 0 <= size <= 1 << 62:
            raise MessageError("it has a tensor whose shape is not one.")
        count *= size
    if len(shape) > 64 or count * itemsize != num_bytes:
        raise MessageError(f"it has a tensor of shape {shape[:8]} in {num_bytes} bytes.")
