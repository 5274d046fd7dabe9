"""The program ``lightning-fl``, and ``python -m lightning_fl``, where its script is not on the path."""

import sys

from lightning_fl.engine.interrupt import ends_at_once

__all__ = ["main"]


def main() -> int:
    """Run a command; a signal while modules are imported, or after the command, needs no answer."""
    ends_at_once()
    from lightning_fl.cli import main as run_command

    code = run_command()
    ends_at_once(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
