"""What is wrong with a recipe's settings: every unknown key and class at once, with the nearest valid one."""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from jsonargparse import ArgumentParser

from lightning_fl.core.errors import cut, did_you_mean
from lightning_fl.recipe.error_messages import shown
from lightning_fl.recipe.settings import CLASS_KEYS

__all__ = ["accepted_arguments", "find_faults", "subclasses"]


def find_faults(tree: Mapping[str, Any], keys: Collection[str], bases: Mapping[str, type]) -> list[str]:
    """Every key and class of a tree of settings that does not exist, each in a sentence with the nearest that does.

    Args:
        tree: the settings.
        keys: the parser's keys with their full paths, such as ``trainer.max_rounds``.
        bases: the class that an extensible key holds a subclass of, by the key's path; short names are those of
            subclasses of the key's own base, for a key that is not listed of any of them.
    """
    return list(_faults_of_group(tree, "", keys, bases))


def _faults_of_group(
    tree: Mapping[str, Any], prefix: str, keys: Collection[str], bases: Mapping[str, type]
) -> Iterator[str]:
    here = sorted({key.removeprefix(prefix).split(".")[0] for key in keys if key.startswith(prefix)})
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if key not in here:
            hint = did_you_mean(str(key), here) or _elsewhere(str(key), keys)
            yield f"{prefix}{cut(key)}: there is no such key{hint}."
        elif path in keys:
            yield from _faults_of_value(value, path, bases)
        elif isinstance(value, Mapping):
            yield from _faults_of_group(value, f"{path}.", keys, bases)
        else:
            yield f"{path}={shown(value)}: expected a mapping with keys such as {', '.join(_below(path, keys)[:3])}."


def _below(path: str, keys: Collection[str]) -> list[str]:
    return [key.removeprefix(f"{path}.") for key in keys if key.startswith(f"{path}.")]


def _elsewhere(name: str, keys: Collection[str]) -> str:
    """The full path of a key that was written at the wrong place."""
    places = [key for key in keys if key.rpartition(".")[2] == name]
    return f" (did you mean {places[0]!r}?)" if places else ""


def _faults_of_value(value: object, path: str, bases: Mapping[str, type]) -> Iterator[str]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _faults_of_value(item, f"{path}[{number}]", bases)
    elif isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
        yield from _faults_of_class(value, path, bases)
    elif isinstance(value, Mapping) and "class_path" in value:
        yield f"{path}.class_path={shown(value['class_path'])}: expected the name of a class."
    elif path.endswith("]") and _without_places(path) in bases and not isinstance(value, Mapping | str):
        yield f"{path}={shown(value)}: expected a class, with class_path and init_args."
    elif isinstance(value, Mapping) and (misspelt := _misspelt(value, path, bases)):
        yield misspelt
    elif isinstance(value, Mapping):
        for number, item in value.items():
            if isinstance(number, int):  # a client's, as in ``policies: {3: ...}``
                yield from _faults_of_value(item, f"{path}[{number}]", bases)


def _misspelt(entry: Mapping[str, Any], path: str, bases: Mapping[str, type]) -> str | None:
    """What is wrong where a class is expected and an entry names none."""
    if _without_places(path) not in bases or any(isinstance(key, int) for key in entry):
        return None
    for key in entry:
        if key not in CLASS_KEYS and (hint := did_you_mean(str(key), CLASS_KEYS)):
            return f"{path}.{cut(key)}: there is no such key{hint}."
    # A list's entry cannot stand for a change of another; the rest may change a class that is the default.
    if path in ("model", "data") or path.endswith("]"):
        return f"{path}: class_path is not given: name a class, and its arguments under init_args."
    return None


def _without_places(path: str) -> str:
    return re.sub(r"\[\d+\]", "", path)


def _faults_of_class(entry: Mapping[str, Any], path: str, bases: Mapping[str, type]) -> Iterator[str]:
    from lightning_fl.core.lightning_types import EITHER_NAME  # imports torch

    name = entry["class_path"]
    base = bases.get(_without_places(path))
    found = _find_class(name, list(bases.values()) if base is None else [base])
    if isinstance(found, str):
        yield f"{path}.class_path={shown(name)}: {found}."
        return
    if base is not None and isinstance(found, type) and not issubclass(found, EITHER_NAME.get(base, base)):
        yield f"{path}.class_path={shown(name)}: it is not a subclass of {base.__module__}.{base.__qualname__}."
        return
    for key in entry:
        if key not in CLASS_KEYS:
            yield f"{path}.{cut(key)}: arguments of {cut(name)} belong under {path}.init_args."
    arguments = entry.get("init_args", {})
    if not isinstance(arguments, Mapping):
        given = f"{path}.init_args={shown(arguments)}"
        yield f"{given}: give the arguments of {cut(name)} by name, or leave init_args out."
    try:
        known = accepted_arguments(found)
    except ValueError:  # no class of the kind a recipe can name; the parser says so
        return
    renamed = getattr(found, "renamed_options", {})
    for key, value in arguments.items() if isinstance(arguments, Mapping) else ():
        if key in renamed:
            yield f"{path}.init_args.{key}: this option of {found.__name__} is now called {renamed[key]}."
        elif key not in known:
            hint = did_you_mean(str(key), known) or f"; it has {', '.join(known)}"
            yield f"{path}.init_args.{cut(key)}: {found.__name__} has no such argument{hint}."
        else:
            yield from _faults_of_value(value, f"{path}.init_args.{key}", bases)


def _find_class(name: str, bases: Sequence[type]) -> type | Callable[..., Any] | str:
    """The class of a short or a dotted name, or what is wrong with it."""
    module, _, last = name.rpartition(".")
    if module:
        if not all(part.isidentifier() for part in name.split(".")):
            return "no name of a class; give a class of your own with its module, as in my_package.MyClass"
        try:
            return getattr(import_module(module), last)
        except AttributeError:
            return f"the module {module} has no {last}{did_you_mean(last, dir(import_module(module)))}"
        except Exception as error:  # whatever a module of the user's own raises
            return f"it cannot be imported ({type(error).__name__}: {error})"
    known = {cls.__name__: cls for base in bases for cls in subclasses(base)}
    return known.get(name) or (
        f"there is no such class{did_you_mean(name, known)}; give a class of your own with its module, as in"
        " my_package.MyClass"
    )


def subclasses(base: type) -> Iterator[type]:
    """The imported classes below a base that can be made: neither abstract nor private."""
    cls: type
    for cls in base.__subclasses__():
        if not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            yield cls
        yield from subclasses(cls)


def accepted_arguments(callable_: type | Callable[..., Any]) -> list[str]:
    """The names of a class's arguments, those that ``**kwargs`` passes on to a base class among them.

    Raises:
        ValueError: they cannot be found out, as for many classes written in C.
    """
    parser = ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if isinstance(callable_, type) else parser.add_function_arguments
    return [name.split(".")[0] for name in add(callable_, None, fail_untyped=False)]
