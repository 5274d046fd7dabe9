"""Whatever names a user gives, their files stay apart and where they belong."""

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.files.names import client_files, file_names

HARMLESS = ["client_0", "Lab-1", "a.b", "x" * 100, "甲", "乙", "α", "مختبر", "हिन्दी", "é"]
#: One of each kind that some file system refuses, or takes for another one.
HOSTILE = [
    *("", ".", "..", "../../etc/passwd", "/abs", "a/b", "a b", "a_b", "a\tb", "a\nb", "a\x00b", "A_B", "é"),
    *("e\u0301", "x" * 300, "x" * 299 + "y", "甲" * 200, "\u202eb", "b", "🧪", "🧫", "\udcff", "\udcfe"),
    *("CON", "con.csv", "nul", "shared_0", "SHARED_1", "shared_٣", "shared_①", ".hidden", "C:\\x"),
    *("straße", "STRASSE", "ﬁ", "fi", " ", "  ", "%s", "$\\foo$", "a_b-c14cddc0"),
]


def _check(names: list[str], found: list[str]) -> None:
    assert len(found) == len(names)
    folded = {unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()) for name in found}
    assert len(folded) == len(names)
    for name in found:
        assert 0 < len(name.encode()) <= 100
        assert not name.startswith(".")
        assert not set(name) & set('/\\:*?"<>|\0\n\r\t ')
        assert Path("folder", name).name == name


def test_harmless_names_stay() -> None:
    assert client_files(HARMLESS) == HARMLESS


def test_hostile_names_keep_apart_on_any_file_system(tmp_path: Path) -> None:
    found = client_files(HOSTILE)
    _check(HOSTILE, found)
    for name in found:
        (tmp_path / f"{name}.ckpt").touch(exist_ok=False)
    assert len(os.listdir(tmp_path)) == len(HOSTILE)
    assert not any(name.lower().startswith("shared_") and name[7:].isdecimal() for name in found)


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=120), unique=True, max_size=12))
def test_any_names_keep_apart(names: list[str]) -> None:
    found = client_files(names)
    _check(names, found)
    assert found == client_files(list(names))


def test_what_a_changed_name_looks_like() -> None:
    assert file_names(["a/b", "a b", "a_b"]) == ["a_b-c14cddc0", "a_b-c8687a08", "a_b"]
    assert file_names(["A", "a"])[0] == "A"
    assert file_names(["shared_0"]) == ["shared_0"]


def test_a_name_like_a_changed_one_and_a_repeated_one_keep_apart() -> None:
    (changed,) = file_names(["a/b"])
    _check(["a/b", changed], file_names(["a/b", changed]))
    _check(["a/b"] * 5, file_names(["a/b"] * 5))


@pytest.mark.parametrize("name", ["worst", "mean", "client_0"])
def test_a_file_depends_on_the_names_only(name: str) -> None:
    assert client_files([name, "x"])[0] == client_files(["y", name])[1] == name
