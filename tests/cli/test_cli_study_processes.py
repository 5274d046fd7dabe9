"""A study in processes of its own: its runs are those of ``fit``, and whatever stops it, nothing is run twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import lightning_fl

pytestmark = pytest.mark.processes

CHECKPOINTS = {"trainer.max_rounds": 60, "trainer.callbacks": [{"class_path": "ModelCheckpoint"}]}
CHECKPOINTS["trainer.callbacks"][0]["init_args"] = {"every_n_rounds": 1, "monitor": "val/rmse", "save_models": False}


def start(*words):
    environment = {**os.environ, "PYTHONPATH": str(Path(lightning_fl.__file__).parents[1])}
    command = [sys.executable, "-m", "lightning_fl", "study", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def end(process):
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


def declare(**content):
    Path("s.yaml").write_text(yaml.safe_dump({"title": "Tiny", "metric": "rmse", **content}, sort_keys=False))
    return "s.yaml"


def wait_until(condition, process):
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def cells(out):
    return sorted((Path(out) / "cells").iterdir())


def attempts(cell):
    events = [json.loads(line) for line in (cell / "attempts.jsonl").read_text().splitlines()]
    return [event["resumed"] for event in events if "resumed" in event]


def metrics_of(folder):
    """The finished run in a folder that is not an earlier, interrupted one."""
    last = max(folder.glob("version_*/summary.json"), key=lambda path: int(path.parent.name.removeprefix("version_")))
    return json.loads(last.read_text())["metrics"]


def plain_fit(command, folder, *words):
    code, _, err = command(
        *("fit", "--config", "tiny.yaml", "--trainer.default_root_dir", folder),
        *("--trainer.enable_progress_bar", "false", *words),
    )
    assert code == 0, err
    return metrics_of(Path(folder))


def test_cells_are_fits_and_a_failing_one_does_not_stop_the_rest(tiny, command):
    path = declare(
        seeds=[0, 4],
        arms={
            "plain": "tiny.yaml",
            "wide": {"recipe": "tiny.yaml", "overrides": {"model.hidden_dim": 12, "trainer": {"max_rounds": 2}}},
            "broken": {"recipe": "tiny.yaml", "overrides": {"model.learning_rate": 1e30}},
        },
        claims=["mean(wide) > 0", "mean(broken) > 0"],
    )
    code, out, err = end(start(path, "--workers", "2", "--out", "out"))
    assert (code, err) == (1, "")
    assert "6 cells, 0 done, 2 workers" in out
    assert out.count(": done in ") == 4
    assert out.count("failed after") == 2
    assert "log: out/cells/broken,seed=0-" in out
    logs = [(cell / "log.txt").read_text() for cell in cells("out") if cell.name.startswith("broken")]
    assert all("error: " in log for log in logs)
    table = Path("out/table.md").read_text()
    assert "| broken | failed | failed |" in table
    assert "- broken, seed 4: " in table
    assert "| mean(broken) > 0 |  | undecided |" in Path("out/claims.md").read_text()
    found = {cell.name.rpartition("-")[0]: metrics_of(cell) for cell in cells("out") if cell.name[0] != "b"}
    wide = ["--model.hidden_dim", "12", "--trainer.max_rounds", "2"]
    for seed in ("0", "4"):
        assert found[f"plain,seed={seed}"] == plain_fit(command, f"plain_{seed}", "--seed_everything", seed)
        assert found[f"wide,seed={seed}"] == plain_fit(command, f"wide_{seed}", "--seed_everything", seed, *wide)


def test_faults_of_any_arm_are_said_before_anything_is_run(tiny):
    path = declare(
        seeds=[0],
        arms={
            "plain": "tiny.yaml",
            "typo": {"recipe": "tiny.yaml", "overrides": {"trainer.max_round": 3}},
            "range": {"recipe": "tiny.yaml", "overrides": {"trainer": {"max_rounds": 0}}},
        },
    )
    code, out, err = end(start(path, "--out", "out", "--workers", "2"))
    assert (code, out) == (2, "3 cells, 0 done, 2 workers\n")
    assert err.splitlines() == [
        "error: typo: trainer.max_round: there is no such key (did you mean 'max_rounds'?).",
        "error: range: trainer.max_rounds=0: give a number of at least 1.",
    ]
    assert not list(Path("out").glob("cells/*/version_*"))


def test_stopped_and_killed_it_goes_on_and_runs_nothing_twice(tiny, command):
    path = declare(seeds=[0, 1, 2], arms={"a": {"recipe": "tiny.yaml", "overrides": CHECKPOINTS}})

    def half_way(number):
        """A cell is done, another one has a checkpoint: the moment at which it hurts."""
        begun = [cell for cell in cells("out") if list(cell.glob("version_*/checkpoints/last.ckpt"))]
        done = [cell for cell in cells("out") if list(cell.glob("version_*/summary.json"))]
        return len(done) == number and len(begun) > len(done)

    words = [path, "--workers", "1", "--out", "out"]
    process = start(*words)
    wait_until(lambda: Path("out/cells").exists() and half_way(0), process)
    process.send_signal(signal.SIGINT)
    code, out, err = end(process)
    assert code == 130
    assert "SIGINT: the running cells finish their round and save it" in out
    assert "3 of 3 cells are not done." in out
    assert err == "To go on: lightning-fl study s.yaml --workers 1 --out out\n"
    assert [attempts(cell) for cell in cells("out") if (cell / "attempts.jsonl").exists()] == [[False]]

    process = start(*words)
    wait_until(lambda: sum((cell / "attempts.jsonl").exists() for cell in cells("out")) == 2, process)
    second = next(cell for cell in cells("out") if cell.name.startswith("a,seed=1"))
    wait_until(lambda: list(second.glob("version_*/checkpoints/last.ckpt")), process)
    process.kill()
    process.communicate()
    versions = len(list(second.glob("version_*")))

    code, out, err = end(start(*words))
    assert (code, err) == (0, "")
    assert "3 cells, 1 done, 1 worker" in out
    assert "a, seed 1: goes on" in out
    assert [attempts(cell) for cell in cells("out")] == [[False, True], [False, True], [False]]
    assert len(list(second.glob("version_*"))) == versions + 1  # nobody went on with it after the kill
    values = {cell.name[: len("a,seed=0")]: metrics_of(cell) for cell in cells("out")}
    for seed in ("0", "1", "2"):
        settings = [f"--{key}={json.dumps(value)}" for key, value in CHECKPOINTS.items()]
        whole = plain_fit(command, f"whole_{seed}", "--seed_everything", seed, *settings)
        assert values[f"a,seed={seed}"]["test"] == whole["test"]
    before = Path("out/table.md").read_text()
    code, out, _ = end(start(*words))
    assert code == 0
    assert "cells," not in out
    assert Path("out/table.md").read_text() == before
    assert [attempts(cell) for cell in cells("out")] == [[False, True], [False, True], [False]]
