"""The settings of a command line before they are checked: recipes in their order, single values on top."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import parse_yaml
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.shipped import find_recipe

__all__ = ["CLASS_KEYS", "collect_settings", "ordered_options"]

#: Keys of a YAML entry that names a class.
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


def ordered_options(words: Sequence[str]) -> list[str]:
    """The words after a command with recipes first and each class before its arguments, otherwise as they come.

    So the command line overrides recipes wherever they stand. ``--NAME.KEY`` changes the last entry of a list, hence
    the options of a list that ``--NAME+`` adds to stay in their order.
    """
    options: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            options.append([])
        options[-1].append(word)
    paths = [_path(option[0].partition("=")[0]) if option else [] for option in options]
    lists = [path for path, option in zip(paths, options, strict=True) if option[:1] and "+" in option[0].split("=")[0]]

    def rank(number: int) -> int:
        path = paths[number]
        return 0 if path in ([], ["config"]) else min(len(each) for each in [path, *lists] if path[: len(each)] == each)

    return [word for number in sorted(range(len(options)), key=rank) for word in options[number]]


def _path(option: str) -> list[str]:
    """The keys of ``--KEY.KEY``; ``init_args`` and ``class_path`` may be written or left out."""
    return [key for key in option[2:].rstrip("+").split(".") if key not in ("init_args", "class_path")]


def collect_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """All settings of a command line in one tree, unchecked: recipes in their order, overrides on top.

    Args:
        arguments: the words after the command. Recipes among them can be read.
    """
    tree: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("--"):
            continue
        name, has_value, text = word[2:].partition("=")
        if not has_value and name not in ("print_config", "help") and not name.endswith(".help"):
            text = next(words, "")
        if name == "config" and not text:
            raise ConfigurationError(
                "--config has no value: give a recipe's file, or the name of a shipped one (`lightning-fl recipes`)."
            )
        if name == "config":
            _merge(tree, load_recipe(find_recipe(text)))
        else:
            _override(tree, name, text)
    return tree


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    if _class_name(other) not in (None, _class_name(tree)):
        tree.pop("init_args", None)  # another class's: the parser drops what the new class does not have
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _class_name(entry: Mapping[str, Any]) -> str | None:
    name = entry.get("class_path")
    return name.rpartition(".")[2] if isinstance(name, str) else None


def _override(tree: dict[str, Any], name: str, text: str) -> None:
    """Set ``--NAME TEXT``; arguments of a class may leave out ``init_args``, ``NAME+`` adds to a list."""
    path = name.rstrip("+").split(".")
    node = tree
    for depth, key in enumerate(path):
        if isinstance(node, list):
            node = node[-1] if node and isinstance(node[-1], dict) else {}
        is_class = "class_path" in node or (depth == 1 and path[0] in ("model", "data"))
        if is_class and key not in (*CLASS_KEYS, "help"):
            node = node.setdefault("init_args", {})
        if depth == len(path) - 1:
            value = _value(text, path)
            if name.endswith("+"):
                before = node.get(key)
                node[key] = [
                    *(before if isinstance(before, list) else []),
                    *(value if isinstance(value, list) else [value]),
                ]
            else:
                _merge(node, {key: value})
        else:
            if not isinstance(node.get(key), dict | list):
                node[key] = {}
            node = node[key]


def _value(text: str, path: list[str]) -> Any:
    """A value of the command line; where a class is expected its bare name will do."""
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str) and (path in (["model"], ["data"]) or path[-1] in ("callbacks", "partitioner")):
        return {"class_path": value}
    return value
