"""Recipes and settings before they are parsed."""

from collections import OrderedDict
from pathlib import Path

import pytest

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.recipe.faults import accepted_arguments
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.settings import collect_settings, ordered_options


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"recipe.yaml: a recipe is a mapping with the keys .* this is empty\."),
        (b"- a\n", r"recipe.yaml: a recipe is a mapping .* this is a list\."),
        (b"a: \xff\n", r"recipe.yaml cannot be read as YAML: invalid leading UTF-8 .* Save it as text in UTF-8"),
        (b"a: [1\nb: 2\n", r"recipe.yaml, line 2, column 2: not YAML: .* Check the indentation"),
        (b"a: \x01\n", r"recipe.yaml cannot be read as YAML: control characters are not allowed"),
    ],
)
def test_load_recipe_refuses(tmp_path, content, message):
    Path("recipe.yaml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        load_recipe(Path("recipe.yaml"))


def test_settings_of_a_command_line_are_merged_in_order(tmp_path):
    Path("one.yaml").write_text(
        "model: {class_path: A, init_args: {x: 1, y: 1}}\ntrainer: {callbacks: [{class_path: B}]}"
    )
    Path("two.yaml").write_text("model: {init_args: {y: 2}}")
    words = "--config one.yaml --config=two.yaml --model.x 3 --model.init_args.z={a: 1} --data Own --data.n 4"
    words += " --trainer.callbacks+=C --trainer.callbacks.alpha 0.5 --print_config --seed_everything 1"
    arguments = [word.replace("\0", " ") for word in words.replace("{a: 1}", "{a:\0001}").split()]
    assert collect_settings(arguments) == {
        "model": {"class_path": "A", "init_args": {"x": 3, "y": 2, "z": {"a": 1}}},
        "trainer": {"callbacks": [{"class_path": "B"}, {"class_path": "C", "init_args": {"alpha": 0.5}}]},
        "data": {"class_path": "Own", "init_args": {"n": 4}},
        "print_config": None,
        "seed_everything": 1,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--a.x 1 --config one --a.y=2 --config=two", "--config one --config=two --a.x 1 --a.y=2"),
        ("--data.path c.csv --data Own --config one", "--config one --data Own --data.path c.csv"),
        ("--data.init_args.n 1 --data.class_path=Own", "--data.class_path=Own --data.init_args.n 1"),
        ("--t.c+=A --t.c.x 1 --t.c+=B --t.c.x 2 --t=1", "--t=1 --t.c+=A --t.c.x 1 --t.c+=B --t.c.x 2"),
        ("--m.x -1 --m.x 2 --print_config", "--print_config --m.x -1 --m.x 2"),
        ("stray --m A", "stray --m A"),
        ("", ""),
    ],
)
def test_recipes_come_first_and_classes_before_their_arguments(given, expected):
    assert ordered_options(given.split()) == expected.split()


def test_accepted_arguments_include_those_passed_on():
    class Base:
        def __init__(self, *, rounds: int = 1):
            self.rounds = rounds

    class Derived(Base):
        def __init__(self, *, size: int = 1, **kwargs: int):
            super().__init__(**kwargs)
            self.size = size

    assert sorted(accepted_arguments(Derived)) == ["rounds", "size"]
    with pytest.raises(ValueError, match="unsupported input"):
        accepted_arguments(OrderedDict)
