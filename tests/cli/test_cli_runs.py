"""Runs from the command line, in this process: what they leave behind and print."""

import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lightning_fl.cli import make_parser
from lightning_fl.recipe.parser import parse


def summary(folder="runs/version_0"):
    return json.loads((Path(folder) / "summary.json").read_text())


def rmse(folder="runs/version_0", split="test"):
    return summary(folder)["metrics"][split]["rmse"]["clients"]


@pytest.mark.slow
def test_fit_trains_then_tests_the_best_round(tiny, command):
    code, out, err = command("fit", "--config", "tiny.yaml", "--model.learning_rate", "0.05")
    assert (code, err) == (0, "")
    record = summary()
    assert record["rounds"] == 3
    assert set(record["metrics"]) >= {"train", "val", "test"}
    assert "run: runs/version_0" in out
    # the same checkpoint, tested in a run of its own
    code, _, _ = command("test", "--config", "tiny.yaml", "--ckpt_path", "best")
    assert code == 0
    assert rmse("runs/version_1") == rmse()
    code, _, _ = command("validate", "--config", "tiny.yaml", "--ckpt_path", "runs/version_0/checkpoints/best.ckpt")
    assert code == 0
    assert math.isclose(summary("runs/version_2")["metrics"]["val"]["rmse"]["mean"], record["best_value"])


@pytest.mark.slow
def test_fit_tests_the_last_weights_where_no_round_is_best(tiny, command):
    words = ("--config", "tiny.yaml", "--trainer.check_val_every_n_rounds", "0")
    assert command("fit", *words)[0] == 0
    assert summary()["best_round"] is None
    assert command("test", *words, "--ckpt_path", "last")[0] == 0
    assert rmse("runs/version_1") == rmse()


@pytest.mark.slow
def test_fit_without_checkpoints_tests_the_shared_model(tiny, command):
    text = yaml.safe_load(Path("tiny.yaml").read_text())
    del text["trainer"]["callbacks"]
    Path("plain.yaml").write_text(yaml.safe_dump(text))
    assert command("fit", "--config", "plain.yaml", "--trainer.enable_checkpointing", "false")[0] == 0
    words = ("--trainer.check_val_every_n_rounds", "0", "--trainer.default_root_dir", "kept")
    assert command("fit", "--config", "plain.yaml", *words)[0] == 0
    assert rmse() == rmse("kept/version_0")


@pytest.mark.parametrize("place", [0, 2, 4])
def test_later_recipes_and_the_command_line_override(tiny, command, place):
    Path("more.yaml").write_text(
        "model:\n  init_args:\n    hidden_dim: 4\ntrainer:\n  max_rounds: 1\n  local_steps: 1\n"
    )
    words = ["--config", "tiny.yaml", "--config", "more.yaml"]
    words[place:place] = ["--trainer.max_rounds", "2", "--model.encoder=gat"]
    code, out, _ = command("fit", *words, "--print_config")
    assert code == 0
    printed = yaml.safe_load(out)
    assert printed["model"]["init_args"]["hidden_dim"] == 4
    assert printed["model"]["init_args"]["num_layers"] == 1
    assert printed["model"]["init_args"]["encoder"] == "gat"
    assert (printed["trainer"]["max_rounds"], printed["trainer"]["local_steps"]) == (2, 1)
    assert not Path("runs").exists()
    Path("printed.yaml").write_text(out)
    code, again, _ = command("fit", "--config", "printed.yaml", "--print_config")
    assert (code, again) == (0, out)


@pytest.mark.slow
def test_the_resolved_recipe_is_kept_and_gives_the_same_run(tiny, command):
    assert command("fit", "--config", "tiny.yaml", "--model.learning_rate", "0.02")[0] == 0
    saved = "runs/version_0/config.yaml"
    assert command("fit", "--config", saved)[0] == 0
    assert Path("runs/version_1/config.yaml").read_text() == Path(saved).read_text()
    assert rmse("runs/version_1") == rmse()
    parser = make_parser("fit")
    resolved = parse("fit", parser, ["--config", saved]).as_dict()
    assert resolved["model"]["init_args"]["learning_rate"] == 0.02
    assert resolved["trainer"]["local_epochs"] is None


@pytest.mark.parametrize("logger", ["true", "false"])
def test_a_start_that_is_refused_leaves_nothing_behind(tiny, command, logger):
    before = sorted(Path().rglob("*"))
    words = ("--config", "tiny.yaml", "--data.path", "missing.csv", "--trainer.logger", logger)
    code, _, err = command("fit", *words)
    assert code == 2
    assert "missing.csv" in err
    assert sorted(Path().rglob("*")) == before
    Path("runs/version_3").mkdir(parents=True)
    assert command("fit", *words)[0] == 2
    assert list(Path("runs").rglob("*")) == [Path("runs/version_3")]


@pytest.mark.slow
def test_an_evaluation_that_is_refused_leaves_its_fit_alone(fitted, command):
    before = sorted(Path("runs").rglob("*"))
    more = ("--ckpt_path", "last", "--data.path", "missing.csv")
    assert command("test", "--config", "tiny.yaml", *more)[0] == 2
    assert sorted(Path("runs").rglob("*")) == before


def test_a_run_that_fails_has_its_recipe(tiny, command):
    Path("failing_model.py").write_text(
        "from lightning_fl.models import MoleculeModel\n"
        "class Failing(MoleculeModel):\n"
        "    def training_step(self, batch, batch_idx):\n"
        "        raise ValueError('no step')\n"
    )
    code, _, err = command("fit", "--config", "tiny.yaml", "--model", "failing_model.Failing")
    assert code == 2
    assert "no step" in err
    assert (
        yaml.safe_load(Path("runs/version_0/config.yaml").read_text())["model"]["class_path"] == "failing_model.Failing"
    )


