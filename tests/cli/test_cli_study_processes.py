"""A study in processes of its own: its runs are those of ``fit``, and whatever stops it, nothing is run twice."""

import json
import signal
from pathlib import Path

import pytest
import yaml
from meeting import meeting
from processes import SUPPORT

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MODELS = {"every_n_rounds": 1, "monitor": "val/rmse", "save_models": False}
#: A run of six rounds, each with a checkpoint, in the third of which it meets the test.
MEETS = {
    "trainer.max_rounds": 6,
    "trainer.callbacks": [
        {"class_path": "ModelCheckpoint", "init_args": MODELS},
        {"class_path": "meeting.Meeting", "init_args": {"round_number": 3}},
    ],
}


@pytest.fixture
def study(start_warm):
    """Start a study whose server is forked as well, or, with ``own_server``, a new interpreter as anywhere else."""

    def started(*words, environment=None, own_server=False):
        path = {"PYTHONPATH": str(SUPPORT)}  # where the module ``meeting`` is
        how = ["-m", "lightning_fl"] if own_server else [SUPPORT / "warm_study.py"]
        return start_warm(*how, "study", *words, environment=path | (environment or {}))

    return started


def declare(**content):
    Path("s.yaml").write_text(yaml.safe_dump({"title": "Tiny", "metric": "rmse", **content}, sort_keys=False))
    return "s.yaml"


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


def test_cells_are_fits_and_a_failing_one_does_not_stop_the_rest(tiny, command, study):
    path = declare(
        seeds=[0, 4],
        arms={
            "plain": "tiny.yaml",
            "wide": {"recipe": "tiny.yaml", "overrides": {"model.hidden_dim": 12, "trainer": {"max_rounds": 2}}},
            "broken": {"recipe": "tiny.yaml", "overrides": {"model.learning_rate": 1e30}},
        },
        claims=["mean(wide) > 0", "mean(broken) > 0"],
    )
    code, out, err = study(path, "--workers", "2", "--out", "out").end()
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
    assert "| mean(broken) > 0 | undecided |" in Path("out/claims.md").read_text()
    found = {cell.name.rpartition("-")[0]: metrics_of(cell) for cell in cells("out") if cell.name[0] != "b"}
    wide = ["--model.hidden_dim", "12", "--trainer.max_rounds", "2"]
    for seed in ("0", "4"):
        assert found[f"plain,seed={seed}"] == plain_fit(command, f"plain_{seed}", "--seed_everything", seed)
        assert found[f"wide,seed={seed}"] == plain_fit(command, f"wide_{seed}", "--seed_everything", seed, *wide)


def test_faults_of_any_arm_are_said_before_anything_is_run(tiny, study):
    path = declare(
        seeds=[0],
        arms={
            "plain": "tiny.yaml",
            "typo": {"recipe": "tiny.yaml", "overrides": {"trainer.max_round": 3}},
            "range": {"recipe": "tiny.yaml", "overrides": {"trainer": {"max_rounds": 0}}},
        },
    )
    code, out, err = study(path, "--out", "out", "--workers", "2").end()
    assert (code, out) == (2, "3 cells, 0 done, 2 workers\n")
    assert err.splitlines() == [
        "error: typo: trainer.max_round: there is no such key (did you mean 'max_rounds'?).",
        "error: range: trainer.max_rounds=0: must be at least 1.",
    ]
    assert not Path("out").exists()


def test_modules_in_the_working_folder_are_found(tiny, study):
    Path("own_strategy.py").write_text("from lightning_fl.strategies import FedAvg\nclass Mine(FedAvg):\n    pass\n")
    overrides = {"trainer": {"max_rounds": 1, "strategy": {"class_path": "own_strategy.Mine"}}}
    path = declare(seeds=[0], arms={"mine": {"recipe": "tiny.yaml", "overrides": overrides}})
    code, out, err = study(path, "--out", "out", "--workers", "1", own_server=True).end()
    assert (code, err) == (0, ""), out
    (cell,) = cells("out")
    assert json.loads((cell / "version_0" / "summary.json").read_text())["strategy"] == "Mine"


