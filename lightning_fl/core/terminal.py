"""The console for all that is printed with Rich."""

import sys
from typing import Any

from rich.console import Console

from lightning_fl.core.escaping import encodable

__all__ = ["terminal"]


def terminal(*, stderr: bool = False, **options: Any) -> Console:
    """A console that takes no text for markup, and spells what its stream has no letters for.

    Args:
        stderr: of standard error instead of standard output.
        **options: of Rich's console.
    """
    encodable(sys.stderr if stderr else sys.stdout)
    return Console(stderr=stderr, markup=False, emoji=False, **options)
