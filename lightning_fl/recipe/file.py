"""Reading a recipe's file."""

from pathlib import Path
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import read_yaml

__all__ = ["load_recipe"]


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
