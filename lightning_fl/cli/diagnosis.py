"""What is wrong with a recipe, in words: every unknown key and class at once, with the nearest valid one."""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from lightning_fl.data.cards.catalogue import did_you_mean
from lightning_fl.errors import ConfigurationError
from lightning_fl.shipped import find_recipe

__all__ = ["accepted_arguments", "collect_settings", "compact", "find_faults", "load_recipe", "read_yaml", "subclasses"]

#: Keys of a YAML entry that names a class.
_CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


def load_recipe(path: Path) -> dict[str, Any]:
    """The content of a recipe.

    Raises:
        ConfigurationError: it cannot be read, is not YAML, or is not a mapping. The message names file and line.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{path}: a recipe is a mapping with the keys seed_everything, trainer, model and data, this is"
            f" {'empty' if content is None else f'a {type(content).__name__}'}."
        )
    return content


def read_yaml(path: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> object:
    """The content of a YAML file.

    Args:
        path: the file.
        loader: what reads it.

    Raises:
        ConfigurationError: it cannot be read or is not YAML. The message names file and line.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigurationError(
            f"{path}{where}: not YAML: {error.problem or error.context}. Check the indentation, colons, brackets and"
            " quotes there."
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error


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
        if name == "config":
            _merge(tree, load_recipe(find_recipe(text)))
        else:
            _override(tree, name, text)
    return tree


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _override(tree: dict[str, Any], name: str, text: str) -> None:
    """Set ``--NAME TEXT``; arguments of a class may leave out ``init_args``, ``NAME+`` adds to a list."""
    path = name.rstrip("+").split(".")
    node = tree
    for depth, key in enumerate(path):
        if isinstance(node, list):
            node = node[-1] if node and isinstance(node[-1], dict) else {}
        is_class = "class_path" in node or (depth == 1 and path[0] in ("model", "data"))
        if is_class and key not in (*_CLASS_KEYS, "help"):
            node = node.setdefault("init_args", {})
        if depth == len(path) - 1:
            value = _value(text, path)
            if name.endswith("+"):
                before = node.get(key)
                node[key] = [
                    *(before if isinstance(before, list) else []),
                    *(value if isinstance(value, list) else [value]),
                ]
            elif isinstance(value, dict) and isinstance(node.get(key), dict):
                _merge(node[key], value)
            else:
                node[key] = value
        else:
            if not isinstance(node.get(key), dict | list):
                node[key] = {}
            node = node[key]


def _value(text: str, path: list[str]) -> Any:
    """A value of the command line; where a class is expected its bare name will do."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str) and (path in (["model"], ["data"]) or path[-1] in ("callbacks", "partitioner")):
        return {"class_path": value}
    return value


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
            yield f"{path}: there is no such key{did_you_mean(str(key), here) or _elsewhere(str(key), keys)}."
        elif path in keys:
            yield from _faults_of_value(value, path, bases)
        elif isinstance(value, Mapping):
            yield from _faults_of_group(value, f"{path}.", keys, bases)
        elif value is not None:
            yield f"{path}={value!r}: expected a mapping with keys such as {', '.join(_below(path, keys)[:3])}."


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
    elif isinstance(value, Mapping):
        for number, item in value.items():
            if isinstance(number, int):  # a client's, as in ``policies: {3: ...}``
                yield from _faults_of_value(item, f"{path}[{number}]", bases)


def _faults_of_class(entry: Mapping[str, Any], path: str, bases: Mapping[str, type]) -> Iterator[str]:
    name = entry["class_path"]
    base = bases.get(re.sub(r"\[\d+\]", "", path))
    found = _find_class(name, list(bases.values()) if base is None else [base])
    if isinstance(found, str):
        yield f"{path}.class_path={name!r}: {found}."
        return
    if base is not None and isinstance(found, type) and not issubclass(found, base):
        yield f"{path}.class_path={name!r}: it is not a subclass of {base.__module__}.{base.__qualname__}."
        return
    for key in entry:
        if key not in _CLASS_KEYS:
            yield f"{path}.{key}: arguments of {name} belong under {path}.init_args."
    arguments = entry.get("init_args") or {}
    try:
        known = accepted_arguments(found)
    except ValueError:  # no class of the kind a recipe can name; the parser says so
        return
    for key, value in arguments.items() if isinstance(arguments, Mapping) else ():
        if key not in known:
            hint = did_you_mean(str(key), known) or f"; it has {', '.join(known)}"
            yield f"{path}.init_args.{key}: {found.__name__} has no such argument{hint}."
        else:
            yield from _faults_of_value(value, f"{path}.init_args.{key}", bases)


def _find_class(name: str, bases: Sequence[type]) -> type | Callable[..., Any] | str:
    """The class of a short or a dotted name, or what is wrong with it."""
    module, _, last = name.rpartition(".")
    if module:
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


def compact(message: str) -> str:
    """The parser's message for one wrong value, several nested lines, as one sentence."""
    path = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    lines = message.splitlines()
    given = [line.split(":", 1)[1].strip() for line in lines if re.match(r"\s*Given value:", line)]
    reasons: list[tuple[int, str]] = []
    for line in lines:
        text = re.sub(r'^Parser key "[^"]+":', "", line.strip().removeprefix("- ")).strip()
        if text and not _FRAME.match(text):
            reasons.append((len(line) - len(line.lstrip()), _plain(text)))
    deepest = max((indent for indent, _ in reasons), default=0)
    chosen = list(dict.fromkeys(text for indent, text in reasons if indent == deepest))
    # Of several types that a value may have, a reason of its own tells more than "expected another type".
    telling = [text for text in chosen if not text.startswith("expected a value of type")]
    sentence = "; ".join(telling or chosen) or " ".join(message.split())
    if given and not telling and "got " not in sentence:
        sentence += f"; got {given[0]}" if len(given[0]) < 80 else ""
    return f"{path}: {sentence}." if path else f"{sentence.rstrip('.')}."


# lines that say only where in the nesting they stand
_FRAME = re.compile(
    r"(Does not validate|Subtypes:|Errors:|Given value|Problem with given|Expected a <class 'NoneType'>|Subclass types"
    r"|a class path|a dict with)"
)


def _plain(text: str) -> str:
    text = re.sub(r"typing\.Literal\[([^\]]*)\]", r"one of \1", text)
    text = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", text)
    text = re.sub(r"^Expected an? (one of )?", lambda match: f"expected {match[1] or 'a value of type '}", text)
    return re.sub(r"\.? Got value: ", ", got ", text).rstrip(".")
