"""``lightning-fl completion``: completion of commands, options and their values in a shell.

jsonargparse could write the script, but it would first enumerate the arguments of every class that any option can
hold, all data sets of all libraries among them. Here the script knows the options, the short names of this package's
classes and those classes' own arguments.
"""

import argparse
import inspect
import shlex
import types
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.data.cards.catalogue import available_cards
from lightning_fl.recipe.shipped import available_recipes, available_studies

__all__ = ["add_arguments", "completion_script", "run"]

Shell = Literal["bash", "zsh"]

_RECIPE = "_lightning_fl_recipe"
_CHECKPOINT = "_lightning_fl_checkpoint"
_STUDY = "_lightning_fl_study"
#: What shtab calls a place in the file system.
_PATHS = {"folders": "DIRECTORY", "files": "FILE"}


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's argument."""
    parser.add_argument(
        "shell",
        type=Shell,
        help="For bash: lightning-fl completion bash > ~/.local/share/bash-completion/completions/lightning-fl; for"
        " zsh: lightning-fl completion zsh > _lightning-fl, in a folder of $fpath.",
    )


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Print the script."""
    print(completion_script(config.shell))
    return 0


def completion_script(shell: Shell) -> str:
    """The script to be sourced by a shell. Imports torch, to know the options of ``fit``."""
    import shtab

    from lightning_fl.cli import COMMANDS

    plain = argparse.ArgumentParser(prog="lightning-fl")
    plain.add_argument("--version", action="store_true", help="Print the version.")
    subparsers = plain.add_subparsers()
    for name, entry in COMMANDS.items():
        child = subparsers.add_parser(name, help=entry.help, add_help=False)
        known: set[str] = set()
        for parser, values in _forms(name):
            for action in parser._actions:
                names = action.option_strings or [action.dest]
                if known.isdisjoint(names):
                    _add(child, names, action.nargs, values.get(action.dest, ()), action.help)
                known.update(names)
        if name in ("fit", "validate", "test", "predict"):
            _add_class_arguments(child)
    return shtab.complete(plain, shell=shell, preamble=_preamble(shell))


def _forms(command: str) -> "list[tuple[ArgumentParser, dict[str, Iterable[str] | str]]]":
    """The parsers of a command's forms, with what their options can be."""
    from lightning_fl.cli import COMMANDS, make_parser
    from lightning_fl.cli import run as of_recipe

    forms = [(make_parser(command), _values(command))]
    if hasattr(import_module(COMMANDS[command].module), "is_of_recipe"):
        forms.append((make_parser(command, of_recipe), _values("fit")))
    return forms


def _add(
    parser: argparse.ArgumentParser,
    names: Sequence[str],
    nargs: Any,
    values: Iterable[str] | str,
    help: str | None = None,
) -> None:
    """An option or a positional, with its values or the name of the shell function that lists them."""
    import shtab

    if nargs == 0:
        parser.add_argument(*names, action="store_true", help=help)
    elif isinstance(values, str) and values in _PATHS:
        kind = getattr(shtab, _PATHS[values])
        parser.add_argument(*names, nargs=nargs, help=help).complete = kind  # type: ignore[attr-defined]
    elif isinstance(values, str):
        shells = {"bash": values, "zsh": values}
        parser.add_argument(*names, nargs=nargs, help=help).complete = shells  # type: ignore[attr-defined]
    else:
        parser.add_argument(*names, nargs=nargs, choices=tuple(values) or None, help=help)


