"""Settings of a command: recipes and options merged into one tree, before they are checked.

The tree has plain values, and texts as they were typed for options: only the parser knows whether ``1`` is a text.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import yaml
from jsonargparse import ArgumentParser

from lightning_fl.files.yaml import Quoted, parse_yaml
from lightning_fl.recipe.classes import accepted_arguments, annotations_of, find_class, options_of
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.shipped import find_recipe

#: Keys of a YAML entry that names a class.
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


class Keys(NamedTuple):
    """What the parser knows."""

    names: Collection[str]  #: its keys with their full paths, such as ``trainer.max_rounds``
    #: Keys that hold a class (or several) -> its base classes; of two classes of one name that of the later base is
    #: meant. Paths leave out ``init_args`` and places in lists: ``data.partitioner``.
    bases: Mapping[str, Sequence[type]]
    annotations: Mapping[str, Any]  #: key -> annotation

    def below(self, place: str) -> list[str]:
        """The keys of a group, without its path."""
        return [name.removeprefix(f"{place}.") for name in self.names if name.startswith(f"{place}.")]

    def bases_of(self, place: str) -> list[type]:
        """The base classes of a class at a place: all that are known, where the place is not."""
        return list(self.bases[place]) if place in self.bases else [one for of in self.bases.values() for one in of]


class _Nested(dict[str, Any]):
    """The value of an option with a dotted name: it changes single arguments, of a list's last entry too."""


def collect_settings(options: Sequence[tuple[str, str]], keys: Keys) -> dict[str, Any]:
    """Merge recipes in their order, then the other options over them.

    A mapping is merged where it is a group of keys or an entry for a class, and replaces the earlier value elsewhere,
    as a list does. A key that ends with ``+`` adds to a list. A class replaces another one and keeps the arguments
    that both accept. A wrong value stays where a group or a class's arguments would be merged into it, to be reported.
    ``options`` are pairs of a name without dashes and a text; ``config`` is a recipe; its dotted keys are its options.
    """
    merge = _Merge(keys)
    tree: dict[str, Any] = {}
    for recipe in [load_recipe(find_recipe(text)) for name, text in options if name == "config"]:
        dotted = {key: value for key, value in recipe.items() if isinstance(key, str) and "." in key}
        merge.update(tree, {key: value for key, value in recipe.items() if key not in dotted}, "")
        texts = [of if isinstance(of, str) else json.dumps(of, ensure_ascii=False) for of in dotted.values()]
        merge.set(tree, list(zip(dotted, map(str, texts), strict=True)))
    merge.set(tree, [option for option in options if option[0] != "config"])
    return tree


def ordered_options(options: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Sort options so that each class comes before its arguments.

    ``NAME.KEY`` changes the last entry of a list, hence the options of a list that ``NAME+`` adds to stay in order.
    """
    paths = [_path(name) for name, _ in options]
    lists = [path for path, (name, _) in zip(paths, options, strict=True) if name.endswith("+")]

    def rank(number: int) -> int:
        path = paths[number]
        return min(len(each) for each in [path, *lists] if path[: len(each)] == each)

    return [options[number] for number in sorted(range(len(options)), key=rank)]


def _path(name: str) -> list[str]:
    return [key for key in name.rstrip("+").split(".") if key not in ("init_args", "class_path")]


def _has_class(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("class_path"), str)


class _Merge(NamedTuple):
    keys: Keys

    def value(self, text: str, place: str, *, append: bool) -> Any:
        """The value of an option: its text, unless it must be read to be merged."""
        if get_args(self.keys.annotations.get(place))[:2] == (str, os.PathLike[str]):  # read as YAML otherwise
            return None if text in ("null", "~") else Quoted(text)
        structured = place in self.keys.bases or place.endswith(CLASS_KEYS) or append or self.keys.below(place)
        try:
            value = parse_yaml(text, mark_quoted=True) if structured else text
        except yaml.YAMLError:
            return text
        return text if append and not isinstance(value, list | Mapping) else value

    def set(self, tree: dict[str, Any], options: Sequence[tuple[str, str]]) -> None:
        """Merge options with dotted names."""
        for name, text in ordered_options(options):
            *parents, last = name.split(".")
            parents = [key for key in parents if key != "init_args"]
            place = ".".join([*parents, last.rstrip("+")])
            value: dict[str, Any] = _Nested({last: self.value(text, place, append=last.endswith("+"))})
            for parent in reversed(parents):
                value = _Nested({parent: value})
            self.update(tree, value, "")

    def update(self, tree: dict[str, Any], other: Mapping[str, Any], place: str) -> None:
        """Merge the keys of a mapping into those of a group or into a class's arguments."""
        for key, value in other.items():
            name = key.rstrip("+") if isinstance(key, str) else key
            inner = f"{place}.{name}" if place else str(name)
            before = tree.get(name)
            if name == key:
                tree[name] = self.merged(before, value, inner)
            else:
                parts = [[] if before is None else before, value]
                tree[name] = [entry for part in parts for entry in (part if isinstance(part, list) else [part])]

    def merged(self, before: Any, value: Any, place: str) -> Any:
        nested = isinstance(value, _Nested)
        if nested and isinstance(before, list):
            return [*before[:-1], self.merged(before[-1] if before else None, value, place)]
        if _has_class(before) or _has_class(value) or (place in self.keys.bases and (nested or before is not None)):
            return self.merged_class(before, value, place)
        is_group = bool(self.keys.below(place))
        if isinstance(value, Mapping) and (nested or is_group):
            if is_group and not isinstance(before, Mapping | None):
                return before
            tree = dict(before) if isinstance(before, Mapping) else {}
            self.update(tree, value, place)
            return tree
        return value

    def merged_class(self, before: Any, value: Any, place: str) -> Any:
        earlier = {"class_path": before} if isinstance(before, str) else before if isinstance(before, Mapping) else {}
        is_text = str in options_of(self.keys.annotations.get(place))
        if isinstance(value, str) and earlier.get("init_args") and not is_text:
            value = {"class_path": value}
        if not isinstance(value, Mapping):
            return value
        arguments = earlier.get("init_args") or {}
        if not isinstance(arguments, Mapping) or (
            isinstance(value, _Nested) and not isinstance(before, str | Mapping | None)
        ):
            return before
        if not any(key in CLASS_KEYS for key in value):
            if not isinstance(value, _Nested) and "class_path" not in earlier:
                return value
            value = {"init_args": value}
        entry, arguments = dict(earlier), dict(arguments)
        name = value.get("class_path")
        if isinstance(name, str) and name.rpartition(".")[2] != str(entry.get("class_path")).rpartition(".")[2]:
            arguments = dict(self.arguments_kept(arguments, name, place))
            entry.pop("dict_kwargs", None)
        given = value.get("init_args") or {}
        if isinstance(given, Mapping):
            self.update(arguments, given, place)
            given = arguments
        return {**entry, **value, "init_args": given}

    def arguments_kept(self, arguments: Mapping[str, Any], name: str, place: str) -> Iterator[tuple[str, Any]]:
        """Those of a class's arguments that another class accepts."""
        found = find_class(name, self.keys.bases_of(place)) if arguments else ""
        try:
            names = [] if isinstance(found, str) else accepted_arguments(found)
        except ValueError:  # not a class that a recipe can name
            names = []
        known = annotations_of(found) if names else {}
        for key, value in arguments.items():
            if key in names and _is_valid(value, known.get(key, Any)):
                yield key, value


def _is_valid(value: object, annotation: Any) -> bool:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=annotation)
    try:
        parser.parse_object({"value": value})
    except Exception:  # whatever the parser makes of a wrong value
        return False
    return True
