import dataclasses
from pathlib import Path

import pytest
import yaml
from study_tiny import write_study

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.study.study_file import load_study

WHOLE = """
title: Everything
metric: rmse
split: val
seeds: [0, 3]
definitions: {steps: &steps {trainer.local_steps: 2}}
overrides: {trainer: {max_rounds: 4}}
arms:
  fedavg: fedavg_{data}
  mine: {recipe: mine.yaml, overrides: *steps}
grid:
  data: {esol: {}, hiv: {data.source: real}}
  rate: {"0.1": {model.learning_rate: 0.1}, "1": null}
exclude: [{arm: mine, data: hiv}]
table: {rows: [arm, rate], columns: data, statistics: [worst, ipr], percent: true, digits: 2}
published: {source: A paper, values: {"fedavg, 0.1": {esol: {worst: [3, 0.5]}, hiv: {ipr: 90}}}}
claims: [worst(fedavg) > worst(mine) on data=esol]
scale: small
scales:
  small: {seeds: [5], arms: [mine], grid: {rate: ["1"]}, overrides: {trainer.max_rounds: 1}}
"""
SMALL = {"title": "x", "metric": "acc", "seeds": [0], "arms": {"a": "r"}}


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "study.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return path

    return write


def test_a_whole_file(write, tmp_path):
    study = load_study(write(WHOLE), "full")
    assert (study.name, study.title, study.metric, study.split) == ("study", "Everything", "rmse", "val")
    assert study.arms["fedavg"].recipe == "fedavg_{data}"
    assert study.arms["mine"].recipe == str(tmp_path / "mine.yaml")
    assert study.run_seeds == (0, 3)
    assert study.run_grid == {"data": ["esol", "hiv"], "rate": ["0.1", "1"]}
    places = list(study.places())
    assert len(places) == 2 * 2 * 2 - 2
    assert ("mine", {"data": "esol", "rate": "1"}) in places
    assert not any(arm == "mine" and place["data"] == "hiv" for arm, place in places)
    assert study.layers("mine", {"data": "hiv", "rate": "0.1"}) == [
        {"trainer": {"max_rounds": 4}},
        {"data.source": "real"},
        {"model.learning_rate": 0.1},
        {"trainer.local_steps": 2},
    ]
    assert (study.table.rows, study.table.columns) == (("arm", "rate"), ("data",))
    assert (study.table.percent, study.table.digits) == (True, 2)
    assert study.published.values == {
        ("fedavg, 0.1", "esol", "worst"): (3.0, 0.5),
        ("fedavg, 0.1", "hiv", "ipr"): (90.0, None),
    }


def test_a_scale_is_a_part_with_settings_over_all_others(write):
    study = load_study(write(WHOLE))
    assert study.scale == "small"
    assert (study.run_seeds, study.run_arms) == ((5,), ["mine"])
    assert list(study.places()) == [("mine", {"data": "esol", "rate": "1"})]
    assert study.layers("mine", {"data": "esol", "rate": "1"})[-1] == {"trainer.max_rounds": 1}
    assert study.with_seeds([8, 9]).run_seeds == (8, 9)


def test_defaults(write):
    study = load_study(write(SMALL))
    assert (study.split, study.scale, study.claims, study.grid) == ("test", "full", (), {})
    assert (study.table.rows, study.table.columns) == (("arm",), ())
    assert (study.table.statistics, study.table.percent, study.table.digits) == (("mean", "worst"), False, 3)
    assert list(study.places()) == [("a", {})]


@pytest.mark.parametrize("content", [WHOLE, {**SMALL, "published": {"source": "A", "values": {"a": {"mean": 1}}}}])
def test_what_is_written_is_read_as_the_same(write, tmp_path, content):
    study = load_study(write(content))
    (tmp_path / "below").mkdir()
    copy = tmp_path / "below" / "study.yaml"
    copy.write_text(yaml.safe_dump(study.as_dict(), sort_keys=False))
    assert dataclasses.replace(load_study(copy), path=study.path) == study


