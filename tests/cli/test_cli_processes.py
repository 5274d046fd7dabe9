"""The installed command in processes of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_fl

SCRIPT = Path(sys.executable).with_name("lightning-fl")
pytestmark = pytest.mark.processes


def start(*words, **kwargs):
    root = Path(lightning_fl.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, env=environment, **kwargs
    )


@pytest.mark.parametrize("line", ["--help", "recipes", "recipes drfa_esol", "datasets"])
def test_light_commands_do_not_import_torch(line):
    code = "import sys; from lightning_fl.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    result = start(sys.executable, "-c", code, *line.split())
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_two_processes_from_a_shipped_recipe_print_once_and_get_what_one_gets(command):
    words = ["fit", "--config", "drflm_esol", "--trainer.max_rounds", "2", "--model.hidden_dim", "8"]
    result = start(SCRIPT, *words, "--trainer.devices", "2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("round 2/2") == 1
    assert result.stdout.count("run: runs/drflm_esol/version_0") == 1
    assert "STAND-IN DATA" in result.stdout
    assert result.stderr.count("STAND-IN DATA: computed, not measured.") == 1
    assert command(*words, "--trainer.devices", "1")[0] == 0
    two, one = (json.loads(Path(f"runs/drflm_esol/version_{run}/summary.json").read_text()) for run in (0, 1))
    assert (two["num_processes"], one["num_processes"]) == (2, 1)
    assert two["data_source"] == one["data_source"] == "stand-in"
    assert two["metrics"] == one["metrics"]


def test_python_m_says_what_is_wrong_in_a_line():
    result = start(sys.executable, "-m", "lightning_fl", "fit", "--config", "drflm_esol", "--trainer.max_round", "2")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "error: trainer.max_round: there is no such key (did you mean 'max_rounds'?).\n"


def test_an_error_in_two_processes_is_reported_once():
    words = ["fit", "--config", "drflm_esol", "--data.source", "real", "--trainer.devices", "2"]
    result = start(SCRIPT, *words)
    assert result.returncode == 2
    assert result.stderr.count("error: delaney-processed.csv of data set esol was not found in") == 1
    assert "Traceback" not in result.stderr
