"""What is said before torch is imported."""

import os
import subprocess
import sys

import pytest

from lightning_fl.__main__ import first_words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fit --config drflm_esol", "fit: reading drflm_esol ..."),
        (
            "fit --config drflm_esol --model.encoder gat --trainer.max_rounds=5",
            "fit: reading drflm_esol with --model.encoder gat, --trainer.max_rounds 5 ...",
        ),
        (
            "fit --config=a.yaml --config b.yaml --ckpt_path last",
            "fit: reading a.yaml, b.yaml with --ckpt_path last ...",
        ),
        ("study digits --only arm=a noise=0", "study: reading digits with --only arm=a noise=0 ..."),
        ("predict RUN new.csv --spread", "predict: reading RUN, new.csv with --spread ..."),
        ("fit --config drflm_esol --print_config", ""),
        ("fit --help", ""),
        ("study", ""),
        ("recipes drflm_esol", ""),
    ],
)
def test_what_is_read_with_which_settings(words, said):
    assert first_words(words.split()) == said


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("rank", "speaks"), [("0", True), ("1", False)])
def test_it_is_said_by_rank_zero_before_anything_else_and_not_among_the_results(rank, speaks):
    with subprocess.Popen(
        [sys.executable, "-m", "lightning_fl", "fit", "--config", "no_such_recipe"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RANK": rank},
    ) as process:
        first = process.stderr.readline()
        out, rest = process.communicate()
    assert out == ""
    assert (first == "fit: reading no_such_recipe ...\n") == speaks
    assert "no_such_recipe" in first + rest
    assert process.returncode == 2
