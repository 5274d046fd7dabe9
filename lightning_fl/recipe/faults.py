"""All faults of a recipe's settings at once: unknown keys and classes with the nearest valid name, and bad values."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import yaml

from lightning_fl.core.errors import OF_LIGHTNING, cut, did_you_mean
from lightning_fl.core.validation import faults_of
from lightning_fl.files.yaml import parse_yaml
from lightning_fl.recipe.classes import accepted_arguments, annotations_of, classes_in, find_class, options_of
from lightning_fl.recipe.error_messages import shown
from lightning_fl.recipe.settings import CLASS_KEYS, Keys


def find_faults(tree: Mapping[str, Any], keys: Keys) -> list[str]:
    """A sentence for every key or class that does not exist and every value outside its range.

    Paths leave out ``init_args``, as options do: ``trainer.callbacks[1].alpha``.
    """
    return list(_Search(keys).of_group(tree, ""))


class _Search(NamedTuple):
    keys: Keys

    def of_group(self, tree: Mapping[str, Any], prefix: str) -> Iterator[str]:
        here = sorted({name.removeprefix(prefix).split(".")[0] for name in self.keys.names if name.startswith(prefix)})
        for key, value in tree.items():
            path = f"{prefix}{key}"
            if key not in here:
                hint = did_you_mean(str(key), here) or self.elsewhere(str(key))
                yield f"{prefix}{cut(key)}: there is no such key{hint}."
            elif path in self.keys.names:
                yield from self.of_value(value, path, self.keys.annotations.get(path, Any))
            elif isinstance(value, Mapping):
                yield from self.of_group(value, f"{path}.")
            else:
                examples = ", ".join(self.keys.below(path)[:3])
                yield f"{path}={shown(value)}: expected a mapping with keys such as {examples}."

    def elsewhere(self, name: str) -> str:
        """A hint at the full path of a key that is in the wrong place."""
        places = [key for key in self.keys.names if key.rpartition(".")[2] in (name, OF_LIGHTNING.get(name))]
        return f" (did you mean {places[0]!r}?)" if places else ""

    def of_value(self, value: object, path: str, annotation: Any = Any) -> Iterator[str]:
        place = re.sub(r"\[\d+\]", "", path)
        if isinstance(value, str) and place in self.keys.bases and str not in options_of(annotation):
            value = {"class_path": value}
        if isinstance(value, list) and place in self.keys.bases:
            of_item = next((get_args(one)[0] for one in options_of(annotation) if get_origin(one) is list), Any)
            for number, item in enumerate(value):
                yield from self.of_value(item, f"{path}[{number}]", of_item)
        elif isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
            yield from self.of_class(value, path, place, annotation)
        elif isinstance(value, Mapping) and "class_path" in value:
            yield f"{path}.class_path={shown(value['class_path'])}: expected the name of a class."
        elif path.endswith("]") and place in self.keys.bases and type(value) not in (dict, *options_of(annotation)):
            yield f"{path}={shown(value)}: expected a class, with class_path and init_args."
        elif isinstance(value, Mapping) and (misspelt := self.misspelt(value, path, place)):
            yield misspelt
        elif isinstance(value, Mapping) and (record := _dataclass(annotation)) is not None:
            yield from self.of_arguments(value, path, record, get_type_hints(record, include_extras=True))
        elif isinstance(value, Mapping) and place in self.keys.bases:
            for key, item in value.items():  # by client, as in ``policies: {3: ...}``
                yield from self.of_value(item, f"{path}[{key}]")
        else:
            yield from _out_of_range(value, path, annotation)

    def misspelt(self, entry: Mapping[str, Any], path: str, place: str) -> str | None:
        if place not in self.keys.bases or any(isinstance(key, int) for key in entry):
            return None
        for key in entry:
            if key not in CLASS_KEYS and (hint := did_you_mean(str(key), CLASS_KEYS)):
                return f"{path}.{cut(key)}: there is no such key{hint}."
        # Entries of a list are complete; others may change arguments of the default class.
        if path in ("model", "data") or path.endswith("]"):
            return f"{path}: class_path is not given; name a class, with its arguments under init_args."
        return None

    def of_class(self, entry: Mapping[str, Any], path: str, place: str, annotation: Any) -> Iterator[str]:
        from lightning_fl.core.lightning_types import EITHER_NAME  # imports torch

        name, bases = entry["class_path"], self.keys.bases.get(place, ())
        found = find_class(name, bases or classes_in(annotation) or self.keys.bases_of(place))
        if isinstance(found, str):
            yield f"{path}.class_path={shown(name)}: {found}."
            return
        accepted: Any = tuple(EITHER_NAME.get(base, base) for base in bases)
        if bases and isinstance(found, type) and not issubclass(found, accepted):
            names = " or ".join(f"{base.__module__}.{base.__qualname__}" for base in reversed(bases))
            yield f"{path}.class_path={shown(name)}: not a subclass of {names}."
            return
        for key in entry:
            if key not in CLASS_KEYS:
                yield f"{path}.{cut(key)}: arguments of {cut(name)} belong under {path}.init_args."
        arguments = entry.get("init_args") or {}
        if not isinstance(arguments, Mapping):
            given = f"{path}.init_args={shown(arguments)}"
            yield f"{given}: give the arguments of {cut(name)} by name, or leave init_args out."
            return
        known = annotations_of(found)
        if any(key not in known for key in arguments):
            try:
                known = {key: known.get(key, Any) for key in accepted_arguments(found)}
            except ValueError:  # not a class that a recipe can name; the parser refuses it
                return
        yield from self.of_arguments(arguments, path, found, known)

    def of_arguments(
        self, arguments: Mapping[str, Any], path: str, owner: Callable[..., Any], known: Mapping[str, Any]
    ) -> Iterator[str]:
        for key, value in arguments.items():
            if key not in known:
                hint = did_you_mean(str(key), known) or f"; it has {', '.join(known) or 'none'}"
                yield f"{path}.{cut(key)}: {owner.__name__} has no such argument{hint}."
            else:
                yield from self.of_value(value, f"{path}.{key}", known[key])


def _dataclass(annotation: Any) -> type | None:
    return next((one for one in options_of(annotation) if isinstance(one, type) and is_dataclass(one)), None)


def _out_of_range(value: object, path: str, annotation: Any) -> list[str]:
    """The faults of a value against its annotation's range, where texts may be numbers: ``"3"``."""
    found = faults_of({path: annotation}, {path: value})
    if not isinstance(value, str):
        return found
    options = options_of(annotation)
    if not found and (str in options or any(get_origin(one) is Literal for one in options)):
        return []
    try:
        return faults_of({path: annotation}, {path: parse_yaml(str(value))})
    except yaml.YAMLError:
        return found
