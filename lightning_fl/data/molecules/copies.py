"""What a data module does with several rows of one molecule: it merges or keeps them together, and counts them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.division import ColumnDivision, Division, HashDivision, ListDivision
from lightning_fl.data.module import Split
from lightning_fl.data.molecules.duplicates import (
    DUPLICATES,
    DuplicateCounts,
    Duplicates,
    count_duplicates,
    merge_duplicates,
)
from lightning_fl.data.molecules.identity import IDENTITIES, Identity, molecule_identities
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.data.partition import Partitioner

if TYPE_CHECKING:
    from lightning_fl.data.molecules.dataset import MoleculeDataset

__all__ = ["MoleculeCopies"]


class MoleculeCopies:
    """The copies of molecules in one data module.

    Args:
        identity: which molecules are the same; see :func:`~lightning_fl.data.molecules.identity.molecule_identities`.
        duplicates: what is done with several rows of one; see
            :class:`~lightning_fl.data.molecules.module.MoleculeDataModule`.
        partitioner: of the data module.
        division: likewise.

    Raises:
        ConfigurationError: an argument is unknown, or rows cannot be merged under the division.
    """

    def __init__(
        self, identity: Identity, duplicates: Duplicates, partitioner: Partitioner, division: Division | None
    ) -> None:
        if identity not in IDENTITIES:
            raise ConfigurationError(f"identity={identity!r}: expected one of {', '.join(IDENTITIES)}.")
        if duplicates not in DUPLICATES:
            raise ConfigurationError(f"duplicates={duplicates!r}: expected one of {', '.join(DUPLICATES)}.")
        self._merges = duplicates.startswith("merge_")
        if self._merges and isinstance(division, ListDivision):
            raise ConfigurationError(
                f"duplicates={duplicates!r} with ListDivision: rows that are merged keep one of their identifiers only."
                " Merge them in the file, or take duplicates: together."
            )
        self._identity: Identity = identity
        self._duplicates: Duplicates = duplicates
        self._partitioner = partitioner
        self._division = division
        self._names: dict[str, str] = {}
        self._counts: DuplicateCounts | None = None

    def merged(self, table: MoleculeTable, cache: Path) -> MoleculeTable:
        """The table as it is shared out, and which of its molecules are the same noted."""
        identities = molecule_identities(table.smiles, self._identity, cache)
        self._names = {text: name for text, name in zip(table.smiles, identities, strict=True) if name is not None}
        if not self._merges:
            return table
        # rows of several clients, or of several given parts, are not merged into one
        named = [getattr(self._partitioner, "column", None)]
        if isinstance(self._division, ColumnDivision):
            named.append(self._division.column)
        within = [name for name in named if name in table.columns]
        return merge_duplicates(table, identities, self._duplicates, within=within)

    def identities(self, dataset: "MoleculeDataset") -> list[str]:
        """Which molecule every sample is."""
        return [self._names[text] for text in dataset.smiles]

    def count(self, dataset: "MoleculeDataset", shares: Sequence[Mapping[Split, Tensor]]) -> None:
        """Count what clients have several times, and say it in one line; once."""
        if self._counts is not None:
            return
        self._counts = count_duplicates(self.identities(dataset), shares)
        if said := self._counts.sentence():
            rank_zero_info(f"Same molecules by {self._identity}: {said}{self._advice(self._counts)}.")

    def describe(self) -> dict[str, Any]:
        """For the run's record: counts, and what is not as it is by default."""
        told: dict[str, Any] = {} if self._counts is None else {"duplicates": asdict(self._counts)}
        if (self._identity, self._duplicates) != ("smiles", "report"):
            told["copies"] = {"identity": self._identity, "duplicates": self._duplicates}
        return told

    def _advice(self, counts: DuplicateCounts) -> str:
        advice, hashed = [], isinstance(self._division, HashDivision)
        if counts.train_and_test_in_a_client and not hashed:
            advice.append("duplicates: together keeps them on one side in a client")
        if counts.train_and_test_across_clients and not hashed:
            advice.append("division: HashDivision keeps them on one side at all clients")
        return f" ({'; '.join(advice)})" if advice else ""
