"""``lightning-fl completion``: completion of commands, options and their values in a shell."""

from collections.abc import Sequence
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's argument."""
    parser.add_argument(
        "shell",
        type=Literal["bash", "zsh"],
        help="For bash: lightning-fl completion bash > ~/.local/share/bash-completion/completions/lightning-fl",
    )


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Print the script."""
    from lightning_fl.cli import COMMANDS, make_parser

    everything = ArgumentParser(prog="lightning-fl")
    subcommands = everything.add_subcommands(dest="command")
    for name, entry in COMMANDS.items():
        subcommands.add_subcommand(name, make_parser(name), help=entry.help)
    print(everything.get_completion_script(f"shtab-{config.shell}"))
    return 0
