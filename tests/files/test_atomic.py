"""Files are whole or not there, whoever is killed when."""

import os
import signal
from pathlib import Path

import pytest

from lightning_fl.files.atomic import link_whole, remove_leftovers, whole_file, write_whole


def _die_while_writing(path: Path) -> None:
    """Be killed in the middle of a file, in a process of its own."""
    child = os.fork()
    if not child:
        try:
            with whole_file(path) as file:
                file.write(b"half")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.processes
def test_a_kill_leaves_the_old_file_and_one_leftover_that_the_next_writer_takes(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table.csv"
    write_whole(path, "before")
    for _ in range(2):
        _die_while_writing(path)
    assert path.read_text() == "before"
    assert sorted(os.listdir(path.parent)) == [".table.csv.tmp", "table.csv"]
    write_whole(path, b"after")
    assert path.read_text() == "after"
    assert os.listdir(path.parent) == ["table.csv"]


@pytest.mark.processes
def test_leftovers_are_removed_but_nothing_that_is_being_written(tmp_path: Path) -> None:
    _die_while_writing(tmp_path / "checkpoints" / "last.ckpt")
    with whole_file(tmp_path / "live.csv") as file:
        remove_leftovers(tmp_path)
        file.write(b"live")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["checkpoints", "live.csv"]


def test_of_several_writers_at_once_the_last_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "features.pt"
    with whole_file(path, by_several=True) as first:
        first.write(b"first, ")
        with whole_file(path, by_several=True) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"whole")
    assert path.read_bytes() == b"first, whole"
    assert os.listdir(tmp_path) == ["features.pt"]


def test_an_error_leaves_the_old_file_only(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "before")

    def fail() -> None:
        with whole_file(tmp_path / "a") as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail()
    assert (tmp_path / "a").read_text() == "before"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_replaces_a_file_also_one_of_the_same_content(tmp_path: Path) -> None:
    source, target = tmp_path / "shared_0.ckpt", tmp_path / "other" / "a.ckpt"
    source.write_bytes(b"weights")
    for _ in range(2):
        link_whole(source, target)
        assert target.read_bytes() == b"weights"
        assert os.listdir(target.parent) == ["a.ckpt"]


def test_a_link_is_a_copy_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_bytes(b"weights")
    link_whole(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").write_bytes(b"others")
    assert (tmp_path / "b").read_bytes() == b"weights"


def test_text_that_is_none_is_escaped(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "lab\udcff é")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "lab\\udcff é"
