"""YAML as users write it: read as it looks, or refused with file and line."""

import math
import os
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import Quoted, dump_yaml, parse_yaml, read_yaml

_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-.5e3", -500.0),
        ("1_000", 1000),
        ("-.inf", -math.inf),
        ("0", 0),
        ("0x1F", 31),
        ("2024-01-01", "2024-01-01"),
        ("'012'", "012"),
        ("08", "08"),
        ("=", "="),
        ("off", False),
        ("~", None),
        ("", None),
        ("\ufeffa: 1", {"a": 1}),
        ("a: 1".encode("utf-16"), {"a": 1}),
        ("x: &x {a: 1, b: 2}\ny: {<<: *x, a: 3}", {"x": {"a": 1, "b": 2}, "y": {"a": 3, "b": 2}}),
        ("{1: a, 2: b}", {1: "a", 2: "b"}),
        ("a: &a [1, 2]\nb: {c: *a, d: *a}", {"a": [1, 2], "b": {"c": [1, 2], "d": [1, 2]}}),
        # a mapping is merged before its own keys are read
        ("d: &d {k: 1}\na: {x: &x {<<: *d, k: 2}}\ny: {<<: *x}", {"d": {"k": 1}, "a": {"x": {"k": 2}}, "y": {"k": 2}}),
    ],
)
def test_accepted(text, value):
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: 1\nb: {c: 1}\na: 2", "line 3, column 1: duplicate key 'a', first in line 1"),
        ("a:\n  - x: 1\n    'x': 2", "line 3, column 5: duplicate key 'x', first in line 2"),
        ("{1: a, 1.0: b}", "'1.0'"),
        ("on: 1", "line 1, column 1: 'on'"),
        ("~: 1", "'~'"),
        ("? [1]\n: 2", "line 1, column 3"),
        ("a: 012", "line 1, column 4: 012"),
        ("a: 1:30", "1:30"),
        ("a: 0b_", "0b_"),
        (f"a: {'9' * 5000}", "9" * 40),
        ("a: !!python/object/apply:os.system [ls]", "python/object/apply:os.system"),
        ("a: !!timestamp 2024-01-01", "timestamp"),
        ("a: &a [*a]", "alias"),
        ("a: *b", "alias"),
        (_BOMB, "aliases"),
        ("[" * 10_000, "nested"),
        ("[" * 200_000 + "]" * 200_000, "nested"),
        ("a: 1\n--- 2", "document"),
        ("a: b: c", "line 1, column 5"),
        ("a\0: 1", "UTF-8"),
        (b"\x80PNG", "UTF-8"),
    ],
)
def test_refused(text, named, tmp_path):
    file = tmp_path / "f.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError) as raised:
        read_yaml(file)
    assert str(file) in str(raised.value)
    assert named in str(raised.value)


def test_what_is_not_a_regular_file_is_refused_without_being_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigurationError, match=str(path)):
            read_yaml(path)


def test_half_a_character_is_an_error_of_yaml():
    with pytest.raises(yaml.YAMLError):
        parse_yaml("\udcff")


def test_texts_in_quotes_are_marked_on_demand():
    text = "[a, 'b', \"c\", 1]"
    assert [type(value) for value in parse_yaml(text, mark_quoted=True)] == [str, Quoted, Quoted, int]
    assert [type(value) for value in parse_yaml(text)] == [str, str, str, int]


_texts = st.sampled_from(["1e-3", "012", "on", "2024-01-01", "a: b", "1:30", "=", "<<", "", "é", "#", "!x", ".nan"]) | (
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
)
_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(_plain)
def test_what_is_written_is_read_as_the_same(value):
    assert parse_yaml(dump_yaml(value)) == value


@settings(max_examples=100, deadline=None)
@given(st.text("ab01:-[]{}&*!<>|?,.'\"\n #%@~\t=_eE+", max_size=40))
def test_any_text_is_read_or_refused(text):
    with suppress(yaml.YAMLError):
        assert parse_yaml(dump_yaml(parse_yaml(text))) == parse_yaml(text)
