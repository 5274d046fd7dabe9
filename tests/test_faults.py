"""The fault laboratory judges rightly: ``benchmarks/faults.py``, a few trials of which ``.ci/run`` runs."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FOLDER.exists():
        pytest.skip("the benchmarks are not in this distribution")
    monkeypatch.syspath_prepend(FOLDER)


class Command:
    """What is judged of a command."""

    def __init__(self, code: int | None, err: str) -> None:
        self.code, self.err = code, err


@pytest.mark.parametrize(
    ("code", "err", "verdict", "problem"),
    [
        (2, "a warning\nerror: a.csv: row 5: give a number.\n", "good", "error: a.csv"),
        (2, "error: r.yaml: fails\nerror: r.yaml: fails\nerror: a.csv too\n", "good", "error: r.yaml"),  # by two ranks
        (None, "", "bad", "hang"),
        (-11, "", "bad", "died with -11"),
        (1, "Traceback (most recent call last):\nKeyError: 'x'\n", "poor", "traceback: KeyError"),
        (2, "", "poor", "exit 2 without a word"),
        (2, "error: a.csv: set weights_only to False\n", "poor", "passes on unsafe advice"),
        (2, "error: a.csv is wrong (KeyError: 3)\n", "poor", "inner words"),
        (2, "error: it is wrong\n", "poor", "names none of"),
        (2, "error: a.csv is wrong\none\ntwo\nthree\n", "poor", "4 lines"),
        (2, f"error: a.csv is {'x' * 3000}\n", "poor", "characters"),
    ],
)
def test_an_answer_to_bad_input_is_judged(
    code: int | None, err: str, verdict: str, problem: str, tmp_path: Path
) -> None:
    from fault_kinds.judging import judge_refusal

    found, why = judge_refusal(Command(code, err), tmp_path, ["A.csv"])  # type: ignore[arg-type]
    assert (found, problem in why) == (verdict, True), why


def test_an_error_after_a_round_is_late(tmp_path: Path) -> None:
    from fault_kinds.judging import judge_refusal

    (tmp_path / "metrics.csv").write_text("step,loss\n1,0.5\n")
    command = Command(2, "error: a.csv is wrong\n")
    assert judge_refusal(command, tmp_path, ["a.csv"])[0] == "poor"  # type: ignore[arg-type]
    assert judge_refusal(command, tmp_path, ["a.csv"], early=False)[0] == "good"  # type: ignore[arg-type]


def test_a_run_that_lacks_a_clients_model_is_found(tmp_path: Path) -> None:
    from fault_kinds.judging import whole_record

    assert whole_record(tmp_path) == "exit 0 without summary.json"
    metric = {"rmse": {"mean": 0.5}}
    (tmp_path / "models").mkdir()
    for name in ("shared_0", "_"):
        (tmp_path / "models" / f"{name}.ckpt").touch()
    (tmp_path / "summary.json").write_text(json.dumps({"client_names": ["α", "β"], "metrics": {"test": metric}}))
    assert whole_record(tmp_path).startswith("2 clients ['α', 'β'], but 1 models")
    (tmp_path / "models" / "b.ckpt").touch()
    assert whole_record(tmp_path) == ""
    metric["rmse"]["mean"] = None  # type: ignore[assignment]
    (tmp_path / "summary.json").write_text(json.dumps({"client_names": ["α", "β"], "metrics": {"test": metric}}))
    assert whole_record(tmp_path) == "exit 0 with rmse of test not finite"


def write_run(folder: Path, names: list[str]) -> Path:
    """A run's record, with a model of each client."""
    run = folder / "runs" / "version_0"
    (run / "models").mkdir(parents=True)
    for name in ("shared_0", *names):
        (run / "models" / f"{name}.ckpt").touch()
    (run / "summary.json").write_text(json.dumps({"client_names": names, "metrics": {}}))
    return run


@pytest.mark.parametrize(
    ("before", "value", "kept", "verdict", "problem"),
    [
        (0.1, float("nan"), "nan", "bad", "NaN accepted silently"),
        (0.1, "nan", "nan", "bad", "NaN accepted silently"),
        (0.1, float("inf"), ".inf", "poor", "infinity accepted silently"),
        (3, True, "true", "poor", "true taken for a number"),
        (3, -3, "-3", "poor", "negative number accepted"),
        (3, None, "3", "good", "the default"),
        (3, 4, "3", "bad", "accepted, but config.yaml says 3"),
        (3, "0x10", "16", "good", "accepted"),
        ("FedAvg", "fedavg", "{class_path: lightning_fl.strategies.fedavg}", "good", "accepted"),
    ],
)
def test_a_changed_value_that_is_accepted_must_be_used(
    before: Any, value: Any, kept: str, verdict: str, problem: str, tmp_path: Path
) -> None:
    from fault_kinds.inputs import judge_accepted

    run = write_run(tmp_path, ["a", "b"])
    (run / "config.yaml").write_text(f"model:\n  size: {kept}\n")
    command: Any = Command(0, "")
    assert judge_accepted(command, tmp_path, ("model", "size"), before, value, "it")[::2] == (verdict, problem)
    assert judge_accepted(command, tmp_path, ("model", "other"), "x", "y", "it")[0] == "bad"  # not in config.yaml
    assert judge_accepted(Command(None, ""), tmp_path, ("model",), 1, 2, "it")[::2] == ("bad", "hang")  # type: ignore[arg-type]


