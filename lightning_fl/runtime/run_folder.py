"""The folder of a run: ``version_N`` on the disk of every rank, with N above all that exist."""

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lightning.fabric import Fabric

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.user_file import near

T = TypeVar("T")

_VERSION = re.compile(r"version_([0-9]+)")


def make_folder(root: Path, fabric: Fabric) -> tuple[Path, str]:
    """Make the run's folder, of one name on every rank; returns it and a token, the same on all ranks of the run only.

    Rank zero makes a new folder; a rank that does not see it has a disk of its own, and makes one there. The token is
    empty in a single process.

    Raises:
        ConfigurationError: a folder cannot be written, on all ranks.
    """
    strategy: Any = fabric.strategy
    rank, several = fabric.global_rank, fabric.world_size > 1

    def together(action: Callable[[], T]) -> list[T]:
        """Run an action on every rank; returns the results of all."""
        problem, found = "", None
        try:
            found = action()
        except OSError as error:
            problem = f"trainer.default_root_dir={os.fspath(near(root))!r} cannot be written: {error}."
        of_ranks = strategy.exchange({rank: (problem, found)})
        for other, (text, _) in of_ranks.items():
            if text:
                where = f"{strategy.rank_names[other]}: " if several else ""
                raise ConfigurationError(f"{where}{text} Free some space or give another folder.")
        return [value for _, value in of_ranks.values()]

    def claim() -> str | None:
        """Rank zero's token; ``None`` if another run has just made the folder."""
        try:
            if rank == 0:
                directory.mkdir()
        except FileExistsError:
            return None
        return secrets.token_hex(8)

    number, token = -1, None
    while token is None:
        number = max(number + 1, *together(lambda: _next_number(root)))
        directory = root / f"version_{number}"
        token = together(claim)[0]
    together(lambda: directory.mkdir(exist_ok=True))
    return directory, token if several else ""


def _next_number(root: Path) -> int:
    root.mkdir(parents=True, exist_ok=True)
    taken = [int(match[1]) for name in os.listdir(root) if (match := _VERSION.fullmatch(name))]
    return max(taken, default=-1) + 1
