"""How commands end that fail: the exit code, and what is printed of an error."""

import json
from functools import partial
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("--modle.encoder gat --model.encodr gat", ["modle", "model.encodr"]),
        ("--trainer.max_rounds 0", ["trainer.max_rounds=0"]),
        ("--model.dropout 3", ["dropout=3"]),
        ("--trainer.callbacks+=LocalMixup --trainer.callbacks.alpha -1", ["alpha=-1"]),
        (
            "--trainer.callbacks=[{class_path:\xa0TierBidding,init_args:\xa0{num_tiers:\xa02,tokens:\xa0{price:\xa0200}}}]",
            ["Tokens.price=200"],
        ),
        ("--ckpt_path none.ckpt", ["none.ckpt"]),
    ],
)
def test_wrong_settings(tiny, command, overrides, named):
    code, out, err = command(
        "fit", "--config", "tiny.yaml", *(word.replace("\xa0", " ") for word in overrides.split(" "))
    )
    assert (code, out) == (2, "")
    found = err.splitlines()
    assert len(found) == len(named), err
    assert all(
        line.startswith("error: ") and name in line for line, name in zip(sorted(found), sorted(named), strict=True)
    )


def test_an_error_of_the_users_own_constructor_is_named_with_its_place(tiny, command):
    Path("own_model.py").write_text(
        "from lightning.pytorch import LightningModule\n"
        "class Faulty(LightningModule):\n"
        "    def __init__(self, size: int = 1):\n"
        "        super().__init__()\n"
        "        raise RuntimeError(f'no model of size {size}')\n"
    )
    code, _, err = command("fit", "--config", "tiny.yaml", "--model", "own_model.Faulty", "--model.size", "7")
    assert code == 2
    assert err == (
        "error: RuntimeError: no model of size 7 (own_model.py, line 5, in __init__)."
        " LIGHTNING_FL_DEBUG=1 shows where in the code.\n"
    )


def test_a_mistake_of_the_packages_own_shows_its_traceback(command, monkeypatch):
    monkeypatch.setattr("lightning_fl.cli.recipes.available_recipes", partial(json.loads, "{"))
    code, _, err = command("recipes")
    assert code == 1
    assert err.startswith("Traceback (most recent call last):")
    assert "\nerror: JSONDecodeError: Expecting property name" in err
    assert "please report it" in err


@pytest.mark.slow
def test_a_traceback_is_shown_on_demand(tiny, command, monkeypatch):
    words = ("fit", "--config", "tiny.yaml", "--trainer.max_rounds", "0")
    _, _, err = command(*words)
    assert err.startswith("error: trainer.max_rounds=0: ")
    monkeypatch.setenv("LIGHTNING_FL_DEBUG", "1")
    code, _, err = command(*words)
    assert code == 2
    assert err.startswith("Traceback (most recent call last):")
    assert "\nerror: trainer.max_rounds=0: " in err


def test_a_failing_training_step_says_how_to_see_where(tiny, command, monkeypatch):
    from lightning_fl.models import MoleculeModel

    def fail(self, batch, batch_idx):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(MoleculeModel, "training_step", fail)
    code, _, err = command("fit", "--config", "tiny.yaml")
    assert code == 2
    assert err.startswith("error: client 0 (assay_0) failed in round 1: RuntimeError: shapes do not match")
    assert err.endswith(" LIGHTNING_FL_DEBUG=1 shows where in the code.\n")
    assert err.count("error: ") == 1  # a study shows the last one as the reason


def test_a_loss_that_is_not_finite_needs_no_traceback(tiny, command):
    code, _, err = command("fit", "--config", "tiny.yaml", "--model.learning_rate", "1e30")
    assert code == 2
    assert "failed in round 1: the training loss is " in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["advise", "fedavg_digits", "--seeds", "0"], "--seeds=0"),
        (["advise", "fedavg_digits", "--max_rounds", "-1"], "--max_rounds=-1"),
        (["advise", "fedavg_digits", "--workers", "0"], "--workers=0"),
        (["predict", "run", "new.csv", "--chunk_rows", "0"], "--chunk_rows=0"),
        (["personalize", "run", "new.csv", "--holdout", "1.5"], "--holdout=1.5"),
        (["personalize", "run", "new.csv", "--seed", "-1"], "--seed=-1"),
    ],
)
def test_options_out_of_range_are_named_as_they_were_given(words, flag, command):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {flag}: must be ")


def test_a_folder_is_no_file_to_write(command):
    for name in ("run", "there"):
        Path(name).mkdir()
    Path("run/summary.json").write_text("{}")
    for words in (["show", "run", "--out", "there"], ["explain", "run", "C", "--out", "there.png", "--force"]):
        Path("there.png").mkdir(exist_ok=True)
        code, _, err = command(*words)
        assert code == 2
        assert err.startswith(f"error: {words[words.index('--out') + 1]} is a folder")
