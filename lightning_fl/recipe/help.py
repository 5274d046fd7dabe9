"""Parser whose help lists classes by short name, with a line on each, and ranges as ``int >= 1``."""

import inspect
import re
from argparse import Action
from importlib import import_module
from textwrap import wrap
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

_PACKAGES = tuple(f"lightning_fl.{name}" for name in ("callbacks", "data", "models", "strategies"))
_SUBCLASSES = ", known subclasses: "
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


class CommandParser(ArgumentParser):
    """Parser of a command; those that jsonargparse makes for classes are of its type as well."""

    def __init__(self, command: str = "", **kwargs: Any) -> None:
        settings = {"prog": f"lightning-fl {command}", "exit_on_error": False, "allow_abbrev": False} if command else {}
        super().__init__(formatter_class=_Formatter, **settings, **kwargs)


class _Formatter(DefaultHelpFormatter):
    def _get_type_str(self, action: Action) -> str | None:
        text = super()._get_type_str(action)
        ranges = re.sub(r"Annotated\[(\w+), ([^\]]*)\]", _range, text or "")
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
