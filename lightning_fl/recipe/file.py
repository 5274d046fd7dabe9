"""Reading a recipe's file; what cannot be read is refused with file and line."""

from pathlib import Path
from typing import Any

import yaml

from lightning_fl.errors import ConfigurationError

__all__ = ["load_recipe", "read_yaml"]


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
