"""``lightning-fl completion``: completion of commands, options and their values in a shell.

``jsonargparse.get_completion_script`` takes minutes, as it enumerates the arguments of every class of all libraries.
This script knows the options, this package's classes and the arguments of its models and data.
"""

import argparse
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args, get_origin

from lightning_fl.data.cards.lookup import available_cards
from lightning_fl.recipe.shipped import available_recipes, available_studies

Shell = Literal["bash", "zsh"]

#: Arguments with a shell function of their own: function -> words and the ending of files.
_FUNCTIONS = {
    "_lightning_fl_recipe": (available_recipes, "yaml"),
    "_lightning_fl_checkpoint": (lambda: ("last", "best"), "ckpt"),
    "_lightning_fl_study": (available_studies, "yaml"),
}
#: Metavar -> how shtab calls it.
_PATHS = {"RUN": "DIRECTORY", "runs": "DIRECTORY", "DIR": "DIRECTORY", "FILE": "FILE", "file": "FILE"} | {
    "--trainer.default_root_dir": "DIRECTORY"
}


def completion(shell: Shell) -> int:
    """Print the script.

    Args:
        shell: for bash: lightning-fl completion bash > ~/.local/share/bash-completion/completions/lightning-fl; for
            zsh: lightning-fl completion zsh > _lightning-fl, in a folder of $fpath
    """
    print(completion_script(shell))
    return 0


def completion_script(shell: Shell) -> str:
    """The script to be sourced by a shell. Imports torch, to know the options of ``fit``."""
    import shtab

    from lightning_fl.cli import COMMANDS, make_parser
    from lightning_fl.recipe import run as of_recipe

    plain = argparse.ArgumentParser(prog="lightning-fl")
    plain.add_argument("--version", action="store_true", help="Print the version.")
    subparsers = plain.add_subparsers()
    for name, entry in COMMANDS.items():
        child = subparsers.add_parser(name, help=entry.help, add_help=False)
        parsers = [make_parser(name), *([make_parser(name, of_recipe)] if name == "predict" else [])]
        known: set[str] = set()
        for number, parser in enumerate(parsers):
            special = _of_recipe() if number or entry.module == of_recipe.__name__ else _of_command(name)
            for action in parser._actions:
                names = action.option_strings or [action.dest]
                if known.isdisjoint(names):
                    _add(child, names, action, special.get(action.dest, ()))
                known.update(names)
        if name in ("fit", "validate", "test", "predict"):
            _add_class_arguments(child)
    functions = [_function(shell, name, words(), ending) for name, (words, ending) in _FUNCTIONS.items()]
    return shtab.complete(plain, shell=shell, preamble="\n".join(functions))


def _of_command(command: str) -> dict[str, Iterable[str] | str]:
    """Values of a command's arguments, or the shell function that lists them, by name."""
    return {
        "accelerator": ("auto", "cpu", "cuda"),
        "model": ("shared", "best", "all"),
        "study": "_lightning_fl_study",
        "name": available_cards() if command == "datasets" else available_recipes(),
    }


def _of_recipe() -> dict[str, Iterable[str] | str]:
    """The same for the keys of a recipe."""
    classes = {key: [cls.__name__ for cls in _classes(key)] for key in ("model", "data", "trainer.callbacks")}
    return {
        "config": "_lightning_fl_recipe",
        "ckpt_path": "_lightning_fl_checkpoint",
        "trainer.strategy": [cls.name for cls in _classes("trainer.strategy")],
        **classes,
    }


def _add(
    parser: argparse.ArgumentParser, names: Sequence[str], action: argparse.Action | None, values: Iterable[str] | str
) -> None:
    """Add an argument with its values, or the name of the shell function that lists them."""
    import shtab

    help, nargs = (None, None) if action is None else (action.help, action.nargs)
    help = help and help.replace("%", "%%")  # jsonargparse takes it as it is, argparse does not
    if nargs == 0:
        parser.add_argument(*names, action="store_true", help=help)
        return
    place = _PATHS.get(getattr(action, "metavar", None) or names[-1])
    values = values or tuple(_few(getattr(action, "_typehint", None)))
    choices = None if isinstance(values, str) else tuple(dict.fromkeys(values)) or None
    added = parser.add_argument(*names, nargs=nargs, choices=choices, help=help)
    if isinstance(values, str):
        added.complete = dict.fromkeys(get_args(Shell), values)  # type: ignore[attr-defined]
    elif place:
        added.complete = getattr(shtab, place)  # type: ignore[attr-defined]


def _classes(key: str) -> list[Any]:
    from lightning_fl.recipe.classes import subclasses
    from lightning_fl.recipe.parser import class_bases

    found = [cls for cls in subclasses(class_bases()[key][-1]) if cls.__module__.startswith("lightning_fl.")]
    return sorted((cls for cls in found if ".recipe." not in cls.__module__), key=lambda cls: cls.__name__)


def _add_class_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this package's models and data, with the values of those that have only a few."""
    from lightning_fl.recipe.classes import accepted_arguments, annotations_of

    for key in ("model", "data"):
        values: dict[str, dict[str, None]] = {}
        for cls in _classes(key):
            hints = annotations_of(cls)
            for name in accepted_arguments(cls):
                values.setdefault(name, {}).update(dict.fromkeys(_few(hints.get(name))))
        for name, known in values.items():
            _add(parser, [f"--{key}.{name}"], None, known)


def _few(hint: Any) -> list[str]:
    if hint is bool:
        return ["true", "false"]
    if get_origin(hint) is Literal:
        return list(map(str, get_args(hint)))
    return [value for part in get_args(hint) for value in _few(part)]


def _function(shell: Shell, name: str, words: Iterable[str], ending: str) -> str:
    if shell == "bash":
        files = f'compgen -f -X "!*.{ending}" -- "$1"; compgen -d -- "$1"'
        return f'{name}() {{ compgen -W {shlex.quote(" ".join(words))} -- "$1"; {files}; }}'
    return f"{name}() {{ _alternative 'names:name:({' '.join(words)})' 'files:file:_files -g \"*.{ending}\"'; }}"