CHOSEN = {"setting": "rate", "value": 0.1, "candidates": [0.1, 1], "by": "val/acc", "seeds": [100]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"titel": 1}, "titel: there is no such key \\(did you mean 'title'\\?\\)"),
        ({"title": None}, "title is missing: name what is compared"),
        ({"metric": 3}, "metric is 3: name a metric"),
        ({"split": "tst"}, "split='tst': choose one of test, val, train"),
        ({"seeds": None}, "seeds is missing: list different whole numbers"),
        ({"seeds": []}, "seeds is \\[\\]: list"),
        ({"seeds": [1, 1]}, "seeds is \\[1, 1\\]: list different"),
        ({"seeds": [-1]}, "seeds is \\[-1\\]: list different"),
        ({"seeds": [True]}, "seeds is \\[True\\]: list different"),
        ({"seeds": 3}, "seeds is 3: list different"),
        ({"arms": {}}, "arms: name at least one"),
        ({"arms": ["a"]}, "arms: expected a mapping, got \\['a'\\]"),
        ({"arms": {0.1: "r"}}, "arms: 0.1 is no name: put it in quotes; letters"),
        ({"arms": {"a b": "r"}}, "arms: 'a b' is no name: letters, digits and"),
        ({"arms": {"a": 3}}, "arms.a: give a recipe, such as a: fedavg_digits"),
        ({"arms": {"a": {"recipe": "r", "override": {}}}}, "arms.a.override: there is no such key .*overrides"),
        ({"arms": {"a": "r_{data}"}}, "arms.a.recipe='r_{data}': there is no axis 'data'; there are none"),
        ({"arms": {"a": {"recipe": "r", "overrides": 3}}}, "arms.a.overrides: give settings of a recipe"),
        ({"overrides": {"seed_everything": 1}}, "overrides: seed_everything is the study's own to set"),
        ({"overrides": {"trainer": {"default_root_dir": "x"}}}, "trainer.default_root_dir is the study's own"),
        ({"overrides": {"trainer.enable_progress_bar": True}}, "enable_progress_bar is the study's own"),
        ({"grid": {"data": 3}}, "grid.data: give names and what each stands for"),
        ({"grid": {"mean": {"x": {}}}}, "grid.mean: the results have a column mean already"),
        ({"exclude": [3]}, "exclude\\[0\\]: give what is not run, such as {arm: a}"),
        ({"exclude": {"arm": "a"}}, "exclude: expected a list, got"),
        ({"exclude": [{"arm": "b"}]}, "exclude\\[0\\].arm='b': there is no value 'b'; there is a"),
        ({"exclude": [{"rm": "b"}]}, "exclude\\[0\\].rm: there is no axis 'rm' \\(did you mean 'arm'"),
        ({"exclude": [{"arm": "a"}]}, "nothing is left to run at scale full"),
        ({"table": {"row": "arm"}}, "table.row: there is no such key \\(did you mean 'rows'"),
        ({"table": {"rows": "rm"}}, "table.rows: there is no axis 'rm' \\(did you mean 'arm'"),
        ({"table": {"rows": []}}, "table.rows=\\[\\]: list some of arm"),
        ({"table": {"rows": "arm", "columns": "arm"}}, "table: arm stands more than once"),
        ({"table": {"rows": "data", "columns": []}, "grid": {"data": {"x": {}}}}, "table: arm stands nowhere"),
        ({"table": {"statistics": ["media"]}}, "table.statistics: there is no statistic 'media'"),
        ({"table": {"percent": "yes"}}, "table.percent='yes': give true or false"),
        ({"table": {"digits": 11}}, "table.digits=11: give a number from 0 to 10"),
        ({"published": {"values": {"a": {"mean": 1}}}}, "published.source: say where the figures stand"),
        ({"published": {"source": "x", "values": 3}}, "published.values: give {ROW"),
        ({"published": {"source": "x", "values": {"b": {}}}}, "published.values.b: there is no row 'b'"),
        ({"published": {"source": "x", "values": {"a": {"std": 1}}}}, "published.values.a.std: there is no statistic"),
        ({"published": {"source": "x", "values": {"a": {"mean": "1"}}}}, "values.a.mean='1': give a number, or"),
        ({"published": {"source": "x", "values": {"a": 3}}}, "published.values.a: give the statistics of every"),
        (
            {"grid": {"data": {"x": {}}}, "published": {"source": "x", "values": {"a": {"y": {"mean": 1}}}}},
            "published.values.a.y: there is no column 'y'; there is x",
        ),
        (
            {"grid": {"data": {"x": {}}}, "published": {"source": "x", "values": {"a": 3}}},
            "published.values.a: give the statistics of every column",
        ),
        ({"claims": [3]}, "claims\\[0\\]: give a text"),
        ({"claims": ["mean(b) > 0"]}, "claims\\[0\\]: 'mean\\(b\\) > 0' before .*: there is no arm 'b'"),
        ({"chosen": [3]}, "chosen\\[0\\]: give setting, value, candidates, by and seeds, not 3"),
        ({"chosen": [CHOSEN | {"setting": None}]}, "chosen\\[0\\].setting is missing"),
        ({"chosen": [CHOSEN | {"valu": 1}]}, "chosen\\[0\\].valu: there is no such key \\(did you mean 'value'"),
        ({"chosen": [CHOSEN | {"value": 3}]}, "candidates: list what was tried, the chosen value 3 among it"),
        ({"chosen": [CHOSEN | {"by": "test/acc"}]}, "by='test/acc': test data never choose a setting"),
        ({"chosen": [CHOSEN | {"seeds": []}]}, "chosen\\[0\\].seeds is \\[\\]: list"),
        ({"chosen": [CHOSEN | {"seeds": [7, 0]}]}, "chosen\\[0\\].seeds: the study itself runs 0, whose results"),
        (
            {"chosen": [CHOSEN], "scales": {"small": {"seeds": [100]}}},
            "chosen\\[0\\].seeds: the study itself runs 100",
        ),
        ({"scale": "big"}, "scales: there is no scale 'big'; the study has full"),
        (
            {"scales": {"../../../escaped": {"seeds": [1]}}},
            "scales.*: a scale names a folder: give a name",
        ),
        ({"scales": {"/abs": {"seeds": [1]}}}, "scales./abs: a scale names a folder"),
        ({"arms": {"a" * 101: "r"}}, "arms: 'a+' is no name: letters.*at most 100"),
        ({"scales": {"small": 3}}, "scales.small: give at least one of seeds, arms, grid, overrides"),
        ({"scales": {"full": {"seeds": [1]}}}, "scales.full: what stands outside of scales is the full scale"),
        ({"scales": {"small": {"seed": [1]}}}, "scales.small.seed: there is no such key \\(did you mean 'seeds'"),
        ({"scales": {"small": {"seeds": 1}}}, "scales.small.seeds is 1: list different"),
        ({"scales": {"small": {"arms": ["b"]}}}, "scales.small.arms: there is no arm 'b'"),
        ({"scales": {"small": {"grid": 3}}}, "scales.small.grid: give the labels"),
        ({"scales": {"small": {"grid": {"data": ["x"]}}}}, "scales.small.grid.data: there is no axis 'data'"),
        (
            {"grid": {"data": {"x": {}}}, "scales": {"small": {"grid": {"data": ["y"]}}}},
            "scales.small.grid.data: there is no value 'y'",
        ),
    ],
)
def test_faults_name_the_key_and_the_mend(write, change, message):
    path = write({**SMALL, **change})
    with pytest.raises(ConfigurationError, match=message) as error:
        load_study(path)
    assert str(error.value).startswith(f"{path}: ")


