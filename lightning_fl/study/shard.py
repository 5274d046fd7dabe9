"""A share of a study's cells, for the jobs of an array on a cluster: every job runs one, into the same folder."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.study.cells import Cell

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """The i-th of n shares.

    Args:
        number: i, from 1.
        count: n.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """``i/n``.

        Raises:
            ConfigurationError: it is not that, or i is not one of 1 to n.
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigurationError(
                f"--shard {text}: give i/n with i from 1 to n, such as 2/8 for the second of eight; with SLURM's"
                " --array=1-8 it is $SLURM_ARRAY_TASK_ID/8."
            )
        return cls(int(match[1]), int(match[2]))

    def of(self, cells: Sequence[Cell]) -> list[Cell]:
        """Its cells: every n-th, from the i-th on, done or not, so that the shares are disjoint and together all."""
        return list(cells[self.number - 1 :: self.count])

    def lock_name(self, cells: Sequence[Cell]) -> str:
        """The same for shares of one split of the same cells at one place; another for every other share."""
        return f"{self._split(cells)}-{self.number}"

    def is_beside(self, lock_name: str, cells: Sequence[Cell]) -> bool:
        """Whether a lock is that of another share of the same split."""
        split, _, number = lock_name.rpartition("-")
        return split == self._split(cells) and number != str(self.number)

    def _split(self, cells: Sequence[Cell]) -> str:
        names = "\n".join(cell.folder.name for cell in cells)
        return f"{self.count}-{hashlib.blake2b(names.encode(), digest_size=5).hexdigest()}"
