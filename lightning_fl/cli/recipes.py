"""``lightning-fl recipes``, those that come with the package, and ``init``, which writes a recipe and a module."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from lightning_fl.cli.options import Folder, Word
from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.recipe.shipped import available_recipes, listing, write_files
from lightning_fl.recipe.starters.start import ALGORITHMS, DATA, TASKS, Answers, starter_files


def recipes(name: str | None = None, *, copy: Annotated[Path, Word("DIR", const=Path())] | None = None) -> int:
    """List the shipped recipes, or print or copy them.

    Args:
        name: a recipe to print, or to copy
        copy: copy the recipe, or all of them, into a folder (default: this one). Never overwrites
    """
    found = available_recipes()
    if name is not None:
        if name not in found:
            hint = f"{did_you_mean(name, found)}. There are {', '.join(found)}"
            raise ConfigurationError(f"no shipped recipe {name!r}{hint}.")
        found = {name: found[name]}
    if copy is not None:
        write_files({f"{name}.yaml": path.read_bytes() for name, path in found.items()}, copy, "--copy DIR")
        print("\n".join(str(copy / f"{name}.yaml") for name in found))
    elif name is not None:
        print(found[name].read_text(encoding="utf-8"), end="")
    else:
        print(listing(found))
    return 0


def init(*, answers: Answers, to_folder: Folder = Path()) -> int:
    """Ask for the missing answers, write the files and print the next command.

    Args:
        to_folder: folder to write to
    """
    data = _answer(answers.data, "data", "What are your data?", DATA)
    tasks = {"classification": TASKS["classification"]} if data == "images" else TASKS
    task = _answer(answers.task, "task", "What is to be predicted?", tasks)
    algorithm = _answer(answers.algorithm, "algorithm", "What shall clients get?", ALGORITHMS)
    found = starter_files(replace(answers, data=data, task=task, algorithm=algorithm), to_folder)
    write_files(found, to_folder, "--to-folder DIR")
    for name in sorted({name.partition("/")[0] for name in found}):
        print(to_folder / name)
    inside = "" if to_folder == Path() else f"cd {shlex.quote(str(to_folder))} && "
    print(f"Now: {inside}lightning-fl fit --config recipe.yaml")
    return 0


def _answer(given: str, option: str, question: str, answers: Mapping[str, str]) -> str:
    """The given answer; for "ask" the user's, by number or name, where an empty line chooses the first."""
    if given != "ask":
        return given
    if len(answers) == 1:
        return next(iter(answers))
    if not sys.stdin.isatty():
        raise ConfigurationError(f"standard input is not a terminal; give --{option} {'|'.join(answers)}.")
    print(question)
    for number, (name, meaning) in enumerate(answers.items(), 1):
        print(f"  {number}  {name}: {meaning}")
    while True:
        try:
            answer = input(f"1 to {len(answers)} [1]: ").strip()
        except EOFError:
            raise ConfigurationError(f"no answer was given: give --{option} {'|'.join(answers)}.") from None
        if answer in answers:
            return answer
        if not answer or (answer.isdigit() and 1 <= int(answer) <= len(answers)):
            return list(answers)[int(answer or 1) - 1]
        print(f"{answer!r} is not one of them.")
