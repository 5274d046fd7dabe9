"""Reading a recipe's file, and its settings as a flat table. Does not import torch."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import read_yaml

_SECTIONS = ("trainer", "model", "data")


def load_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe without its empty sections, which change nothing.

    Texts that were in quotes are marked, since the parser reads others as YAML once more.
    """
    content = read_yaml(path, mark_quoted=True)
    if not isinstance(content, dict):
        found = "is empty" if content is None else f"contains a {type(content).__name__}"
        raise ConfigurationError(f"{path} {found}: a recipe has the keys seed_everything, trainer, model and data.")
    return {key: value for key, value in content.items() if value is not None or key not in _SECTIONS}


def flat_settings(value: object, path: str = "", without: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Settings of a recipe by their dotted path.

    A class is stored under its owner's path, its arguments below that, and the entries of a list of classes under
    their class's name: ``trainer.callbacks.LocalMixup.alpha``. A list of plain values is one setting.

    Args:
        value: the recipe.
        path: of the value.
        without: names of classes whose entries in lists are left out.
    """
    if isinstance(value, Mapping):
        if isinstance(value.get("class_path"), str):
            yield path, class_name(value)
            arguments = (value.get("init_args"), value.get("dict_kwargs"))
            value = {key: item for part in arguments if isinstance(part, Mapping) for key, item in part.items()}
        for key, item in value.items():
            yield from flat_settings(item, f"{path}.{key}" if path else str(key), without)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        names: list[str] = []
        for number, item in enumerate(value):
            name = class_name(item) if isinstance(item, Mapping) and "class_path" in item else str(number)
            if name not in without:
                names.append(name)
                again = f"[{names.count(name)}]" if names.count(name) > 1 else ""
                yield from flat_settings(item, f"{path}.{name}{again}", without)
    else:
        yield path, value


def class_entry(name: str, **arguments: Any) -> dict[str, Any]:
    """A recipe's entry of a class with arguments."""
    return {"class_path": name, "init_args": arguments}


def class_name(entry: Mapping[str, Any]) -> str:
    """The class of a recipe's entry, without its module."""
    return str(entry.get("class_path")).rpartition(".")[2]
