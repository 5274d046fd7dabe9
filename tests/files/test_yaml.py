"""YAML as users write it: read as it looks, or refused with file, line and mend."""

import math
import os
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import dump_yaml, parse_yaml, read_yaml

_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


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
    ],
)
def test_what_is_read(text, value):
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: 1\nb: {c: 1}\na: 2",
            r"f.yaml, line 3, column 1: the key 'a' stands here twice, first in line 1: keep",
        ),
        ("a:\n  - x: 1\n    'x': 2", r"line 3, column 5: the key 'x' stands here twice, first in line 2"),
        ("{1: a, 1.0: b}", "the key '1.0' stands here twice"),
        ("on: 1", r"line 1, column 1: the key 'on' is read as True: give a text, in quotes"),
        ("~: 1", "the key '~' is read as None"),
        ("? [1]\n: 2", "no key: give a text"),
        ("a: 012", "line 1, column 4: 012 is read by YAML in base eight; drop the zero, or put it in quotes"),
        ("a: 1:30", "1:30 is read by YAML in sixties; put it in quotes"),
        ("a: 0b_", "0b_ is no number"),
        (f"a: {'9' * 5000}", r"9{40} is no number"),
        ("a: !!python/object/apply:os.system [ls]", "the tag !!python/object/apply:os.system makes an object"),
        ("a: !!timestamp 2024-01-01", "the tag !!timestamp makes an object"),
        ("a: &a [*a]", r"\*a stands inside of &a itself"),
        ("a: *b", "not YAML: found undefined alias"),
        (_BOMB, r"its aliases \(\*\) stand for too much: write out what is meant"),
        ("[" * 10_000, "more than 100 lists and mappings inside each other"),
        ("a: 1\n--- 2", "not YAML: but found another document"),
        ("a: b: c", "line 1, column 5: not YAML: mapping values are not allowed"),
        ("a\0: 1", "cannot be read as YAML: control characters are not allowed .* Save it as text in UTF-8"),
        (b"\x80PNG", "cannot be read as YAML: invalid leading UTF-8"),
    ],
)
def test_what_is_refused(text, message):
    Path("f.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError, match=message):
        read_yaml(Path("f.yaml"))


def test_aliases_that_stand_for_little_are_read():
    text = "a: &a [1, 2]\nb: {c: *a, d: *a}"
    assert parse_yaml(text) == {"a": [1, 2], "b": {"c": [1, 2], "d": [1, 2]}}


def test_what_is_no_file_is_refused_without_being_read(tmp_path):
    os.mkfifo("pipe.yaml")
    for path in (Path("pipe.yaml"), Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigurationError, match="is a folder, a pipe or a device: give a YAML file"):
            read_yaml(path)
    with Path("large.yaml").open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(ConfigurationError, match="large.yaml has 100,000,000 bytes: no YAML file of lightning-fl is"):
        read_yaml(Path("large.yaml"))


def test_half_a_character_of_a_command_line_is_no_traceback():
    with pytest.raises(yaml.YAMLError, match="surrogates not allowed"):
        parse_yaml("\udcff")


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
