"""Rich console for all terminal output."""

import sys
from typing import Any

from rich.console import Console

from lightning_fl.core.escaping import encodable


def terminal(*, stderr: bool = False, **options: Any) -> Console:
    """Create a console that interprets no markup and escapes characters that its stream cannot encode."""
    encodable(sys.stderr if stderr else sys.stdout)
    return Console(stderr=stderr, markup=False, emoji=False, **options)
