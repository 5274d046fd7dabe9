"""``lightning-fl study`` where no cell is run."""

import json
import re
from pathlib import Path
from shutil import rmtree

import pandas as pd
import pytest
import yaml

from lightning_fl.cli import make_parser
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.recipe.parser import parse
from lightning_fl.study.cells import make_cells
from lightning_fl.study.local_workers import LocalWorkers
from lightning_fl.study.study_file import load_study

STUDY = {
    "title": "Tiny",
    "metric": "rmse",
    "seeds": [0, 1],
    "arms": {"a": "tiny.yaml", "b": "tiny.yaml"},
    "grid": {"size": {"small": {}, "large": {"data.batch_size": 16}}},
    "scales": {"quick": {"seeds": [0], "grid": {"size": ["small"]}}},
}


@pytest.fixture
def study(tiny):
    Path("tiny_study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    return "tiny_study.yaml"


def finish_all(out, scale=None):
    """Lay down a finished run for every cell that a dry run or an earlier command made known."""
    for cell in make_cells(load_study(Path("tiny_study.yaml"), scale), Path(out)):
        cell.prepare()
        run = cell.folder / "version_0"
        run.mkdir()
        value = 1.0 + cell.seed + (cell.arm == "b")
        metric = {"mean": value, "worst": value, "best": value, "std": 0.0, "clients": {"x": value}}
        record = {"seed": cell.seed, "data_source": "measured", "data": {}, "wall_time_seconds": 1.0}
        record |= {"strategy": "FedAvg", "client_names": ["x"]}
        record["metrics"] = {"test": {"rmse": {**metric, "higher_is_better": False}}}
        (run / "summary.json").write_text(json.dumps(record))


def test_studies_are_listed(command):
    code, out, _ = command("study")
    assert code == 0
    names = [line.split("  ")[0] for line in out.splitlines() if not line.startswith(" ")]
    assert "digits" in names
    assert names == sorted(names)


def test_a_dry_run_lists_the_cells_and_makes_nothing(study, command):
    code, out, _ = command("study", study, "--dry-run")
    assert code == 0
    assert out.splitlines()[:3] == [
        "open    a, size=small, seed 0",
        "open    a, size=small, seed 1",
        "open    a, size=large, seed 0",
    ]
    assert len(out.splitlines()) == 8
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--scale", "quick"], ["a, size=small, seed 0", "b, size=small, seed 0"]),
        (["--only", "arm=b", "size=large"], ["b, size=large, seed 0", "b, size=large, seed 1"]),
        (["--scale", "quick", "--only", "arm=a,b", "--seeds", "5"], ["a, size=small, seed 5", "b, size=small, seed 5"]),
        (["--seeds", "3", "4", "--only", "arm=a", "size=small"], ["a, size=small, seed 3", "a, size=small, seed 4"]),
        (["--only", "arm=b", "--seeds", "7", "--only", "size=large"], ["b, size=large, seed 7"]),
    ],
)
def test_a_part_of_the_cells(study, command, words, names):
    code, out, _ = command("study", study, "--dry-run", *words)
    assert code == 0
    assert [line.removeprefix("open").strip() for line in out.splitlines()] == names


@pytest.mark.parametrize(
    ("name", "option", "words"),
    [
        ("study digits", "only", ["arm=a", "size=large"]),
        ("study digits", "seeds", ["3", "1"]),
        ("compare runs", "metric", ["rmse", "mae"]),
        ("predict run new.csv", "with", ["other", "third"]),
    ],
)
def test_an_option_that_is_given_again_adds_to_the_first(name, option, words):
    command, *places = name.split()
    parser = make_parser(command)

    def given(*options):
        return vars(parser.parse_args([*places, *options]))

    first, second = words
    assert given(f"--{option}", first, f"--{option}", second) == given(f"--{option}", first, second)
    once, without = given(f"--{option}", first), given()
    assert [list(map(str, once[key])) for key in once if once[key] != without[key]] == [[first]]


