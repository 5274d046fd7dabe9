"""The installed command in processes of its own."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from processes import run

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"
SCRIPT = Path(sys.executable).with_name("lightning-fl")
pytestmark = pytest.mark.processes


def test_light_commands_do_not_import_torch(tmp_path):
    code = "import sys; from lightning_fl.cli import main; print([main(line.split()) for line in sys.argv[1:]])"
    kept = f"--from {DOCS}/results/digits.csv --out {tmp_path}/drawn"
    lines = ("--help", "recipes", "recipes drfa_esol", "datasets", "study digits --dry-run", f"study digits {kept}")
    result = run(sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)", *lines)
    assert result.code == 0, result.err
    assert result.out.endswith("\n[0, 0, 0, 0, 0, 0]\n")


@pytest.mark.slow
def test_two_processes_from_a_shipped_recipe_print_once_and_get_what_one_gets(command, start_warm):
    words = ["fit", "--config", "drflm_esol", "--trainer.max_rounds", "2", "--model.hidden_dim", "8"]
    result = start_warm(SCRIPT, *words, "--trainer.devices", "2").end()
    assert result.code == 0, result.err
    assert result.out.count("round 2/2") == 1
    assert result.out.count("run: runs/drflm_esol/version_0") == 1
    assert "STAND-IN DATA" in result.out
    assert result.err.count("STAND-IN DATA: computed, not measured.") == 1
    assert command(*words, "--trainer.devices", "1")[0] == 0
    two, one = (json.loads(Path(f"runs/drflm_esol/version_{run}/summary.json").read_text()) for run in (0, 1))
    assert (two["num_processes"], one["num_processes"]) == (2, 1)
    assert two["data_source"] == one["data_source"] == "stand-in"
    assert two["metrics"] == one["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["power_of_choice", "fed_dyn", "cluster_once"])
def test_an_example_of_the_docs_gets_on_two_processes_what_it_gets_on_one(
    name, command, start_warm, tmp_path, monkeypatch
):
    """From the examples' folder, as their page says: a class of the user's own is found there."""
    words = ["fit", "--config", f"{name}.yaml", "--trainer.max_rounds", "2", "--trainer.accelerator", "cpu"]
    roots = [tmp_path / number for number in ("1", "2")]
    here = [[*words, "--trainer.default_root_dir", str(root), "--trainer.devices", root.name] for root in roots]
    monkeypatch.chdir(EXAMPLES)
    two = start_warm(SCRIPT, *here[1])
    assert command(*here[0])[0] == 0
    result = two.end()
    assert result.code == 0, result.err
    first, second = (json.loads((root / "version_0" / "summary.json").read_text()) for root in roots)
    assert (first["num_processes"], second["num_processes"]) == (1, 2)
    assert first["metrics"] == second["metrics"]
    assert first["communication"] == second["communication"]


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core, one process")
def test_by_default_as_many_forks_as_cores_and_a_line_that_says_so(start_warm):
    words = ["fit", "--config", "fedavg_digits", "--trainer.max_rounds", "2", "--trainer.enable_progress_bar", "false"]
    cores = sorted(os.sched_getaffinity(0))[:2]
    two = start_warm(SCRIPT, *words, cores=cores).end()
    assert two.code == 0, two.err
    forks = (
        "2 processes of one thread each for 12 clients: there are 2 cores and the model is small (4,810 parameters)."
        " --trainer.devices 1 keeps to one; the results are the same.\n"
    )
    one = start_warm(SCRIPT, *words, cores=cores[:1]).end()
    assert one.code == 0, one.err
    assert one.err.startswith("validation was still improving (best in round 2 of 2): ")
    assert one.err.count("\n") == 1
    assert two.err == forks + one.err
    records = [json.loads(Path(f"runs/fedavg_digits/version_{run}/summary.json").read_text()) for run in (0, 1)]
    assert [record["num_processes"] for record in records] == [2, 1]
    assert records[0]["metrics"] == records[1]["metrics"]
    # the table of all clients with their samples, wherever they live
    assert two.out.replace("version_0", "") == one.out.replace("version_1", "")


@pytest.mark.slow
def test_under_torchrun_nothing_is_forked(start_warm):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "lightning_fl"]
    result = start_warm(*launcher, "fit", "--config", "fedavg_digits", "--trainer.max_rounds", "1").end()
    assert result.code == 0, result.err
    assert "processes of one thread" not in result.err
    assert json.loads(Path("runs/fedavg_digits/version_0/summary.json").read_text())["num_processes"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("who", ["first", "fork"])
def test_a_killed_process_takes_the_other_along(who, start_warm):
    words = ["fit", "--config", "fedavg_digits", "--trainer.max_rounds", "1000000", "--trainer.devices", "2"]
    first = start_warm(SCRIPT, *words)
    first.until_it_prints("round ")
    (fork,) = map(int, Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split())
    os.kill(first.pid if who == "first" else fork, signal.SIGKILL)
    assert first.end().code != 0  # both hold its output: it ends when neither is left


@pytest.mark.slow
def test_python_m_says_what_is_wrong_in_a_line(start_warm):
    result = start_warm("-m", "lightning_fl", "fit", "--config", "drflm_esol", "--trainer.max_round", "2").end()
    assert result.code == 2
    assert result.out == ""
    assert result.err == "error: trainer.max_round: there is no such key (did you mean 'max_rounds'?).\n"


@pytest.mark.slow
def test_an_error_in_two_processes_is_reported_once(start_warm):
    words = ["fit", "--config", "drflm_esol", "--data.source", "real", "--trainer.devices", "2"]
    result = start_warm(SCRIPT, *words).end()
    assert result.code == 2
    assert result.err.count("error: delaney-processed.csv of data set esol was not found in") == 1
    assert "Traceback" not in result.err