@pytest.mark.slow
def test_the_seed_decides(fitted, command):
    for seed in ("3", "4"):  # the recipe's is 3
        assert command("fit", "--config", "tiny.yaml", "--seed_everything", seed)[0] == 0
    assert rmse("runs/version_0") == rmse("runs/version_1")
    assert rmse("runs/version_0") != rmse("runs/version_2")
    assert [summary(f"runs/version_{number}")["seed"] for number in range(3)] == [3, 3, 4]


@pytest.mark.slow
def test_an_interrupted_fit_says_how_to_go_on_and_gets_the_same_result(tiny, command):
    Path("own_callbacks.py").write_text(
        "import os, signal\n"
        "from lightning_fl.callbacks import Callback\n"
        "class Stop(Callback):\n"
        "    def on_round_end(self, trainer):\n"
        "        if trainer.current_round == 2:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    words = ["fit", "--config", "tiny.yaml", "--trainer.callbacks+=own_callbacks.Stop", "--ckpt_path", "null"]
    code, out, err = command(*words)
    assert code == 128 + 15
    assert "test of" not in out
    assert "test" not in summary()["metrics"]
    line = err.splitlines()[-1]
    assert line.startswith("To resume from round 2: lightning-fl fit --config tiny.yaml ")
    resume = shlex.split(line.split(": ", 1)[1])
    assert resume == ["lightning-fl", *words[:-2], "--ckpt_path", "runs/version_0/checkpoints/last.ckpt"]
    shutil.copytree("runs/version_0", "runs/version_1")  # a newer run is not the one to go on with
    assert command(*resume[1:])[0] == 0
    assert summary("runs/version_2")["rounds"] == 3
    assert command("fit", "--config", "tiny.yaml", "--trainer.default_root_dir", "whole")[0] == 0
    assert rmse("runs/version_2") == rmse("whole/version_0")


@pytest.mark.slow
def test_the_recipe_of_a_resumed_run_starts_the_whole_run(fitted, command):
    resumed = Path("runs/version_1")
    assert command("fit", "--config", "tiny.yaml", "--trainer.max_rounds", "4", "--ckpt_path", "last")[0] == 0
    assert summary(resumed)["resumed_from"].endswith("last.ckpt")
    shutil.rmtree(fitted)
    words = ("fit", "--config", resumed / "config.yaml", "--trainer.default_root_dir")
    assert command(*words, "whole")[0] == 0
    assert summary("whole/version_0")["resumed_from"] is None
    assert rmse("whole/version_0") == rmse(resumed)
    # where a checkpoint is named again, the run goes on: nothing is left of it
    assert command(*words, "again", "--ckpt_path", resumed / "checkpoints" / "last.ckpt")[0] == 0
    assert rmse("again/version_0") == rmse(resumed)
    # that of an evaluation is of its checkpoint
    assert command("test", "--config", resumed / "config.yaml", "--ckpt_path", "best")[0] == 0
    assert yaml.safe_load(Path("runs/version_2/config.yaml").read_text())["ckpt_path"] == "best"


@pytest.mark.slow
def test_predictions_have_the_error_that_the_test_reports(fitted, command):
    code, out, _ = command("predict", "--config", "tiny.yaml", "--ckpt_path", "best")
    assert (code, out) == (0, "predictions: runs/version_1/predictions\n")
    molecules = pd.read_csv("tiny.csv")
    for client, expected in rmse().items():
        table = pd.read_csv(f"runs/version_1/predictions/{client}.csv")
        assert list(table.columns) == ["index", "smiles", "target", "prediction"]
        rows = molecules.iloc[table["index"]]
        assert list(rows["smiles"]) == list(table["smiles"])
        assert set(rows["assay"]) == {client}
        assert list(table["target"]) == pytest.approx(list(rows["activity"]))
        assert math.isclose(((table["prediction"] - table["target"]) ** 2).mean() ** 0.5, expected, rel_tol=1e-4)


@pytest.mark.slow
def test_what_torch_compile_is_given(tiny, command):
    words = ("--trainer.compile.mode", "reduce-overhead", "--trainer.compile.dynamic=true")
    code, out, _ = command("fit", "--config", "tiny.yaml", *words, "--print_config")
    assert (code, yaml.safe_load(out)["trainer"]["compile"]) == (0, {"mode": "reduce-overhead", "dynamic": True})
    code, out, _ = command("fit", "--config", "tiny.yaml", "--trainer.compile=true", "--print_config")
    assert (code, yaml.safe_load(out)["trainer"]["compile"]) == (0, True)
    code, _, err = command("fit", "--config", "tiny.yaml", "--trainer.compile.mode=fast")
    assert code == 2
    assert re.search("trainer.compile=.*mode.*fast.*reduce-overhead", err)


@pytest.mark.slow
def test_a_recipe_may_give_the_precision_as_a_number(tiny, command):
    recipe = yaml.safe_load(Path("tiny.yaml").read_text())
    for precision in (64, "64"):
        recipe["trainer"]["precision"] = precision
        Path("tiny.yaml").write_text(yaml.safe_dump(recipe))
        assert command("fit", "--config", "tiny.yaml")[::2] == (0, "")
    assert rmse("runs/version_0") == rmse("runs/version_1")
