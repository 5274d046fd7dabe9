"""Recipes and studies that come with the package, found by name from any folder.

This module imports neither torch nor Lightning, so that the command line lists recipes at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.files.user_file import package_folder

#: The folder of the studies among the recipes.
_STUDIES = "studies"


def available_recipes() -> dict[str, Path]:
    """The recipes that come with the package: name -> path, sorted by name."""
    folder = package_folder("recipes", "recipes")
    paths = (path for path in sorted(folder.rglob("*.yaml")) if path.relative_to(folder).parts[0] != _STUDIES)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def available_studies() -> dict[str, Path]:
    """The studies that come with the package: name -> path, sorted by name."""
    return {path.stem: path for path in sorted((package_folder("recipes", "recipes") / _STUDIES).glob("*.yaml"))}


def find_recipe(name_or_path: str, kind: Literal["recipe", "study"] = "recipe") -> Path:
    """Find a recipe or a study by path, or by the name of a shipped one."""
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    shipped = available_recipes() if kind == "recipe" else available_studies()
    if name_or_path in shipped:
        return shipped[name_or_path]
    if path.is_dir():
        raise ConfigurationError(f"{name_or_path!r} is a folder; give a {kind}'s file, or the name of a shipped one.")
    stem = path.name.removesuffix(".yml").removesuffix(".yaml")
    hint = f"{did_you_mean(stem, shipped)}. `lightning-fl {'recipes' if kind == 'recipe' else kind}` lists those"
    raise ConfigurationError(f"no {kind} {name_or_path!r}: neither a file nor a shipped {kind}{hint}.")


def listing(found: dict[str, Path]) -> str:
    """Format recipes or studies as lines of name and headline."""
    width = max(map(len, found), default=0)
    return "\n".join(f"{name:{width}}  {recipe_headline(path)}".rstrip() for name, path in found.items())


def recipe_headline(path: Path) -> str:
    """The first line of a recipe's head comment, or an empty string."""
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def write_files(found: Mapping[str, bytes], folder: Path, option: str) -> None:
    """Write all files, or none if one of them or its folder exists already."""
    first = sorted({name.partition("/")[0] for name in found})
    if present := [str(folder / name) for name in first if (folder / name).exists() or (folder / name).is_symlink()]:
        exists = "already exists: move it" if len(present) == 1 else "already exist: move them"
        raise ConfigurationError(f"{', '.join(present)} {exists}, or give another folder with {option}.")
    try:
        for name, content in found.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                file.write(content)
    except OSError as error:
        raise ConfigurationError(f"cannot write to {folder}: {error}. Give another folder with {option}.") from error