def test_all_faults_are_said_at_once(write):
    with pytest.raises(ConfigurationError) as error:
        load_study(write({**SMALL, "title": None, "seeds": [], "split": "x"}))
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a study is a mapping with the keys title, metric, split, seeds, overrides, arms, this is empty"),
        ("[1]", "this is a list"),
        ("arms: {a: r, a: s}", "line 1, column 14: the key 'a' stands here twice, first in line 1: keep one"),
        ("arms: {a: r", "line 2, column 1: not YAML: .* for what begins in line 1"),
    ],
)
def test_no_study_at_all(write, text, message):
    with pytest.raises(ConfigurationError, match=message):
        load_study(write(text))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_study(Path("nowhere.yaml"))


def test_what_an_axis_adds_to_a_list_is_added_to_the_arms(tmp_path):
    """An arm's list comes after the axis in the order of layers, and would take the addition away."""
    noise, sampling = {"class_path": "LabelNoise"}, {"class_path": "UniformSampling"}
    study = write_study(
        tmp_path,
        arms={
            "plain": {"recipe": "r.yaml"},
            "own": {"recipe": "r.yaml", "overrides": {"trainer.callbacks": [sampling]}},
        },
        grid={"noise": {"none": {}, "some": {"trainer.callbacks+": noise, "data.x": 1}}},
    )
    assert study.layers("own", {"noise": "some"}) == [
        {"data.x": 1},
        {"trainer.callbacks": [sampling]},
        {"trainer.callbacks+": noise},
    ]
    assert study.layers("plain", {"noise": "some"}) == [{"trainer.callbacks+": noise, "data.x": 1}]
