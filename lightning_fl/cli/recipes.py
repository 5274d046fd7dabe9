"""``lightning-fl recipes``: the recipes that come with the package."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.recipe.shipped import available_recipes, listing, write_files

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
        folder = Path(config.copy)
        write_files({f"{name}.yaml": path.read_bytes() for name, path in recipes.items()}, folder, "--copy DIR")
        print("\n".join(str(folder / f"{name}.yaml") for name in recipes))
    elif config.name is not None:
        print(recipes[config.name].read_text(encoding="utf-8"), end="")
    else:
        print(listing(recipes))
    return 0
