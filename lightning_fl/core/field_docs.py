"""Docstring and signature of a dataclass from its fields."""

import ast
import inspect
import textwrap
from contextlib import suppress
from dataclasses import InitVar
from itertools import pairwise
from typing import TypeVar

C = TypeVar("C", bound=type)


def documented(cls: C) -> C:
    """Append to a dataclass's docstring the ``Args:`` section that the strings below its fields make.

    ``help`` and the help of the command line read that section. The signature shows the type of an ``InitVar`` itself.
    """
    hints = cls.__init__.__annotations__  # type: ignore[misc]
    hints.update({name: hint.type for name, hint in hints.items() if isinstance(hint, InitVar)})
    with suppress(OSError):  # the source is not installed
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        lines = []
        for field, text in pairwise(definition.body):  # type: ignore[attr-defined]
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                meaning = " ".join(str(text.value.value).split())
                lines.append(f"    {ast.unparse(field.target)}: {meaning}")
        before, mark, after = inspect.cleandoc(cls.__doc__ or "").partition("\n\nExample")
        cls.__doc__ = "\n".join([before, "", "Args:", *lines]) + mark + after
    return cls
