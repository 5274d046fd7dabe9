"""``lightning-fl init``: write a recipe and a module to start from, after three questions."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.recipe.shipped import write_files
from lightning_fl.recipe.starters.start import ALGORITHMS, DATA, TASKS, Answers, starter_files

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    texts = {
        "data": f"Question 1, the data: {', '.join(DATA)}.",
        "task": f"Question 2, what is predicted: {', '.join(TASKS)}.",
        "algorithm": f"Question 3, how it is learned: {', '.join(ALGORITHMS)}.",
        "file": "Your file, or folder of images (default: made-up data).",
        "target": "The file's column to predict.",
        "clients": "The file's column with the client of a row.",
        "smiles": "The file's column of molecules (default: smiles, SMILES, ...).",
    }
    for name, text in texts.items():
        parser.add_argument(f"--{name}", type=str | None, default=None, help=text)
    parser.add_argument("--to-folder", type=str, default=".", metavar="DIR", help="Folder to write to.")


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Ask for the missing answers, write the files and print the next command."""
    data = config.data or _ask("data", "What are your data?", DATA)
    tasks = {"classification": TASKS["classification"]} if data == "images" else TASKS
    task = config.task or _ask("task", "What is to be predicted?", tasks)
    algorithm = config.algorithm or _ask("algorithm", "What shall clients get?", ALGORITHMS)
    found = starter_files(Answers(data, task, algorithm, config.file, config.target, config.clients, config.smiles))
    folder = Path(config.to_folder).expanduser()
    write_files(found, folder, "--to-folder DIR")
    for name in sorted({name.partition("/")[0] for name in found}):
        print(folder / name)
    inside = "" if folder == Path() else f"cd {folder} && "
    print(f"Now: {inside}lightning-fl fit --config recipe.yaml")
    return 0


def _ask(option: str, question: str, answers: Mapping[str, str]) -> str:
    """Ask for one of the answers, by number or name; an empty line chooses the first."""
    if not sys.stdin.isatty():
        given = "|".join(answers)
        raise ConfigurationError(f"standard input is not a terminal; give --{option} {given}.")
    if len(answers) == 1:
        return next(iter(answers))
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
