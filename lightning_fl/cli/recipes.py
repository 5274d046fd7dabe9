"""``lightning-fl recipes``: the recipes that come with the package."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.recipe.shipped import available_recipes, listing

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", type=str | None, nargs="?", default=None, help="A recipe to print, or to copy.")
    parser.add_argument(
        "--copy",
        type=str | None,
        nargs="?",
        const=".",
        default=None,
        metavar="DIR",
        help="Copy the recipe, or all of them, into a folder (default: this one). Never overwrites.",
    )


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """List, print or copy."""
    recipes = available_recipes()
    if config.name is not None:
        if config.name not in recipes:
            raise ConfigurationError(
                f"no shipped recipe {config.name!r}{did_you_mean(config.name, recipes)}. There are"
                f" {', '.join(recipes)}."
            )
        recipes = {config.name: recipes[config.name]}
    if config.copy is not None:
        for target in copy_recipes(recipes, Path(config.copy)):
            print(target)
    elif config.name is not None:
        print(recipes[config.name].read_text(encoding="utf-8"), end="")
    else:
        print(listing(recipes))
    return 0


def copy_recipes(recipes: dict[str, Path], folder: Path) -> list[Path]:
    """Copy recipes into a folder, all or none.

    Returns:
        The copies.

    Raises:
        ConfigurationError: a file exists already, or the folder cannot be written.
    """
    targets = {name: folder / f"{name}.yaml" for name in recipes}
    present = [str(target) for target in targets.values() if target.exists()]
    if present:
        raise ConfigurationError(
            f"{', '.join(present)} already {'exists' if len(present) == 1 else 'exist'}; move the file, or give another"
            " folder with --copy DIR."
        )
    try:
        for name, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(recipes[name], target)
    except OSError as error:
        raise ConfigurationError(f"cannot copy to {folder}: {error}. Give another folder with --copy DIR.") from error
    return list(targets.values())
