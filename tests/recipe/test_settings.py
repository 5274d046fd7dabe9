"""Settings before they are parsed: recipes and options in one tree."""

import json
from collections import OrderedDict
from pathlib import Path

import pytest

from lightning_fl.callbacks import Callback
from lightning_fl.data import IID, GroupBy, Partitioner
from lightning_fl.recipe.classes import accepted_arguments, annotations_of, subclasses
from lightning_fl.recipe.settings import Keys, collect_settings, ordered_options
from lightning_fl.strategies import FederatedStrategy

_LOADED = (IID, GroupBy)  # short names are those of classes that are loaded

KEYS = Keys(
    ["seed_everything", "model", "data", "trainer.callbacks", "trainer.compile", "trainer.strategy"],
    {
        "model": [object],
        "data": [object],
        "trainer.callbacks": [Callback],
        "data.partitioner": [Partitioner],
        "trainer.strategy": [FederatedStrategy],
    },
    {"trainer.strategy": str | FederatedStrategy},
)


FOUR = {"class_path": "IID", "init_args": {"num_clients": 4}}


def options(*words: str) -> list[tuple[str, str]]:
    return [(name, text) for name, _, text in (word.partition("=") for word in words)]


def collected(*words: str) -> dict:
    return collect_settings(options(*words), KEYS)


def test_recipes_are_merged_in_order_and_options_over_them():
    Path("one.yaml").write_text(
        "model: {class_path: A, init_args: {x: 1, y: 1}}\ntrainer: {callbacks: [{class_path: B}]}"
    )
    Path("two.yaml").write_text("model: {init_args: {y: 2}}\ntrainer: {callbacks+: [D]}")
    words = ["config=one.yaml", "model.x=3", "config=two.yaml", "model.init_args.z={a: 1}", "data=Own", "data.n=4"]
    words += ["trainer.callbacks+=C", "trainer.callbacks.alpha=0.5", "seed_everything=1"]
    assert collected(*words) == {
        "model": {"class_path": "A", "init_args": {"x": "3", "y": 2, "z": "{a: 1}"}},
        "trainer": {"callbacks": [{"class_path": "B"}, "D", {"class_path": "C", "init_args": {"alpha": "0.5"}}]},
        "data": {"class_path": "Own", "init_args": {"n": "4"}},
        "seed_everything": "1",
    }


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("{init_args: {alpha: 2}}", {"class_path": "Dirichlet", "init_args": {"num_clients": 3, "alpha": 2}}),
        ("{alpha: 2}", {"class_path": "Dirichlet", "init_args": {"num_clients": 3, "alpha": 2}}),
        # another class keeps the arguments that it accepts
        ("IID", {"class_path": "IID", "init_args": {"num_clients": 3}}),
        ("{class_path: IID}", {"class_path": "IID", "init_args": {"num_clients": 3}}),
        ("{class_path: IID, init_args: {num_clients: 4}}", {"class_path": "IID", "init_args": {"num_clients": 4}}),
        (
            "{class_path: GroupBy, init_args: {column: a}}",
            {"class_path": "GroupBy", "init_args": {"num_clients": 3, "column": "a"}},
        ),
        ("{class_path: FedCollabLabelShift}", {"class_path": "FedCollabLabelShift", "init_args": {}}),
        ("null", None),
    ],
)
def test_a_later_recipe_changes_a_class(second, expected):
    Path("one.yaml").write_text(
        "data: {class_path: Own, init_args: {partitioner:"
        " {class_path: Dirichlet, init_args: {num_clients: 3, alpha: 1}}}}"
    )
    Path("two.yaml").write_text(f"data: {{init_args: {{partitioner: {second}}}}}")
    found = collected("config=one.yaml", "config=two.yaml")["data"]
    assert found == {"class_path": "Own", "init_args": {"partitioner": expected}}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("{trainer.max_rounds: 200}", "{trainer: {max_rounds: 5}}", {"trainer": {"max_rounds": 5}}),
        ("{trainer: {max_rounds: 200}}", "{trainer.max_rounds: 5}", {"trainer": {"max_rounds": "5"}}),
        ("{}", "{trainer.names: [\U0001f9ea, ö]}", {"trainer": {"names": '["\U0001f9ea", "ö"]'}}),
        *(
            ("{data.partitioner.num_clients: 20}", second, {"data": {"init_args": {"partitioner": FOUR}}})
            for second in (
                "{data.partitioner: {class_path: IID, init_args: {num_clients: 4}}}",
                "{data: {init_args: {partitioner: {class_path: IID, init_args: {num_clients: 4}}}}}",
            )
        ),
    ],
)
def test_the_later_recipe_wins_whether_keys_are_dotted_or_nested(first, second, expected):
    Path("one.yaml").write_text(first)
    Path("two.yaml").write_text(second)
    assert collected("config=one.yaml", "config=two.yaml") == expected


