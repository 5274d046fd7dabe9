"""How the help of ``lightning-fl fit`` lists the classes of a key: by short name, with a line on each."""

import inspect
from importlib import import_module
from textwrap import wrap

from jsonargparse import DefaultHelpFormatter

__all__ = ["ClassHelpFormatter"]

_ROOMS = tuple(f"lightning_fl.{name}" for name in ("callbacks", "data", "models", "strategies"))
_MARK = ", known subclasses: "


class ClassHelpFormatter(DefaultHelpFormatter):
    """The parser's formatter, with a line for each class in place of a paragraph of import paths."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        before, mark, paths = text.partition(_MARK)
        if not mark:
            return super()._split_lines(text, width)
        listed, _, after = paths.partition(")")
        lines = super()._split_lines(f"{before}{')' if listed != paths else ''}{after}", width)
        for path in listed.split(", "):
            module, _, name = path.rpartition(".")
            if module in _ROOMS:  # others are bases of these, or loggers of Lightning's
                meaning = (inspect.getdoc(getattr(import_module(module), name)) or "").partition("\n")[0]
                lines += wrap(f"{name}: {meaning}", width, initial_indent="  ", subsequent_indent="      ")
        return lines
