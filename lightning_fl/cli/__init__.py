"""The command line ``lightning-fl``.

The signature of a command's function declares its options, see :mod:`lightning_fl.cli.options`; it returns the exit
code. Only the module of the command that runs is imported. Commands that take a recipe are in
:mod:`lightning_fl.recipe.run`; exit codes and the printing of errors in :mod:`lightning_fl.recipe.error_messages`.
"""

import gc
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from jsonargparse import ArgumentParser

from lightning_fl.cli.options import add_options, call
from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.recipe.error_messages import exit_code
from lightning_fl.recipe.help import CommandParser, cached_help
from lightning_fl.version import __version__


class Command(NamedTuple):
    """A command: the module with its function, after a dot if it is in this package, and one line of help."""

    module: str
    help: str


_RUN = "lightning_fl.recipe.run"

#: Name to command, in the order of the help.
COMMANDS = {
    "fit": Command(_RUN, "Train from a recipe, then test the best round."),
    "validate": Command(_RUN, "Evaluate a checkpoint on every client's validation data."),
    "test": Command(_RUN, "Evaluate a checkpoint on every client's test data."),
    "predict": Command(
        ".predict", "Predict new samples with a finished run's model, or a recipe's own test data, as CSV."
    ),
    "explain": Command(".runs", "Colour a molecule's atoms by their contribution to a run's prediction."),
    "personalize": Command(
        ".personalize", "Mix a finished run's shared models for a new client's data, without training."
    ),
    "show": Command(".runs", "Write a finished run as a page: table, curves, figures, settings."),
    "export": Command(".runs", "Write a finished run's model as a folder for the Hugging Face Hub, with a card."),
    "compare": Command(".compare", "Compare finished runs: tables and figures."),
    "study": Command(".study", "Run a grid of recipes, settings and seeds, and test its claims."),
    "advise": Command(".advise", "Say whether federating a recipe's model is worth it, with whom and how, by trying."),
    "init": Command(".recipes", "Ask three questions, write a recipe and a module to start from."),
    "recipes": Command(".recipes", "List, print or copy the recipes that come with the package."),
    "datasets": Command(".datasets", "List data sets, fetch them, check their files."),
    "completion": Command(".completion", "Print the completion script for a shell."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    ``arguments`` are the words after ``lightning-fl``; default: those of this process, as runs on several devices need.
    """
    return exit_code(partial(_run, list(sys.argv[1:] if arguments is None else arguments)))


def _run(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        if words == ["--version"]:
            print(f"lightning-fl {__version__}")
            return 0
        if not words or words[0] in ("-h", "--help"):
            _overview().print_help(sys.stdout if words else sys.stderr)
            return 0 if words else 2
        raise ConfigurationError(f"{words[0]} is before the command; write lightning-fl COMMAND {words[0]}.")
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        hint = f"{did_you_mean(command, COMMANDS)}. There are {', '.join(COMMANDS)}"
        raise ConfigurationError(f"no command {command!r}{hint}.")
    if rest in (["-h"], ["--help"]):
        print(cached_help(command, partial(make_parser, command)), end="")
        return 0
    module = import_module(COMMANDS[command].module, __name__)
    if hasattr(module, "is_of_recipe") and module.is_of_recipe(rest):
        module = import_module(_RUN)
    parser, of_recipe = make_parser(command, module), module.__name__ == _RUN
    if not rest and hasattr(module, "is_of_recipe"):  # both forms, before the error
        parser.print_usage(sys.stderr)
    try:
        config = module.parse(command, parser, rest) if of_recipe else parser.parse_args(rest)
    except SystemExit as end:  # --help and --print_config
        return int(end.code or 0)
    if not gc.isenabled():  # by the program, for its imports, in which no garbage needs to be looked for later
        gc.freeze()
        gc.enable()
    return module.run(command, config, parser, rest) if of_recipe else call(getattr(module, command), config)


def make_parser(command: str, module: ModuleType | None = None) -> ArgumentParser:
    """The parser of one command; ``module`` is that of the second form of a command that has two."""
    module = import_module(COMMANDS[command].module, __name__) if module is None else module
    parser = CommandParser(command, usage=getattr(module, "USAGE", None), description=COMMANDS[command].help)
    if module.__name__ == _RUN:
        module.add_arguments(parser, command)
    else:
        add_options(parser, getattr(module, command))
    return parser


def _overview() -> ArgumentParser:
    """Parser for ``--help``: the commands without their arguments, which take seconds to collect."""
    parser = ArgumentParser(
        prog="lightning-fl",
        version=f"lightning-fl {__version__}",
        description="Federate an ordinary LightningModule from one YAML recipe.",
        epilog="First steps: lightning-fl recipes; lightning-fl fit --config drflm_esol. `lightning-fl COMMAND --help`"
        " shows a command's options.",
    )
    subcommands = parser.add_subcommands(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        subcommands.add_subcommand(name, ArgumentParser(), help=command.help)
    return parser
