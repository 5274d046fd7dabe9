"""Any value in a recipe is parsed, or refused in a few words."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentError, Namespace

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.error_messages import error_text
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import parse
from lightning_fl.recipe.shipped import find_recipe

_RECIPE = load_recipe(find_recipe("drflm_esol"))


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*path, key)
        yield from _places(item, (*path, key))


_texts = st.sampled_from(["", "null", "~", "1e5", "on", "../../x", "a.b", "x" * 5000, "x " * 2500, "HCCT", "a: b", "é"])
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | _texts
_values = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["class_path", "init_args", "class_pat", "x" * 900]) | _texts, inner, max_size=2
        )
    ),
    max_leaves=4,
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(_places(_RECIPE))), _values)
def test_any_value_at_any_place_is_parsed_or_refused(parser, tmp_path, place, value):
    recipe = copy.deepcopy(_RECIPE)
    node: Any = recipe
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    (tmp_path / "recipe.yaml").write_text(dump_yaml(recipe), encoding="utf-8")
    try:
        parse("fit", parser, ["--config", "recipe.yaml"])
    except (ConfigurationError, ArgumentError) as error:
        text = error_text(error)
        assert len(text.splitlines()) <= 3, text
        assert len(text) <= 1000, text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_text_in_quotes_stays_one(parser, tmp_path, encoding):
    data = {"class_path": "MoleculeCSV", "init_args": {"path": "a.csv", "target_columns": ["1e5"], "group_column": "~"}}
    (tmp_path / "recipe.yaml").write_text(dump_yaml({**_RECIPE, "data": data}), encoding=encoding)
    config = parse("fit", parser, ["--config", str(tmp_path / "recipe.yaml")])
    (tmp_path / "again.yaml").write_text(parser.dump(config), encoding="utf-8")  # as config.yaml is kept
    for read in (config, parse("fit", parser, ["--config", str(tmp_path / "again.yaml")])):
        made = instantiate(parser, Namespace(data=read.data)).data
        assert (made.group_column, list(made.target_columns)) == ("~", ["1e5"])
        assert {type(made.group_column), type(made.target_columns[0])} == {str}
    assert parse("fit", parser, ["--config", "drflm_esol", "--ckpt_path=null"]).ckpt_path is None


@pytest.mark.parametrize("text", ["#5", "runs/lr: 0.1", "{a}", "[a]", "1", "true", "null", "~"])
def test_a_folder_whose_name_looks_like_yaml_is_a_text(parser, tmp_path, text):
    """Null is none, unless it is in quotes."""
    recipe, typed = tmp_path / "recipe.yaml", None if text in ("null", "~") else text

    def folder(*words: str) -> Any:
        return parse("fit", parser, ["--config", "drflm_esol", *words]).trainer.default_root_dir

    assert folder("--trainer.default_root_dir", text) == folder(f"--trainer.default_root_dir={text}") == typed
    recipe.write_text(dump_yaml({"trainer.default_root_dir": typed}), encoding="utf-8")
    assert folder("--config", str(recipe)) == typed
    recipe.write_text(dump_yaml({"trainer": {"default_root_dir": text}}), encoding="utf-8")
    assert folder("--config", str(recipe)) == text
