"""Reading a recipe's file."""

from pathlib import Path
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.yaml import read_yaml

__all__ = ["load_recipe"]


def load_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe. Texts that were in quotes are marked, since the parser reads others as YAML once more.

    Raises:
        ConfigurationError: it cannot be read, is not YAML, or is not a mapping.
    """
    content = read_yaml(path, mark_quoted=True)
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{path}: a recipe is a mapping with the keys seed_everything, trainer, model and data, but this file"
            f" {'is empty' if content is None else f'contains a {type(content).__name__}'}."
        )
    return content