def test_a_cell_runs_in_a_folder_whose_name_looks_like_yaml(study, command, parser):
    assert command("study", study, "--out", "tries: a", "--dry-run")[0] == 0
    cell = make_cells(load_study(Path(study)), Path("tries: a"))[0]
    cell.prepare()
    assert parse("fit", parser, cell.arguments()[1:]).trainer.default_root_dir == str(cell.folder)


@pytest.mark.slow
def test_what_is_done_is_not_run_again(study, command):
    finish_all("runs/tiny_study/quick", "quick")
    assert command("study", study, "--scale", "quick")[0] == 0
    assert Path("runs/tiny_study/quick/table.md").is_file()
    finish_all("there")
    code, out, _ = command("study", study, "--out", "there")
    assert code == 0
    assert "1.500 ± 0.707" in out
    assert out.endswith("study: there\n")
    assert {path.name for path in Path("there").iterdir()} >= {
        *("table.md", "claims.md", "results.csv", "claims.csv", "study.yaml", "environment.json", "cells")
    }
    code, out, _ = command("study", "there/study.yaml", "--out", "there", "--dry-run")
    assert {line.split()[0] for line in out.splitlines()} == {"done"}


def test_results_say_which_runs_with_other_seeds_they_leave_out(study, command):
    finish_all("out")
    shown = []
    for seeds in (["1"], ["0"], ["0", "1"]):
        code, _, err = command("study", study, "--out", "out", "--seeds", *seeds)
        assert code == 0
        assert sorted(set(pd.read_csv("out/results.csv")["seed"])) == sorted(map(int, seeds))
        shown.append("--seeds 0 1 " in err)
    assert shown == [True, True, False]


@pytest.mark.slow
def test_a_metric_that_no_run_has_is_said_in_a_line_and_runs_nothing_more(study, command):
    finish_all("runs/tiny_study/full")
    Path(study).write_text(yaml.safe_dump({**STUDY, "metric": "rmsee", "seeds": [0, 1, 2]}, sort_keys=False))
    code, out, err = command("study", study)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.endswith("has no test metric 'rmsee' (did you mean 'rmse'?). It has rmse (test).\n")
    assert err.count("\n") == 1


def test_a_finished_run_without_the_metric_counts_as_failed(study, command):
    finish_all("out")
    (last, *_) = Path("out/cells").glob("b,size=large,seed=1-*/version_0/summary.json")
    last.write_text(last.read_text().replace('"rmse"', '"mae"'))
    code, out, _ = command("study", study, "--out", "out")
    assert "has no test metric 'rmse'" in out
    assert code == 1
    assert command("study", study, "--out", "out", "--shard", "1/8")[0] == 0
    assert command("study", study, "--out", "out", "--shard", "8/8")[0] == 1


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["digit"], "'digit'.*did you mean 'digits'"),
        (["."], "'.' is a folder"),
        (["STUDY", "--scale", "quik"], "'quik'.*did you mean 'quick'"),
        (["STUDY", "--only", "arm"], "--only arm.*arm, size"),
        (["STUDY", "--only", "am=a"], "--only am=a.*did you mean 'arm'"),
        (["STUDY", "--only", "arm=c"], "--only arm=c.*a, b"),
        (["STUDY", "--seeds", "1", "1"], "--seeds 1 1"),
        (["STUDY", "--seeds", "-1"], "--seeds -1"),
        (["STUDY", "--workers", "0"], "--workers=0"),
        (["STUDY", "--out", "tiny.csv"], "tiny.csv .*--out"),
        (["STUDY", "--sale", "x"], "sale"),
        *(
            (["STUDY", f"--shard={text}"], f"--shard {text}")
            for text in ("0/3", "4/3", "3", "1/0", "-1/3", "a/b", "1/2/3")
        ),
        (["STUDY", "--shard="], "--shard"),
    ],
)
def test_refusals_are_one_line(study, command, words, name):
    code, out, err = command("study", *(study if word == "STUDY" else word for word in words))
    assert (code, out) == (2, "")
    assert re.search(name, err), err
    assert len(err.splitlines()) == 1