def test_a_table_that_is_accepted_must_give_its_clients(tmp_path: Path) -> None:
    from fault_kinds.csv_inputs import judge_run

    write_run(tmp_path, ["a", "b"])
    assert judge_run("", tmp_path, ["b", "a"], "works", [], "it")[0] == "good"
    assert judge_run("", tmp_path, ["a", "c"], "works", [], "it")[2] == "clients ['a', 'b'] instead of ['a', 'c']"
    assert judge_run("", tmp_path, ["a", "c"], "either", [], "it")[0] == "good"
    assert judge_run("", tmp_path, ["a", "b"], "fails", ["twice"], "it")[0] == "bad"
    assert judge_run("y is there twice", tmp_path, ["a", "b"], "fails", ["twice"], "it")[0] == "good"
    (tmp_path / "escaped").touch()
    assert judge_run("", tmp_path, ["a", "b"], "works", [], "it")[2].startswith("files outside the run's folder")


@pytest.mark.parametrize(
    ("code", "err", "sent", "problem"),
    [
        (0, "", signal.SIGKILL, ""),
        (2, "error: rank 1 (b) is lost\n", signal.SIGKILL, ""),
        (2, "error: node 1 is lost\n", signal.SIGSTOP, ""),
        (2, "error: another rank is lost\n", signal.SIGKILL, "does not name rank 1"),
        (130, "interrupted\n", signal.SIGINT, ""),
        (1, "Traceback (most recent call last):\nEOFError\n", signal.SIGKILL, "traceback"),
        (2, "error: rank 1\na\nb\nc\n", signal.SIGKILL, "4 lines"),
    ],
)
def test_who_survives_a_peer_names_it(code: int, err: str, sent: int, problem: str) -> None:
    from fault_kinds.peers import judge_survivor

    found = judge_survivor(Command(code, err), sent, 1)  # type: ignore[arg-type]
    assert found.startswith(problem) if problem else not found, found


@pytest.mark.parametrize(
    ("code", "err", "verdict", "problem"),
    [
        (2, "error: runs/x.csv: No space left on device.\n", "good", "error: runs"),
        (2, "error: it failed.\n", "poor", "does not name the disk"),
        (2, "error: no space left\nException ignored in: <f>\n", "poor", "traceback"),
        (None, "", "bad", "hang"),
        (-9, "", "bad", "died of signal 9"),
        (0, "", "bad", "exit 0: 1 x summary.json is missing"),
    ],
)
def test_the_end_on_a_full_disk_is_judged(
    code: int | None, err: str, verdict: str, problem: str, tmp_path: Path
) -> None:
    from fault_kinds.disks import judge_full_disk

    command: Any = Command(code, err)
    found, why = judge_full_disk(command, tmp_path, {})
    assert (found, why.startswith(problem)) == (verdict, True), why
    checkpoints = tmp_path / "runs" / "version_0" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "last.ckpt").write_bytes(b"half")
    if code == 2:
        assert judge_full_disk(command, tmp_path, {})[0] == "bad"  # what was kept is not whole


@pytest.mark.parametrize("seed", range(20))
def test_files_are_damaged_by_their_seed_and_never_run(seed: int, tmp_path: Path) -> None:
    from fault_kinds.damage import GONE, damage, executed

    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path, other = tmp_path / name / "a.csv", tmp_path / name / "b.csv"
        path.write_bytes(bytes(range(200)))
        other.write_text("another")
        how = damage(path, [path, other], random.Random(seed))
        assert path.is_file() == (how not in GONE)
        assert other.read_text() == "another"
        found.append((how, path.read_bytes() if path.is_file() else None))
    assert found[0][0] == found[1][0]
    # Archives hold the time at which they were made.
    assert found[0] == found[1] or any(word in how for word in ("zip", "payload", "npz", "announces"))
    assert not executed(tmp_path, tmp_path)
    (tmp_path / "one" / "EXECUTED").mkdir()
    assert executed(tmp_path, tmp_path)


def test_two_runs_are_compared_in_every_bit_and_row(tmp_path: Path) -> None:
    import torch
    from fault_kinds.record import differences, record_of, summary_of

    for name, value, rows in (("one", 1.0, "1,0.5\n2,0.4\n"), ("two", 1.0 + 2**-23, "2,0.4\n")):
        run = tmp_path / name
        (run / "models").mkdir(parents=True)
        torch.save({"state_dict": {"w": torch.tensor([value, 2.0])}}, run / "models" / "a.ckpt")
        (run / "metrics.csv").write_text(f"step,loss\n{rows}")
        (run / "summary.json").write_text(json.dumps({"rounds": 2, "wall_time_seconds": value}))
    one, two = record_of(tmp_path / "one"), record_of(tmp_path / "two")
    assert differences(one, one) == []
    found = differences(one, two)
    assert [line.split(":")[0] for line in found] == ["metrics.csv", "metrics.csv", "models/a.ckpt"]
    assert "metrics.csv:2 is missing" in found
    assert "; 1 x models/a.ckpt:state_dict.w: torch.float32 (2,)" in summary_of(found)


@pytest.mark.processes
@pytest.mark.parametrize(("at", "lasts", "left"), [(1, False, []), (2, False, ["a"]), (3, True, ["a"])])
def test_a_disk_fails_at_the_change_that_is_asked_for(at: int, lasts: bool, left: list[str], tmp_path: Path) -> None:
    from fault_kinds.hooks import full_disk

    (tmp_path / "disk").mkdir()
    program = full_disk(str(tmp_path / "disk"), at, lasts, 28).split("\nimport sys\nfrom lightning_fl")[0]
    # Each file takes two changes: it is opened, and written to.
    write = "for name in 'ab':\n    with open(f'disk/{name}', 'w') as file:\n        file.write(name)\n"
    failed = f"{program}\ntry:\n    exec({write!r})\nexcept OSError as error:\n    print(error.strerror)\n"
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", failed], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "No space left on device\n"
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == left
