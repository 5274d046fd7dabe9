import dataclasses

import pytest
import yaml
from study_tiny import write_study

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
cells: [{arm: mine, rate: "0.1", overrides: {model.momentum: 0.9}}]
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
        {"trainer.max_rounds": 4},
        {"data.source": "real"},
        {"model.learning_rate": 0.1},
        {"trainer.local_steps": 2},
        {"model.momentum": 0.9},
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


def test_nested_overrides_are_additions_arguments_and_later_ones_like_dotted_ones(tmp_path):
    sampling, noise = {"class_path": "UniformSampling"}, {"class_path": "LabelNoise"}
    study = write_study(
        tmp_path,
        overrides={"trainer.strategy.mu": 0.1, "trainer": {"callbacks+": [noise], "max_rounds": 2}},
        arms={
            "prox": {"recipe": "r.yaml", "overrides": {"trainer": {"strategy": "FedProx"}}},
            "own": {"recipe": "r.yaml", "overrides": {"trainer": {"callbacks": [sampling]}}},
        },
        grid={},
        scale="s",
        scales={"s": {"overrides": {"trainer": {"strategy": {"init_args": {"mu": 0.9}}}}}},
    )
    prox, own = ([item for layer in study.layers(arm, {}) for item in layer.items()] for arm in ("prox", "own"))
    assert prox.index(("trainer.strategy", "FedProx")) < prox.index(("trainer.strategy", {"init_args": {"mu": 0.9}}))
    assert prox[-1] == ("trainer.strategy", {"init_args": {"mu": 0.9}})
    assert own[-1] == ("trainer.callbacks+", [noise])
    assert ("trainer.callbacks", [sampling]) in own


def test_a_later_argument_that_is_a_mapping_stays_the_later_one(tmp_path):
    own = {"data.partitioner": "Groups", "data.partitioner.groups": {"b": 2}}
    study = write_study(
        tmp_path,
        overrides={"data.partitioner.groups": {"a": 1}},
        arms={"a": {"recipe": "r.yaml", "overrides": own}},
        grid={},
    )
    assert study.layers("a", {}) == [{"data.partitioner.groups": {"a": 1}}, own]


def test_what_an_axis_gives_to_a_class_is_given_to_the_one_that_an_arm_names(tmp_path):
    study = write_study(
        tmp_path,
        arms={"a": {"recipe": "r.yaml", "overrides": {"trainer.strategy": "FedProx"}}},
        grid={"mu": {"large": {"trainer.strategy.mu": 1, "data.x": 1}}},
    )
    layers = study.layers("a", {"mu": "large"})
    assert layers == [{"data.x": 1}, {"trainer.strategy": "FedProx"}, {"trainer.strategy.mu": 1}]
