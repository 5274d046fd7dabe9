"""``lightning-fl recipes``: the recipes that come with the package."""

from pathlib import Path
from typing import Annotated

from lightning_fl.cli.options import Word
from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.recipe.shipped import available_recipes, listing, write_files


def recipes(
    name: str | None = None,
    *,
    copy: Annotated[Path, Word("DIR", const=Path())] | None = None,
) -> int:
    """List the shipped recipes, or print or copy them.

    Args:
        name: a recipe to print, or to copy
        copy: copy the recipe, or all of them, into a folder (default: this one). Never overwrites
    """
    found = available_recipes()
    if name is not None:
        if name not in found:
            raise ConfigurationError(
                f"no shipped recipe {name!r}{did_you_mean(name, found)}. There are {', '.join(found)}."
            )
        found = {name: found[name]}
    if copy is not None:
        write_files({f"{name}.yaml": path.read_bytes() for name, path in found.items()}, copy, "--copy DIR")
        print("\n".join(str(copy / f"{name}.yaml") for name in found))
    elif name is not None:
        print(found[name].read_text(encoding="utf-8"), end="")
    else:
        print(listing(found))
    return 0
