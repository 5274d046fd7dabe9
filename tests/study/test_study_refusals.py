"""Refusals of studies and comparisons: the exception and the name of what is at fault."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from study_tiny import finish, tiny_cells, write_study

from lightning_fl.core.errors import CheckpointError, ConfigurationError
from lightning_fl.study.cells import make_cells
from lightning_fl.study.claims import parse_claim
from lightning_fl.study.comparison_table import comparison_table, default_comparison_metric
from lightning_fl.study.finished_run import FinishedRun, find_runs
from lightning_fl.study.intervals import paired_interval
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_file import load_study


@pytest.mark.parametrize(
    ("text", "percent", "name"),
    [
        ("mean(a)", False, "<, <=, > or >="),
        ("mean(a) = mean(b)", False, "before '= mean(b)': expected <"),
        ("3 < 4", False, "statistic of an arm"),
        ("men(a) > 1", False, "'men' (did you mean 'mean'?)"),
        ("mean(c) > 1", False, "arm 'c'; the study has a, b"),
        ("mean a > 1", False, "expected ("),
        ("mean(a > 1", False, "expected )"),
        ("mean() > 1", False, "name of an arm"),
        ("mean(a) >", False, "a number or a quantity"),
        ("mean(a) > 1 1", False, "before '1': expected the end"),
        ("mean(a) > 1 on date=esol", False, "axis 'date' (did you mean 'data'?)"),
        ("mean(a) > 1 on data", False, "= and a value of data"),
        ("mean(a) > 1 on data=", False, "a value of data"),
        ("mean(a) > 1 on data=hiv", False, "'hiv'; the study has esol"),
        ("mean(a) > 1 on data=esol, data=esol", False, "data is set twice"),
        ("mean(a, data=esol) > 1 on data=esol", False, "already sets data"),
        ("ipr(a) >= 0.95", True, "95 %"),
        ("ipr(a) >= 95", False, "95 %"),
    ],
)
def test_claims(text, percent, name):
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        parse_claim(text, ["a", "b"], {"data": ["esol"]}, percent)


SMALL = {"title": "x", "metric": "acc", "seeds": [0], "arms": {"a": "r"}}
GRID = {"grid": {"data": {"x": {}}}}
CHOSEN = {"setting": "rate", "value": 0.1, "candidates": [0.1, 1], "by": "val/acc", "seeds": [100]}


def published(values, **more):
    return {"published": {"source": "x", "values": values}, **more}


def scaled(**scale):
    return {"scales": {"small": scale}}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"titel": 1}, "titel: unknown key (did you mean 'title'?)"),
        ({"title": None}, "title is missing"),
        ({"metric": 3}, "metric is 3"),
        ({"split": "tst"}, "split='tst'"),
        *(({"seeds": seeds}, f"seeds is {seeds}") for seeds in ([], [1, 1], [-1], [True], [[0, 1]], 3)),
        ({"seeds": None}, "seeds is missing"),
        ({"arms": {}}, "arms: "),
        ({"arms": ["a"]}, "arms=['a']: "),
        ({"arms": {0.1: "r"}}, "arms: 0.1 "),
        ({"arms": {"a b": "r"}}, "arms: 'a b' "),
        ({"arms": {"a" * 101: "r"}}, "arms: 'aaa"),
        ({"arms": {"a": 3}}, "arms.a: "),
        ({"arms": {"a": {"recipe": "r", "override": {}}}}, "arms.a.override: unknown key (did you mean 'overrides'?)"),
        ({"arms": {"a": "r_{data}"}}, "arms.a.recipe='r_{data}': unknown axis 'data'"),
        ({"arms": {"a": {"recipe": "r", "overrides": 3}}}, "arms.a.overrides: "),
        ({"overrides": {"seed_everything": 1}}, "overrides: seed_everything "),
        ({"overrides": {"trainer.seed": 1}}, "overrides: trainer.seed "),
        ({"overrides": {"trainer": {"default_root_dir": "x"}}}, "overrides: trainer.default_root_dir "),
        ({"overrides": {"trainer.enable_progress_bar": True}}, "overrides: trainer.enable_progress_bar "),
        ({"grid": {"data": 3}}, "grid.data: "),
        ({"grid": {"mean": {"x": {}}}}, "grid.mean: "),
        ({"exclude": [3]}, "exclude[0]=3: "),
        ({"exclude": {"arm": "a"}}, "exclude={'arm': 'a'}: "),
        ({"exclude": [{"arm": "b"}]}, "exclude[0].arm='b': "),
        ({"exclude": [{"rm": "b"}]}, "exclude[0].rm: unknown axis 'rm' (did you mean 'arm'?)"),
        ({"exclude": [{"arm": "a"}]}, "scale full has no cells"),
        ({"cells": [{"arm": "a"}]}, "cells[0].overrides: "),
        ({"cells": [{"arm": "a", "overrides": {"seed_everything": 1}}]}, "cells[0].overrides: seed_everything "),
        ({"cells": [{"rm": "a", "overrides": {"x": 1}}]}, "cells[0].rm: unknown axis 'rm' (did you mean 'arm'?)"),
        ({"table": {"row": "arm"}}, "table.row: unknown key (did you mean 'rows'?)"),
        ({"table": {"rows": "rm"}}, "table.rows: unknown axis 'rm'"),
        ({"table": {"rows": []}}, "table.rows=[]: "),
        ({"table": {"rows": "arm", "columns": "arm"}}, "table: arm is listed 2 times"),
        ({"table": {"rows": "data", "columns": []}, **GRID}, "table: arm is listed 0 times"),
        ({"table": {"statistics": ["media"]}}, "table.statistics: unknown statistic 'media'"),
        ({"table": {"statistics": [["mean", "worst"]]}}, "table.statistics: unknown statistic \"['mean'"),
        ({"table": {"percent": "yes"}}, "table.percent='yes': "),
        ({"table": {"digits": 11}}, "table.digits=11: "),
        ({"table": {"digits": True}}, "table.digits=True: "),
        ({"published": {"values": {"a": {"mean": 1}}}}, "published.source: "),
        (published(3), "published.values=3: "),
        (published({"b": {}}), "published.values.b: unknown row 'b'"),
        (published({"a": {"std": 1}}), "published.values.a.std: unknown statistic 'std'"),
        (published({"a": {"mean": "1"}}), "published.values.a.mean='1': "),
        (published({"a": 3}), "published.values.a=3: "),
        (published({"a": {"y": {"mean": 1}}}, **GRID), "published.values.a.y: unknown column 'y'"),
        (published({"a": 3}, **GRID), "published.values.a=3: "),
        ({"claims": [3]}, "claims[0]=3: "),
        ({"claims": ["mean(b) > 0"]}, "claims[0]: 'mean(b) > 0' before ') > 0': unknown arm 'b'"),
        ({"chosen": [3]}, "chosen[0]=3: "),
        ({"chosen": [CHOSEN | {"setting": None}]}, "chosen[0].setting is missing"),
        ({"chosen": [CHOSEN | {"valu": 1}]}, "chosen[0].valu: unknown key (did you mean 'value'?)"),
        ({"chosen": [CHOSEN | {"value": 3}]}, "chosen[0].candidates: "),
        ({"chosen": [CHOSEN | {"by": "test/acc"}]}, "chosen[0].by='test/acc': "),
        ({"chosen": [CHOSEN | {"seeds": []}]}, "chosen[0].seeds is []"),
        ({"chosen": [CHOSEN | {"seeds": [7, 0]}]}, "chosen[0].seeds: the study also runs 0"),
        ({"chosen": [CHOSEN], **scaled(seeds=[100])}, "chosen[0].seeds: the study also runs 100"),
        ({"scale": "big"}, "scales: unknown scale 'big'"),
        ({"scales": {"../../../escaped": {"seeds": [1]}}}, "scales.../../../escaped: "),
        ({"scales": {"/abs": {"seeds": [1]}}}, "scales./abs: "),
        ({"scales": {"full": {"seeds": [1]}}}, "scales.full: "),
        ({"scales": {"small": 3}}, "scales.small: "),
        (scaled(seed=[1]), "scales.small.seed: unknown key (did you mean 'seeds'?)"),
        (scaled(seeds=1), "scales.small.seeds is 1"),
        (scaled(arms=["b"]), "scales.small.arms: unknown arm 'b'"),
        (scaled(arms=[["a"]]), "scales.small.arms: unknown arm \"['a']\""),
        (scaled(grid=3), "scales.small.grid=3: "),
        (scaled(grid={"data": ["x"]}), "scales.small.grid.data: unknown axis 'data'"),
        (GRID | scaled(grid={"data": ["y"]}), "scales.small.grid.data: unknown value 'y'"),
    ],
)
def test_study_files(tmp_path, change, fault):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **change}, sort_keys=False))
    with pytest.raises(ConfigurationError) as error:
        load_study(path)
    assert any(line.startswith(f"{path}: {fault}") for line in str(error.value).splitlines()), error.value


@pytest.mark.parametrize(
    ("text", "name"),
    [("", "empty"), ("[1]", "a list"), ("arms: {a: r, a: s}", "key 'a'"), ("arms: {a: r", "line 2, column 1")],
)
def test_files_that_are_not_studies(tmp_path, text, name):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=name):
        load_study(path)


def test_all_faults_are_reported_at_once(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "title": None, "seeds": [], "split": "x"}))
    with pytest.raises(ConfigurationError) as error:
        load_study(path)
    assert len(str(error.value).splitlines()) == 3


def occupied_folder(folder, _):
    cells = tiny_cells(folder)[1]
    (folder / "out").write_text("a file")
    cells[0].prepare()


def other_cell(folder, _):
    cell = tiny_cells(folder)[1][0]
    finish(cell, 0.5)
    (cell.folder / "cell.json").write_text(json.dumps({**cell.content, "seed": 3}))
    cell.prepare()


def results_of_others(folder, _):
    (folder / "results.csv").write_text("arm,data,seed,status,higher_is_better\nz,left,0,done,True\n")
    StudyResults.of_table(tiny_cells(folder)[0], folder / "results.csv")


def interrupted(folder, _):
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").write_text("")
    (folder / "config.yaml").write_text("")
    FinishedRun.read(folder)


def without_seed(_, make):
    comparison_table({"a": [make("a", [0.5], seed=1)]}, reference=[make("l", [0.25], seed=2)])


REFUSALS = {
    "confidence": (lambda _, make: paired_interval([1.0, 2.0], confidence=95), "confidence=95"),
    "no study": (lambda *_: load_study(Path("nowhere.yaml")), "nowhere.yaml"),
    "no recipe": (
        lambda folder, _: make_cells(write_study(folder, arms={"a": "fedavg_digit"}), folder),
        "study.yaml, arms.a: .*'fedavg_digit'.*did you mean 'fedavg_digits'",
    ),
    "folder cannot be written": (occupied_folder, "/out/cells/"),
    "folder of another cell": (other_cell, "cell.json"),
    "no results": (lambda folder, _: StudyResults.read(folder), "has no results"),
    "no table of results": (lambda *_: StudyResults.of_table(None, Path("nowhere.csv")), "nowhere.csv"),
    "results of another study": (results_of_others, "results.csv .* z, data=left, seed 0"),
    "no run": (lambda *_: FinishedRun.read("nowhere"), "^nowhere is not a folder"),
    "no finished run": (lambda folder, _: FinishedRun.read(folder), "summary.json"),
    "interrupted run": (interrupted, "fit --config .*config.yaml --ckpt_path"),
    "no folder of runs": (lambda *_: find_runs("nowhere"), "^nowhere is not a folder"),
    "no runs below": (lambda folder, _: find_runs(folder), "no finished run"),
    "metric of another split": (lambda _, make: make("v0", [1.0]).metric("acc", "val"), r"v0 .*'acc'.*acc \(test\)\."),
    "no metrics": (lambda _, make: make("v0", [1.0], metrics={}).metric("acc"), "no metrics"),
    "no metric in common": (
        lambda _, make: default_comparison_metric({"a": [make("a", [1.0])], "b": [make("b", [1.0], metric="rmse")]}),
        r"no test metric .*a has acc, .*b has rmse\. ",
    ),
    "no metric of the split": (
        lambda _, make: default_comparison_metric({"a": [make("a", [1.0])]}, "val"),
        r"no val metric .*metrics of test: .*--split",
    ),
    "no runs to choose from": (lambda *_: default_comparison_metric({}), "no runs"),
    "nothing to compare": (lambda *_: comparison_table({}), "no runs"),
    "empty row": (lambda *_: comparison_table({"a": []}), "row 'a'"),
    "repeated seed": (
        lambda _, make: comparison_table({"x": [make("a", [1.0]), make("b", [1.0])]}),
        "a and .*b are both 'x' with seed 0",
    ),
    "baseline": (lambda _, make: comparison_table({"a": [make("a", [1.0])]}, baseline="b"), "baseline='b'.* a\\.$"),
    "unknown metric": (lambda _, make: comparison_table({"a": [make("a", [1.0])]}, ["auc"]), "'auc'"),
    "reference without the seed": (without_seed, r"seed 1, only seeds 2\."),
}


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in REFUSALS.items()])
def test_refusals(tmp_path, make_run, row):
    call, name = row
    with pytest.raises(ConfigurationError, match=name):
        call(tmp_path, make_run)


@pytest.mark.parametrize(
    ("value", "damaged", "name"),
    [("0.621", "x.621", ".*x.621"), ("done", "finished", ".*'finished'"), ("", "", ".*empty")],
)
def test_damaged_results(tmp_path, value, damaged, name):
    study, cells = tiny_cells(tmp_path)
    finish(cells[0], 0.621)
    StudyResults.of(study, cells, tmp_path / "out", {}).write(tmp_path / "out")
    table = tmp_path / "out" / "results.csv"
    table.write_text(table.read_text().replace(value, damaged) if value else "")
    with pytest.raises(CheckpointError, match=f"results.csv are damaged{name}"):
        StudyResults.read(tmp_path / "out")


def record(**changes):
    whole = {"data": {}, "data_source": "measured", "strategy": "FedAvg", "seed": 0, "client_names": []}
    return json.dumps({"metrics": {}, **whole, **changes}).encode()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        pytest.param(b"{", "line 1 column 2", id="not JSON"),
        pytest.param(b"\xc2PK\0", "utf-8", id="not text"),
        pytest.param(b"[" * 100_000, "recursion", id="deep"),
        (b'{"metrics": {}}', "'data'"),
        (b"[]", "list"),
        (record(metrics=1), "'metrics'"),
        (record(metrics={"test": {"acc": 3}}), "'metrics'"),
        (record(metrics={"test": {"acc": {"clients": {"a": "x"}, "higher_is_better": True}}}), "'metrics'"),
        (record(communication=[]), "'communication'"),
        (record(gains_over_local_training={"test": {"acc": {}}}), "'gains_over_local_training'"),
    ],
)
def test_damaged_records(tmp_path, content, name):
    (tmp_path / "version_0").mkdir()
    (tmp_path / "version_0" / "summary.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"summary.json .*{name}.*: copy the run again"):
        FinishedRun.read(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "link to itself", "folder"])
def test_settings_that_are_not_a_file(make_run, kind):
    run = make_run("version_0", [1.0], config=False)
    path = run.folder / "config.yaml"
    {"pipe": os.mkfifo, "link to itself": lambda to: to.symlink_to(to), "folder": Path.mkdir}[kind](path)
    with pytest.raises(ConfigurationError, match="version_0/config.yaml"):
        FinishedRun.read(run.folder)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "No columns"),
        (b"round\n1\n", "column step"),
        (b"step,val/acc\n1,0.5\n2,zero\n", "'val/acc'"),
        (b"step,val/acc\n1,0.5\n2,0.5,3\n", "line 3"),
        (b"step,val/acc\n1,\xff\n", "utf-8"),
        (None, "not a file"),
    ],
)
def test_damaged_curves(make_run, content, name):
    run = make_run("version_0", [1.0])
    path = run.folder / "metrics.csv"
    os.mkfifo(path) if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"metrics.csv is damaged \(.*{name}"):
        _ = run.curves


def test_seeds_by_which_settings_were_chosen_are_refused(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "chosen": [CHOSEN]}, sort_keys=False))
    with pytest.raises(ConfigurationError, match="seed 100"):
        load_study(path).with_seeds([7, 100])
