"""Parser whose help lists classes by short name, with a line on each, and ranges as ``int >= 1``."""

import hashlib
import inspect
import os
import re
import shutil
import sys
from argparse import Action
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from textwrap import wrap
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from lightning_fl.data.cards.lookup import cache_folder
from lightning_fl.files.atomic import write_whole

_PACKAGES = tuple(f"lightning_fl.{name}" for name in ("callbacks", "data", "models", "strategies"))
_SUBCLASSES = ", known subclasses: "
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
#: Variables that decide on colours and language of the help.
_LOOK = ("TERM", "NO_COLOR", "FORCE_COLOR", "PYTHON_COLORS", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")


def cached_help(command: str, make_parser: Callable[[], ArgumentParser]) -> str:
    """The help of a command, made only if the cache has none for this package's files and the installed packages."""
    columns, is_terminal = shutil.get_terminal_size().columns, sys.stdout.isatty()
    file = cache_folder() / "help" / f"{command}-{columns}{'-terminal' * is_terminal}.txt"
    sources = [(str(path), path.stat()) for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    changes = [(path, status.st_mtime_ns, status.st_size) for path, status in sources]
    installed = [sorted(map(str, Path(folder).glob("*.dist-info"))) for folder in sys.path]
    look = [os.environ.get(name) for name in _LOOK]
    state = hashlib.sha256(repr((sys.version, changes, installed, look)).encode()).hexdigest()
    with suppress(OSError, ValueError):
        known, _, text = file.read_text(encoding="utf-8").partition("\n")
        if known == state:
            return text
    text = make_parser().format_help()
    with suppress(OSError):
        write_whole(file, f"{state}\n{text}")
    return text


class CommandParser(ArgumentParser):
    """Parser of a command; those that jsonargparse makes for classes are of its type as well."""

    def __init__(self, command: str = "", **kwargs: Any) -> None:
        settings = {"prog": f"lightning-fl {command}", "exit_on_error": False, "allow_abbrev": False} if command else {}
        super().__init__(formatter_class=_Formatter, **settings, **kwargs)

    def _add_signature_parameter(self, container: Any, nested_key: Any, param: Any, *args: Any, **kwargs: Any) -> None:
        if param.annotation is param.default is Parameter.empty:  # jsonargparse would make it optional, with None
            param = replace(param, annotation=Any)
        super()._add_signature_parameter(container, nested_key, param, *args, **kwargs)


class _Formatter(DefaultHelpFormatter):
    def _get_type_str(self, action: Action) -> str | None:
        ranges = re.sub(r"Annotated\[(\w+), ([^\]]*)\]", _range, super()._get_type_str(action) or "")
        return re.sub(r"Optional\[([^\[\]]*)\]", r"\1 | null", ranges) or None

    def _split_lines(self, text: str, width: int) -> list[str]:
        before, mark, paths = text.partition(_SUBCLASSES)
        if not mark:
            return super()._split_lines(text, width)
        listed, _, after = paths.partition(")")
        lines = super()._split_lines(f"{before}{')' if listed != paths else ''}{after}", width)
        for path in listed.split(", "):
            module, _, name = path.rpartition(".")
            if module in _PACKAGES:  # others are their base classes, or Lightning's loggers
                meaning = (inspect.getdoc(getattr(import_module(module), name)) or "").partition("\n")[0]
                lines += wrap(f"{name}: {meaning}", width, initial_indent="  ", subsequent_indent="      ")
        return lines


def _range(annotated: re.Match[str]) -> str:
    """``Annotated[int, Interval(ge=1, le=2147483647)]`` as ``int >= 1``."""
    bounds = re.findall(r"\b(ge|gt|le|lt)=([-+.\w]+)", annotated[2])
    shown = [f"{_SIGNS[name]} {bound}" for name, bound in bounds if bound not in ("None", str(2**31 - 1))]
    return " ".join([annotated[1], " and ".join(shown)]).rstrip()