def test_stopped_and_killed_it_goes_on_and_runs_nothing_twice(tiny, command, study):
    path = declare(seeds=[0, 1, 2], arms={"a": {"recipe": "tiny.yaml", "overrides": MEETS}})

    def half_way(number):
        """A cell is done, another one has a checkpoint: the moment at which it hurts."""
        begun = [cell for cell in cells("out") if list(cell.glob("version_*/checkpoints/last.ckpt"))]
        done = [cell for cell in cells("out") if list(cell.glob("version_*/summary.json"))]
        return len(done) == number and len(begun) > len(done)

    words = [path, "--workers", "1", "--out", "out"]
    with meeting() as (server, environment):
        process = study(*words, environment=environment)
        with process.until_it_connects(server) as cell:
            assert half_way(0)
            process.send_signal(signal.SIGINT)
            assert cell.recv(1) == b""  # it goes on because of the signal, not at the test's word
        code, out, err = process.end()
    assert code == 130
    assert "SIGINT: running cells finish their round" in out
    assert "3 of 3 cells are not done." in out
    assert err == "To resume: lightning-fl study s.yaml --workers 1 --out out\n"
    assert [attempts(cell) for cell in cells("out") if (cell / "attempts.jsonl").exists()] == [[False]]

    with meeting() as (server, environment):
        process = study(*words, environment=environment)
        with process.until_it_connects(server) as cell:
            assert half_way(1)
            second = next(cell for cell in cells("out") if cell.name.startswith("a,seed=1"))
            assert list(second.glob("version_*/checkpoints/last.ckpt"))
            process.send_signal(signal.SIGKILL)
            assert cell.recv(1) == b""  # it is ended along with the study
        process.end()
    versions = len(list(second.glob("version_*")))

    code, out, err = study(*words).end()
    assert (code, err) == (0, "")
    assert "3 cells, 1 done, 1 worker" in out
    assert "a, seed 1: resumed" in out
    assert [attempts(cell) for cell in cells("out")] == [[False, True], [False, True], [False]]
    assert len(list(second.glob("version_*"))) == versions + 1  # nobody went on with it after the kill
    values = {cell.name[: len("a,seed=0")]: metrics_of(cell) for cell in cells("out")}
    for seed in ("0", "1", "2"):
        settings = [f"--{key}={json.dumps(value)}" for key, value in MEETS.items()]
        whole = plain_fit(command, f"whole_{seed}", "--seed_everything", seed, *settings)
        assert values[f"a,seed={seed}"]["test"] == whole["test"]
    before = Path("out/table.md").read_text()
    code, out, _ = study(*words).end()
    assert code == 0
    assert "cells," not in out
    assert Path("out/table.md").read_text() == before
    assert [attempts(cell) for cell in cells("out")] == [[False, True], [False, True], [False]]


def test_a_signal_while_recipes_are_checked_ends_the_study_and_what_it_started(tiny, study):
    path = declare(seeds=[0, 1], arms={"a": "tiny.yaml"})
    process = study(path, "--workers", "2", "--out", "out", own_server=True)
    process.until_it_prints("0 done")
    process.send_signal(signal.SIGINT)
    code, _, err = process.end()  # of the server too, which shares its output
    assert (code, err) == (130, "interrupted\n")
    assert not list(Path("out").glob("cells/*/version_*"))


def test_shares_at_the_same_time_get_what_one_study_gets(tiny, study):
    path = declare(seeds=[0, 1, 2], arms={"a": "tiny.yaml"})
    shares = [study(path, "--workers", "1", "--out", "shares", "--shard", f"{number}/2") for number in (1, 2)]
    ended = [share.end() for share in shares]
    assert [one.code for one in ended] == [0, 0], ended
    assert ["2 cells, 0 done, 1 worker" in ended[0].out, "1 cell, 0 done, 1 worker" in ended[1].out] == [True, True]
    assert [attempts(cell) for cell in cells("shares")] == [[False]] * 3
    whole = study(path, "--workers", "1", "--out", "whole").end()
    assert whole.code == 0, whole.err
    assert [cell.name for cell in cells("shares")] == [cell.name for cell in cells("whole")]
    assert [metrics_of(cell) for cell in cells("shares")] == [metrics_of(cell) for cell in cells("whole")]
    assert Path("shares/claims.md").exists() == Path("whole/claims.md").exists()
    assert "a" in Path("shares/table.md").read_text()
