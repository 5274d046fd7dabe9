"""``lightning-fl show``: a finished run as one HTML page. Does not import torch."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.inference.trained_run import check_out

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "run",
        type=str,
        help="Folder of a finished run, or of versions of a run (the last finished one is used).",
    )
    parser.add_argument(
        "--out", type=str | None, default=None, metavar="FILE", help="Default: report.html in the run's folder."
    )
    parser.add_argument("--open", action="store_true", help="Open the page in a browser.")


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Write the page and print its path."""
    from lightning_fl.study.run_page import write_run_page

    out = None if config.out is None else Path(config.out).expanduser()
    if out is not None:
        if not out.parent.is_dir():
            raise ConfigurationError(f"--out {out}: there is no folder {out.parent}.")
        check_out(out, Path(config.run).expanduser(), named=True, replace=True)
    path = write_run_page(config.run, out)
    print(f"report: {path}")
    if config.open:
        webbrowser.open(path.resolve().as_uri())
    return 0
