"""The fault laboratory judges rightly: ``benchmarks/faults.py``, a few trials of which ``.ci/run`` runs."""

import json
from pathlib import Path

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
