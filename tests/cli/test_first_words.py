"""What is said before torch is imported."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest

from lightning_fl.__main__ import first_words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fit --config drflm_esol", "fit --config drflm_esol ..."),
        (
            "fit --config drflm_esol --model.encoder gat --trainer.max_rounds=5",
            "fit --config drflm_esol --model.encoder gat --trainer.max_rounds=5 ...",
        ),
        ("study digits --only arm=a noise=0", "study digits --only arm=a noise=0 ..."),
        ("predict RUN new.csv --spread", "predict RUN new.csv --spread ..."),
        ("fit --config drflm_esol --print_config", ""),
        ("fit --help", ""),
        ("study", ""),
        ("study digits --from digits.csv", ""),
        ("recipes drflm_esol", ""),
    ],
)
def test_what_is_read_with_which_settings(words, said, monkeypatch):
    monkeypatch.setattr("os.path.exists", lambda path: True)  # torch's bytecode, which may not be written here
    assert first_words(words.split()) == (f"{said}\n" if said else "")


def test_a_start_without_torch_s_bytecode_says_that_it_takes_longer(monkeypatch):
    monkeypatch.setattr("os.path.exists", lambda path: False)
    said = first_words(["fit", "--config", "drflm_esol"]).splitlines()
    assert said[0] == "fit --config drflm_esol ..."
    assert "first start" in said[1]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("rank", "terminal", "speaks"), [("0", True, True), ("1", True, False), ("0", False, False)])
def test_rank_zero_says_it_to_a_person_at_once_and_not_among_the_results(rank, terminal, speaks):
    words = "explain RUN CCO --out a.txt"  # refused before torch is imported
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "lightning_fl", *words.split()],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "RANK": rank},
    ) as process:
        os.close(theirs)
        out, _ = process.communicate()
        said = ""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while more := os.read(ours, 4096).decode():
                said += more
        os.close(ours)
    assert out == ""
    assert said.startswith(f"{words} ...") == speaks
    assert "error: --out a.txt: give a name" in said
    assert process.returncode == 2


@pytest.mark.processes
@pytest.mark.parametrize(("words", "code"), [("recipes", 0), ("recipes no_such_recipe", 2)])
def test_streams_that_are_closed_are_no_error(words, code):
    shell = f"{sys.executable} -m lightning_fl {words} >&- 2>&-"
    assert subprocess.run(shell, shell=True).returncode == code
