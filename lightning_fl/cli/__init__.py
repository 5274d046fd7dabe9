"""The command line ``lightning-fl``.

Each command is a module with ``add_arguments(parser, command)`` and ``run(command, config, parser, arguments)``, which
returns the exit code; it may have a line ``USAGE`` and ``explain``, which puts the parser's errors in words. Only the
module of the command that is asked for is imported, and only the commands that train or evaluate import torch.

Exit codes: 0; 2 for what the user is to mend, with the reason on standard error; 128 + n after signal n. With
``LIGHTNING_FL_DEBUG=1`` an error comes with its traceback.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from lightning_fl.cli.diagnosis import compact
from lightning_fl.data.cards.catalogue import did_you_mean
from lightning_fl.errors import ConfigurationError, FederatedError, TrainingError
from lightning_fl.version import __version__

__all__ = ["COMMANDS", "Command", "error_text", "main", "make_parser", "parse"]


class Command(NamedTuple):
    """A command: the module that implements it and one line of help."""

    module: str
    help: str


_RUN = "lightning_fl.cli.run"

#: Name to command, in the order of the help.
COMMANDS = {
    "fit": Command(_RUN, "Train from a recipe, then test the best round."),
    "validate": Command(_RUN, "Evaluate a checkpoint on every client's validation data."),
    "test": Command(_RUN, "Evaluate a checkpoint on every client's test data."),
    "predict": Command(_RUN, "Write a checkpoint's predictions for every client's test data as CSV."),
    "personalize": Command(
        "lightning_fl.cli.personalize", "Mix a finished run's shared models for a new client's data, without training."
    ),
    "compare": Command("lightning_fl.cli.compare", "Put finished runs side by side: tables and figures."),
    "study": Command("lightning_fl.cli.study", "Run a grid of recipes, settings and seeds, and judge what is claimed."),
    "recipes": Command("lightning_fl.cli.recipes", "List, print or copy the recipes that come with the package."),
    "datasets": Command("lightning_fl.cli.datasets", "List data sets, fetch them, check their files."),
    "completion": Command("lightning_fl.cli.completion", "Print the completion script for a shell."),
}


def main(arguments: Sequence[str] | None = None, parser: ArgumentParser | None = None) -> int:
    """Run a command.

    Args:
        arguments: the words after ``lightning-fl``; ``None`` for those of this process. With several devices the other
            processes are started with this process's own words, so give none then.
        parser: the command's, of :func:`make_parser`, where it has been made already: ``fit``'s takes seconds.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(words, parser)
        sys.stdout.flush()
        return code
    except (FederatedError, ArgumentError) as error:
        if _shows_traceback():
            traceback.print_exc()
        for line in error_text(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `lightning-fl recipes | head`; the interpreter must not flush into the pipe once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(words: list[str], parser: ArgumentParser | None) -> int:
    if not words or words[0].startswith("-"):
        if words == ["--version"]:
            print(f"lightning-fl {__version__}")
            return 0
        if not words or words[0] in ("-h", "--help"):
            overview = _overview()
            overview.print_help(sys.stdout if words else sys.stderr)
            return 0 if words else 2
        raise ConfigurationError(f"{words[0]} stands before the command: write lightning-fl COMMAND {words[0]}.")
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        raise ConfigurationError(
            f"no command {command!r}{did_you_mean(command, COMMANDS)}. There are {', '.join(COMMANDS)}."
        )
    parser = parser or make_parser(command)
    try:
        config = parse(command, parser, rest)
    except SystemExit as end:  # --help and --print_config
        return int(end.code or 0)
    return import_module(COMMANDS[command].module).run(command, config, parser, rest)


def parse(command: str, parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Parse a command's words.

    Raises:
        ConfigurationError: what is wrong, as the command explains it.
        ArgumentError: the same for a command that explains nothing.
    """
    try:
        return parser.parse_args(words)
    except ArgumentError as error:
        explain = getattr(import_module(COMMANDS[command].module), "explain", None)
        if explain is None or _federated(error) is not None:
            raise
        raise ConfigurationError(explain(error, command, parser, words)) from error


def make_parser(command: str) -> ArgumentParser:
    """The parser of one command."""
    module = import_module(COMMANDS[command].module)
    parser = ArgumentParser(
        prog=f"lightning-fl {command}",
        usage=getattr(module, "USAGE", None),
        description=COMMANDS[command].help,
        exit_on_error=False,
        allow_abbrev=False,
    )
    module.add_arguments(parser, command)
    return parser


def _overview() -> ArgumentParser:
    """For ``--help`` only: the commands without their arguments, which would take seconds to collect."""
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


def _federated(error: BaseException | None) -> FederatedError | None:
    """The error that is meant for the user, if it lies below one of the parser's."""
    while error is not None and not isinstance(error, FederatedError):
        error = error.__cause__ or error.__context__
    return error


def error_text(error: BaseException) -> str:
    """What is printed of an error."""
    own = _federated(error)
    if own is None:
        return compact(str(error))
    hint = ""
    unforeseen = own.__cause__ is not None and not isinstance(own.__cause__, FederatedError)
    if isinstance(own, TrainingError) and unforeseen and not _shows_traceback():
        hint = "\nLIGHTNING_FL_DEBUG=1 shows where in the code."
    return f"{own}{hint}"


def _shows_traceback() -> bool:
    return os.environ.get("LIGHTNING_FL_DEBUG") == "1"
