"""Arguments that several commands share, and arguments declared as the fields of a dataclass."""

from dataclasses import fields
from typing import Any, get_type_hints

from jsonargparse import ArgumentParser

__all__ = ["add_fields", "add_shared"]

_SHARED: dict[str, dict[str, Any]] = {
    "run": {"type": str, "help": "Folder of a finished run: the one with config.yaml and summary.json."},
    "--force": {"action": "store_true", "help": "Replace the file if it exists."},
    "--model": {
        "type": str | None,
        "default": None,
        "metavar": "NAME",
        "help": "A client's name; shared or shared_K; best (default: the shared model).",
    },
    "--trust": {
        "action": "store_true",
        "help": "Allow the run's config.yaml to name classes outside lightning_fl, which executes their code.",
    },
    "--accelerator": {"type": str, "default": "auto", "help": "cpu, cuda or auto."},
}


def add_shared(parser: ArgumentParser, *names: str) -> None:
    """Add arguments that have the same meaning in several commands."""
    for name in names:
        parser.add_argument(name, **_SHARED[name])


def add_fields(parser: ArgumentParser, options: type, **flags: str) -> None:
    """Add the fields of a ``documented`` dataclass as options: booleans as flags, sequences as several words.

    Args:
        parser: to add them to.
        options: the dataclass.
        **flags: field -> name on the command line, where it is another one.
    """
    hints = get_type_hints(options, include_extras=True)
    described = (options.__doc__ or "").partition("Args:\n")[2].splitlines()
    meaning = dict(line.strip().split(": ", 1) for line in described)
    for one in fields(options):
        text = f"{meaning[one.name][0].upper()}{meaning[one.name][1:]}."
        how: dict[str, Any] = {"type": hints[one.name], "default": one.default}
        if one.default is False:
            how = {"action": "store_true"}
        elif one.default == ():
            how = {"type": str, "nargs": "+", "default": []}
        parser.add_argument(f"--{flags.get(one.name, one.name)}", dest=one.name, help=text, **how)