def test_mappings_that_are_neither_groups_nor_classes_are_replaced_by_recipes_and_changed_by_options():
    Path("one.yaml").write_text("trainer: {compile: {mode: a, dynamic: true}, callbacks: [A]}")
    Path("two.yaml").write_text("trainer: {compile: {fullgraph: true}}")
    assert collected("config=one.yaml", "config=two.yaml")["trainer"] == {
        "compile": {"fullgraph": True},
        "callbacks": ["A"],
    }
    assert collected("config=one.yaml", "trainer.compile.mode=b")["trainer"]["compile"] == {
        "mode": "b",
        "dynamic": True,
    }


@pytest.mark.parametrize(
    ("place", "wrong", "option"),
    [
        (["trainer"], 5, "trainer.compile=true"),
        (["trainer"], [1], "trainer.compile=true"),
        (["trainer", "strategy"], 5, "trainer.strategy.mu=1"),
        (["trainer", "strategy", "init_args"], 5, "trainer.strategy.mu=1"),
        (["model"], 5, "model.x=1"),
        (["model", "init_args"], 5, "model.x=1"),
        (["data", "init_args", "partitioner"], 5, "data.partitioner.alpha=1"),
    ],
)
def test_a_wrong_value_stays_to_be_reported(place, wrong, option):
    Path("one.yaml").write_text(
        "{model: {class_path: A, init_args: {y: 1}}, data: {class_path: B}, trainer: {strategy: {class_path: fedprox}}}"
    )
    content = wrong
    for key in reversed(place):
        content = {key: content}
    Path("two.yaml").write_text(json.dumps(content))
    found = collected("config=one.yaml", "config=two.yaml", option)
    for key in place:
        found = found[key]
    assert found == wrong


@pytest.mark.parametrize("section", ["trainer", "model", "data"])
def test_an_empty_section_changes_nothing(section):
    Path("one.yaml").write_text(
        "{model: {class_path: A, init_args: {y: 1}}, data: {class_path: B}, trainer: {compile: true}}"
    )
    Path("two.yaml").write_text(f"{section}:\n  # key: value\n")
    for more in ([], ["trainer.strategy=fedprox"], ["model.x=1"], ["data.x=1"]):
        assert collected("config=one.yaml", "config=two.yaml", *more) == collected("config=one.yaml", *more)


def test_a_name_of_a_strategy_has_no_arguments_of_an_earlier_one():
    Path("one.yaml").write_text("trainer: {strategy: {class_path: fedadam, init_args: {server_rate: 0.5}}}")
    assert collected("config=one.yaml", "trainer.strategy=scaffold")["trainer"]["strategy"] == "scaffold"
    found = collected("config=one.yaml", "trainer.strategy=scaffold", "trainer.strategy.server_rate=2")
    assert found["trainer"]["strategy"] == {"class_path": "scaffold", "init_args": {"server_rate": "2"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("data.path=c.csv data=Own", "data=Own data.path=c.csv"),
        ("data.init_args.n=1 data.class_path=Own", "data.class_path=Own data.init_args.n=1"),
        ("t.c+=A t.c.x=1 t.c+=B t.c.x=2 t=1", "t=1 t.c+=A t.c.x=1 t.c+=B t.c.x=2"),
        ("m.x=-1 m.x=2", "m.x=-1 m.x=2"),
        ("", ""),
    ],
)
def test_classes_come_before_their_arguments(given, expected):
    assert ordered_options(options(*given.split())) == options(*expected.split())


class Base:
    def __init__(self, *, rounds: int = 1):
        self.rounds = rounds


class Derived(Base):
    def __init__(self, *, size: int = 1, **kwargs: int):
        super().__init__(**kwargs)
        self.size = size


class _Private(Base):
    pass


def test_arguments_include_those_passed_on():
    assert sorted(accepted_arguments(Derived)) == ["rounds", "size"]
    assert annotations_of(Derived) == {"rounds": int, "size": int}
    assert list(subclasses(Base)) == [Derived]
    with pytest.raises(ValueError, match="unsupported input"):
        accepted_arguments(OrderedDict)