def test_excluded_cells_cannot_be_asked_for(study, command):
    Path(study).write_text(yaml.safe_dump({**STUDY, "exclude": [{"arm": "a", "size": "large"}]}))
    code, _, err = command("study", study, "--only", "arm=a", "size=large", "--dry-run")
    assert (code, err) == (2, "error: --only arm=a size=large: the study has no such cell; see --dry-run.\n")


def test_a_system_that_cannot_fork(monkeypatch):
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ConfigurationError, match="use Linux or macOS"):
        LocalWorkers(1)


@pytest.mark.slow
def test_cells_of_another_process_are_counted(study, command):
    finish_all("out")
    rmtree(next(Path("out/cells").glob("a,size=small,seed=0-*/version_0")))
    with make_cells(load_study(Path(study)), Path("out"))[0].lock:
        code, out, err = command("study", study, "--out", "out")
        assert (code, err) == (1, "other processes run 1 of these cells; the last to end writes all results\n")
        assert "study: out" in out


def test_no_log_is_named_that_is_not_there(study, command):
    finish_all("out")
    assert command("study", study, "--out", "out")[0] == 0
    found = pd.read_csv("out/results.csv", dtype=str)
    found["failure"] = ""
    found.loc[0, ["status", "failure"]] = "failed", "it broke"
    found.to_csv("kept.csv", index=False)
    for folder, is_there in (("out", True), ("drawn", False)):
        (log := Path("out", found["log"][0])).write_text("x")
        code, out, _ = command("study", study, "--from", "kept.csv", "--out", folder)
        assert code == 0
        assert "it broke" in out
        texts = out, Path(folder, "table.md").read_text()
        assert [log.name in text for text in texts] == [is_there, is_there]


def test_results_are_drawn_without_the_runs(study, command):
    finish_all("out")
    assert command("study", study, "--out", "out")[0] == 0
    pd.read_csv("out/results.csv").drop(columns=["run_folder", "log", "failure"]).to_csv("kept.csv", index=False)
    tables = {name: Path("out", name).read_text() for name in ("table.md", "claims.md", "claims.csv")}
    rmtree("out")
    code, out, err = command("study", study, "--from", "kept.csv", "--out", "drawn")
    assert (code, err) == (0, "")
    assert "study: drawn" in out
    assert {name: Path("drawn", name).read_text() for name in tables} == tables
    assert "<svg" in Path("drawn/report.html").read_text()
    assert not Path("drawn/cells").exists()
    for words in (["--workers", "2"], ["--only", "arm=b"], ["--dry-run"]):
        code, _, err = command("study", study, "--from", "kept.csv", *words)
        assert (code, "--from kept.csv" in err) == (2, True)


# -- shares ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 11])
@pytest.mark.parametrize("only", [[], ["--only", "arm=b"]])
def test_shares_are_disjoint_and_together_all(study, command, count, only):
    def cells(*words):
        code, out, _ = command("study", study, "--dry-run", *only, *words)
        assert code == 0
        return [line.removeprefix("open").strip() for line in out.splitlines()]

    shares = [cells("--shard", f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(name for share in shares for name in share) == sorted(cells())
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert shares == [cells("--shard", f"{number}/{count}") for number in range(1, count + 1)]


def test_the_share_that_ends_last_writes_the_results(study, command):
    finish_all("out")
    open_one = sorted(Path("out/cells").glob("b,size=large,seed=1-*/version_0"))[0]
    open_one.rename("kept")
    code, _, err = command("study", study, "--out", "out", "--shard", "1/2")
    assert (code, err) == (0, "other processes run 1 of these cells; the last to end writes all results\n")
    assert "1 of 8 cells are not done" in Path("out/table.md").read_text()
    Path("kept").rename(open_one)
    assert command("study", study, "--out", "out", "--shard", "1/2")[0] == 0
    of_share = Path("out/table.md").read_text()
    assert command("study", study, "--out", "out")[0] == 0
    assert Path("out/table.md").read_text() == of_share
