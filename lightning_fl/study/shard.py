"""Shard of a study's cells for one job of a cluster's job array; all jobs write into the same folder."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.study.cells import Cell

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """The shard ``number`` of ``count``, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse "i/n".

        Raises:
            ConfigurationError: another format, or i is not in 1 to n.
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigurationError(
                f"--shard {text}: write i/n with i from 1 to n, such as 2/8 for the second of eight; with SLURM's"
                " --array=1-8 it is $SLURM_ARRAY_TASK_ID/8."
            )
        return cls(int(match[1]), int(match[2]))

    def select(self, cells: Sequence[Cell]) -> list[Cell]:
        """Its cells, finished ones included: every n-th, starting with the i-th."""
        return list(cells[self.number - 1 :: self.count])

    def lock_name(self, cells: Sequence[Cell]) -> str:
        """Name of its lock, unique among the shards of the same cells."""
        return f"{self._split(cells)}-{self.number}"

    def is_compatible(self, lock_name: str, cells: Sequence[Cell]) -> bool:
        """Whether a lock belongs to another shard of the same cells."""
        split, _, number = lock_name.rpartition("-")
        return split == self._split(cells) and number != str(self.number)

    def _split(self, cells: Sequence[Cell]) -> str:
        names = "\n".join(cell.folder.name for cell in cells)
        return f"{self.count}-{hashlib.blake2b(names.encode(), digest_size=5).hexdigest()}"
