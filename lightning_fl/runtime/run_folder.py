"""The folder of a run: ``version_N`` on the disk of every rank, with N above all that exist."""

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lightning.fabric import Fabric

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.user_file import near

__all__ = ["make_folder"]

T = TypeVar("T")

#: The file by which ranks see whether they share a run's folder.
_TOKEN = ".run"
_VERSION = re.compile(r"version_([0-9]+)")


def make_folder(root: Path, fabric: Fabric) -> tuple[Path, str]:
    """Make the run's folder, of one name on every rank; returns it and a token, the same on all ranks of the run only.

    Rank zero makes the folder. A rank that does not see it has a disk of its own, and makes one there. The token is
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

    def claim(directory: Path, turn: int) -> bool | None:
        """Whether this rank, if it is its turn, made the folder; ``None`` if another run has it."""
        if turn != (0 if rank == 0 else 1 if fabric.local_rank == 0 else 2):
            return False
        try:
            directory.mkdir()
        except FileExistsError:
            with contextlib.suppress(OSError):
                if (directory / _TOKEN).read_text() == token:
                    return False
            return None
        write_whole(directory / _TOKEN, token)
        return True

    def end_claim(directory: Path, made: bool, taken: bool) -> None:
        if made:
            (directory / _TOKEN).unlink()
        if made and taken:
            directory.rmdir()

    (token, *_) = together(lambda: secrets.token_hex(8))
    number = 0
    while True:
        number = max(number, *together(lambda: _next_number(root)))
        directory = root / f"version_{number}"
        # One after another: rank zero, the first rank of each machine, all others, which may share what was made.
        claims = [together(partial(claim, directory, turn)) for turn in range(3 if several else 1)]
        taken = any(found is None for of_turn in claims for found in of_turn)
        together(partial(end_claim, directory, any(of_turn[rank] for of_turn in claims), taken))
        if not taken:
            return directory, token if several else ""
        number += 1


def _next_number(root: Path) -> int:
    root.mkdir(parents=True, exist_ok=True)
    taken = [int(match[1]) for name in os.listdir(root) if (match := _VERSION.fullmatch(name))]
    return max(taken, default=-1) + 1
