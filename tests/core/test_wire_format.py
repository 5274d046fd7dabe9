"""Messages between ranks: values come back as they were, and nothing that is no message does anything."""

import pickle
import struct
from collections import OrderedDict, defaultdict
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from traps import Trap

from lightning_fl.core.metrics import LoggedValue
from lightning_fl.core.wire_format import MessageError, decode, encode
from lightning_fl.engine.client import ClientReport

#: Codes of extensions.
TUPLE, INTEGER, TENSOR, ARRAY, RECORD = range(5)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers()), inner, max_size=4)
    ),
    max_leaves=20,
)


def same(first: Any, second: Any) -> bool:
    """Equal in value and type, all the way down; floats by their bits."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return struct.pack("d", first) == struct.pack("d", second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@pytest.mark.slow
@given(PLAIN)
def test_plain_values_come_back_in_value_and_type(value: Any) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(
    "value", [float("nan"), -0.0, float("-inf"), 1 << 80, -(1 << 64), "\ud800", (), np.float32(0.5), np.int64(3)]
)
def test_odd_values_come_back(value: Any) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.complex64,
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_tensors_come_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    number = torch.Size(shape).numel() * dtype.itemsize
    made = torch.randint(0, 2 if dtype is torch.bool else 256, (number,), dtype=torch.uint8).view(dtype).reshape(shape)
    found = decode(encode({"tensor": made}))["tensor"]
    assert (found.dtype, found.shape, found.is_contiguous()) == (dtype, made.shape, True)
    assert torch.equal(found.reshape(-1).view(torch.uint8), made.reshape(-1).view(torch.uint8))
    found.zero_()  # its memory is its own


def test_parts_of_tensors_parameters_and_arrays_are_sent_alone() -> None:
    whole = torch.arange(1_000_000.0)
    assert len(encode(whole[5:7])) < 100
    transposed = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(decode(encode(transposed)), transposed)
    assert torch.equal(decode(encode(torch.nn.Parameter(transposed))), transposed)
    for array in (np.arange(6).reshape(2, 3), np.array(2.5, np.float32), np.array([], np.int8)):
        found = decode(encode(array))
        assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())


def test_what_derives_from_a_plain_type_is_sent_as_that_type() -> None:
    seconds: defaultdict[str, float] = defaultdict(float, data=1.5)
    assert same(decode(encode(seconds)), {"data": 1.5})
    assert same(decode(encode(OrderedDict(b=1, a=torch.Size([2])))), {"b": 1, "a": (2,)})


def test_reports_come_back_with_every_field() -> None:
    """A field that is added must be sent as well."""
    logged = LoggedValue(0.5, 12.0, True, False, True, ((1, 0.25), (2, 0.5)), True, 0.25)
    report = ClientReport(
        12, 3, {"loss": logged, "acc": LoggedValue(1.0, 2.0)}, "why", 0.5, {"norm": 2.0}, {"w": False}, 0.5
    )
    plain = (LoggedValue(0.0, 0.0), ClientReport())
    for made, default in zip((logged, report), plain, strict=True):
        assert all(getattr(made, field.name) != getattr(default, field.name) for field in fields(made))
        assert same(decode(encode(made)), made)
    assert decode(encode({3: replace(report, error=None)})) == {3: replace(report, error=None)}


def test_deep_nesting_is_refused_both_ways() -> None:
    for kind in (list, tuple):
        value: Any = 1
        for _ in range(5000):
            value = kind([value])
        with pytest.raises(MessageError):
            encode(value)
    for bomb in (b"\x91" * 5000 + b"\x01", (b"\x92" + msgpack.packb(msgpack.ExtType(TUPLE, b""))) * 5000 + b"\x01"):
        with pytest.raises(MessageError):
            decode(bomb)


def marked(code: int, name: str, *content: Any) -> bytes:
    return msgpack.packb([msgpack.ExtType(code, name.encode()), *content])


def test_what_is_no_message_does_nothing(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    good = encode({1: (torch.eye(3), ClientReport(3))})
    bad = [
        pickle.dumps(Trap(trap)),
        b"",
        b"\xc1",
        good[:-1],
        good + b"\x00",
        b"\x91" * 100_000,
        b"\xdf\xff\xff\xff\xff",  # a dict of four thousand million entries
        b"\xc9\xff\xff\xff\xff\x05",  # an extension of four gigabytes
        marked(TENSOR, "float32", [1 << 40], b"1234"),
        marked(TENSOR, "float32", [-1, -1], b"1234"),
        marked(TENSOR, "float32", ["1"], b"1234"),
        marked(TENSOR, "float32", [1]),
        marked(TENSOR, "os.system", [1], b"1234"),
        marked(TENSOR, "load", [1], b"1234"),
        marked(ARRAY, "object", [1], b"12345678"),
        marked(RECORD, "ClientReport", 1),
        marked(RECORD, "Path", "x"),
        marked(99, "", 1),
        msgpack.packb(msgpack.ExtType(INTEGER, b"x")),
        msgpack.packb({1: 2}).replace(b"\x01", b"\x90"),  # a list as a key
    ]
    for message in bad:
        with pytest.raises(MessageError):
            decode(message)
    assert not trap.exists()


@pytest.mark.slow
@given(st.data())
def test_damaged_messages_are_errors_or_values(data: Any) -> None:
    message = bytearray(encode({1: ClientReport(3, 2, {"loss": LoggedValue(0.5, 3.0)}), 2: (torch.eye(2), ["a"])}))
    for place in data.draw(st.lists(st.integers(0, len(message) - 1), max_size=4)):
        message[place] = data.draw(st.integers(0, 255))
    with suppress(MessageError):
        decode(bytes(message))
