"""Imports on first use."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from its imports below ``if TYPE_CHECKING:``.

    Type checkers and editors read the same imports, so that each name is declared once. ``import NAME as NAME`` exports
    a name; ``import NAME as OTHER`` defines another name for it, which is not in ``__all__``.
    """
    blocks = [block for block in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(block, ast.If)]
    imports = [line for line in blocks[0].body if isinstance(line, ast.ImportFrom)]
    origins = {alias.asname: (str(line.module), alias.name) for line in imports for alias in line.names}
    exported = sorted(str(name) for name, (_, original) in origins.items() if name == original)

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = origins[name]
        if module == package:
            value = import_module(f"{package}.{original}")
        else:
            value = getattr(__import__(module, fromlist=[original]), original)  # which may be a module, too
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: exported, exported


def import_torchmetrics() -> None:
    """Import torchmetrics, which Lightning needs, without ``scipy.signal``, a fifth of the time that Lightning takes.

    torchmetrics only looks there for a name that SciPy has removed. ``scipy.signal`` is imported on first use.
    """
    if not {"torchmetrics", "scipy.signal"} & sys.modules.keys():
        sys.modules["scipy.signal"] = stand_in = ModuleType("scipy.signal")
        stand_in.hamming = None  # type: ignore[attr-defined]
        try:
            import_module("torchmetrics")
        finally:
            del sys.modules["scipy.signal"]