def _values(command: str) -> dict[str, Iterable[str] | str]:
    """What the options of a command can be, by key."""
    if command == "recipes":
        return {"name": available_recipes(), "copy": "folders"}
    if command == "datasets":
        return {"name": available_cards()}
    if command == "study":
        return {"study": _STUDY, "out": "folders"}
    if command == "personalize":
        return {"run": "folders", "file": "files", "out": "files", "accelerator": ("auto", "cpu", "cuda")}
    if command == "predict":
        return {
            "run": "folders",
            "file": "files",
            "out": "files",
            "model": ("shared", "best", "all"),
            "accelerator": ("auto", "cpu", "cuda"),
        }
    if command == "compare":
        from lightning_fl.cli.compare import FORMATS

        folders = dict.fromkeys(("runs", "reference", "out"), "folders")
        return {**folders, "split": ("test", "val", "train"), "format": FORMATS}
    if command == "completion":
        return {"shell": get_args(Shell)}
    from lightning_fl.trainer.trainer import FederatedTrainer

    return {
        "config": _RECIPE,
        "ckpt_path": _CHECKPOINT,
        "model": [cls.__name__ for cls in _classes("model")],
        "data": [cls.__name__ for cls in _classes("data")],
        "trainer.callbacks": [cls.__name__ for cls in _classes("trainer.callbacks")],
        "trainer.strategy": [cls.name for cls in _classes("trainer.strategy")],
        "trainer.default_root_dir": "folders",
        **{f"trainer.{name}": choices for name, choices in _choices(FederatedTrainer).items()},
    }


def _classes(key: str) -> list[Any]:
    """The classes of this package that a key can hold."""
    from lightning.pytorch import LightningModule

    from lightning_fl.callbacks import Callback
    from lightning_fl.data import FederatedDataModule
    from lightning_fl.recipe.classes import subclasses
    from lightning_fl.strategies import FederatedStrategy

    bases: dict[str, type] = {
        "model": LightningModule,
        "data": FederatedDataModule,
        "trainer.callbacks": Callback,
        "trainer.strategy": FederatedStrategy,
    }
    found = [cls for cls in subclasses(bases[key]) if cls.__module__.startswith("lightning_fl.")]
    return sorted((cls for cls in found if ".recipe." not in cls.__module__), key=lambda cls: cls.__name__)


def _add_class_arguments(parser: argparse.ArgumentParser) -> None:
    from lightning_fl.recipe.classes import accepted_arguments

    for key in ("model", "data"):
        values: dict[str, dict[str, None]] = {}
        for cls in _classes(key):
            choices = _choices(cls)
            for name in accepted_arguments(cls):
                values.setdefault(name, {}).update(dict.fromkeys(choices.get(name, ())))
        for name, known in values.items():
            _add(parser, [f"--{key}.{name}"], None, known)


def _choices(cls: type) -> dict[str, tuple[str, ...]]:
    """The arguments of a class, and of its bases, that have only a few values."""
    found: dict[str, tuple[str, ...]] = {}
    for base in reversed(inspect.getmro(cls)):
        if base.__module__.startswith("lightning_fl."):
            for name, hint in get_type_hints(base.__init__).items():  # type: ignore[misc]
                parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
                values = [value for part in parts for value in _few(part)]
                if values:
                    found[name] = tuple(values)
    return found


def _few(hint: Any) -> tuple[str, ...]:
    if hint is bool:
        return ("true", "false")
    return tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()


def _preamble(shell: Shell) -> str:
    """The shell functions behind ``--config``, ``--ckpt_path`` and ``study``: words of ours, and files."""
    lists = {
        _RECIPE: (available_recipes(), "yaml"),
        _CHECKPOINT: (("last", "best"), "ckpt"),
        _STUDY: (available_studies(), "yaml"),
    }
    functions = []
    for name, (words, suffix) in lists.items():
        if shell == "bash":
            files = f'compgen -f -X "!*.{suffix}" -- "$1"; compgen -d -- "$1"'
            body = f'compgen -W {shlex.quote(" ".join(words))} -- "$1"; {files}'
        else:
            body = f"_alternative 'names:name:({' '.join(words)})' 'files:file:_files -g \"*.{suffix}\"'"
        functions.append(f"{name}() {{ {body}; }}")
    return "\n".join(functions)
