"""Rows of the same molecule: counted between clients' splits, kept together, or merged before the partition."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.division import ColumnDivision, Division, HashDivision, ListDivision
from lightning_fl.data.module import Split
from lightning_fl.data.molecules.identity import Identity, molecule_identities
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.data.partition import Partitioner
from lightning_fl.data.text_table import list_rows

if TYPE_CHECKING:
    from lightning_fl.data.molecules.dataset import MoleculeDataset

__all__ = ["DuplicateCounts", "DuplicateRows", "Duplicates", "count_duplicates", "merge_duplicates"]

#: Treatment of several rows of one molecule.
Duplicates = Literal["report", "together", "merge_mean", "merge_majority", "merge_refuse"]


class DuplicateRows:
    """Treatment of rows of the same molecule in a data module.

    Args:
        identity: see :func:`~lightning_fl.data.molecules.identity.molecule_identities`.
        duplicates: see :class:`~lightning_fl.data.molecules.module.MoleculeDataModule`.
        partitioner: the data module's.
        division: the data module's.

    Raises:
        ConfigurationError: rows cannot be merged with this division.
    """

    def __init__(
        self, identity: Identity, duplicates: Duplicates, partitioner: Partitioner, division: Division | None
    ) -> None:
        self._merges = duplicates.startswith("merge_")
        if self._merges and isinstance(division, ListDivision):
            raise ConfigurationError(
                f"duplicates={duplicates!r} with ListDivision: merged rows keep only one of their identifiers. Merge"
                " them in the file, or use duplicates: together."
            )
        self._identity: Identity = identity
        self._duplicates: Duplicates = duplicates
        self._partitioner = partitioner
        self._division = division
        self._names: dict[str, str] = {}
        self._counts: DuplicateCounts | None = None

    def merge(self, table: MoleculeTable, cache: Path) -> MoleculeTable:
        """Return the table to partition, merged if required, and record the identities of its molecules."""
        identities = molecule_identities(table.smiles, self._identity, cache)
        self._names = {text: name for text, name in zip(table.smiles, identities, strict=True) if name is not None}
        if not self._merges:
            return table
        # rows of different clients, or of different given splits, stay separate
        named = [getattr(self._partitioner, "column", None)]
        if isinstance(self._division, ColumnDivision):
            named.append(self._division.column)
        within = [name for name in named if name in table.columns]
        return merge_duplicates(table, identities, self._duplicates, within=within)

    def identities(self, dataset: "MoleculeDataset") -> list[str]:
        """Return the identity of every sample."""
        return [self._names[text] for text in dataset.smiles]

    def report(self, dataset: "MoleculeDataset", shares: Sequence[Mapping[Split, Tensor]]) -> None:
        """Count the duplicates between clients' splits and report them in one line, once."""
        if self._counts is not None:
            return
        self._counts = count_duplicates(self.identities(dataset), shares)
        if summary := self._counts.summary():
            rank_zero_info(f"Same molecules by {self._identity}: {summary}{self._advice(self._counts)}.")

    def describe(self) -> dict[str, Any]:
        """Return the counts, and options other than the defaults, for the run's record."""
        record: dict[str, Any] = {} if self._counts is None else {"duplicates": asdict(self._counts)}
        if (self._identity, self._duplicates) != ("smiles", "report"):
            record["copies"] = {"identity": self._identity, "duplicates": self._duplicates}
        return record

    def _advice(self, counts: "DuplicateCounts") -> str:
        if isinstance(self._division, HashDivision):
            return ""
        advice = []
        if counts.train_and_test_in_a_client:
            advice.append("duplicates: together keeps them in one split of a client")
        if counts.train_and_test_across_clients:
            advice.append("division: HashDivision keeps them in the same split at all clients")
        return f" ({'; '.join(advice)})" if advice else ""


@dataclass(frozen=True)
class DuplicateCounts:
    """Numbers of molecules with several rows.

    Attributes:
        copies_in_a_client: rows of a client beyond the first of their molecule.
        train_and_test_in_a_client: molecules, summed over clients, that a client trains and tests on.
        in_several_clients: molecules that more than one client has.
        train_and_test_across_clients: molecules that one client trains on and another tests on.
    """

    copies_in_a_client: int
    train_and_test_in_a_client: int
    in_several_clients: int
    train_and_test_across_clients: int

    def summary(self) -> str:
        """Return all counts above 0 in one line."""
        found = [
            (self.copies_in_a_client, "rows are copies within a client"),
            (self.train_and_test_in_a_client, "molecules are trained and tested on by one client"),
            (self.in_several_clients, "molecules are at several clients"),
            (self.train_and_test_across_clients, "are trained on by one client and tested on by another"),
        ]
        return ", ".join(f"{count:,} {words}" for count, words in found if count)


def count_duplicates(identities: Sequence[str], shares: Sequence[Mapping[Split, Tensor]]) -> DuplicateCounts:
    """Count molecules with several rows.

    Args:
        identities: identity of every sample, length n.
        shares: for every client and split the indices of its samples.
    """
    copies = both = 0
    holders: Counter[str] = Counter()
    trained: dict[str, int] = {}  # molecule -> the client that trains on it, -1 for several
    tested: dict[str, set[int]] = {}
    for client, of_client in enumerate(shares):
        held = {split: [identities[index] for index in part.tolist()] for split, part in of_client.items()}
        train, test = set(held["train"]), set(held["test"])
        every = [name for part in held.values() for name in part]
        holders.update(set(every))
        copies += len(every) - len(set(every))
        both += len(train & test)
        for name in train:
            trained[name] = -1 if name in trained else client
        for name in test:
            tested.setdefault(name, set()).add(client)
    across = sum(name in trained and clients != {trained[name]} for name, clients in tested.items())
    return DuplicateCounts(copies, both, sum(count > 1 for count in holders.values()), across)


def merge_duplicates(
    table: MoleculeTable, identities: Sequence[str | None], how: Duplicates, within: Sequence[str] = ()
) -> MoleculeTable:
    """Merge the rows of each molecule into its first, which keeps its place, row number and other columns.

    Args:
        table: n molecules.
        identities: identity of every row; rows with ``None`` stay as they are.
        how: ``"merge_mean"``: the mean of a target's values, missing ones left out. ``"merge_majority"``: the most
            frequent value; missing where several are as frequent. ``"merge_refuse"``: the common value.
        within: columns in which rows must agree to be merged.

    Raises:
        DataError: values differ under ``"merge_refuse"``, are classes under ``"merge_mean"``, or have different bounds.
    """
    rows_of: dict[Hashable, list[int]] = {}
    for row, name in enumerate(identities):
        key: Hashable = row if name is None else (name, *(table.columns[column][row] for column in within))
        rows_of.setdefault(key, []).append(row)
    kept = [rows[0] for rows in rows_of.values()]
    several = [(place, rows) for place, rows in enumerate(rows_of.values()) if len(rows) > 1]
    if not several:
        return table
    if how == "merge_refuse":
        _refuse_conflicts(table, several)
    _refuse_different_bounds(table, several)
    targets = table.targets[kept].clone()
    for column in range(targets.shape[1]):
        if how == "merge_mean":
            _refuse_classes(table, column, several)
        for place, rows in several:
            targets[place, column] = _merge_values(table.targets[rows, column], how)
    return replace(
        table,
        smiles=[table.smiles[row] for row in kept],
        targets=targets,
        bounds=None if table.bounds is None else table.bounds[kept],
        columns={name: [values[row] for row in kept] for name, values in table.columns.items()},
        rows=[table.rows[row] for row in kept],
    )


def _merge_values(values: Tensor, how: Duplicates) -> float:
    """Merge values of one target; NaN if all are missing."""
    values = values[~values.isnan()].double()
    if len(values) == 0:
        return float("nan")
    if how == "merge_mean":
        return float(values.mean())
    most = Counter(values.tolist()).most_common(2)
    return float("nan") if len(most) == 2 and most[0][1] == most[1][1] else most[0][0]


def _conflicting(table: MoleculeTable, column: int, several: Sequence[tuple[int, list[int]]]) -> list[list[int]]:
    """Groups of rows with different values of a target."""
    found = []
    for _, rows in several:
        values = table.targets[rows, column]
        if len(values[~values.isnan()].unique()) > 1:
            found.append(rows)
    return found


def _refuse_conflicts(table: MoleculeTable, several: Sequence[tuple[int, list[int]]]) -> None:
    for column, name in enumerate(table.target_names):
        if wrong := _conflicting(table, column, several):
            shown = "; ".join(_list_values(table, rows, column) for rows in wrong[:3])
            raise DataError(
                f"{table.place}: {len(wrong)} molecules have several values of {name!r}: {shown}. Correct them, or use"
                " duplicates: merge_mean, for classes merge_majority, or report to keep all rows."
            )


def _refuse_classes(table: MoleculeTable, column: int, several: Sequence[tuple[int, list[int]]]) -> None:
    """Refuse the mean of labels 0 and 1, which would turn classification into regression."""
    values = table.targets[:, column]
    values = values[~values.isnan()]
    wrong = _conflicting(table, column, several)
    if wrong and bool(((values == 0) | (values == 1)).all()):
        raise DataError(
            f"{table.place}: {table.target_names[column]!r} has only the values 0 and 1, and {len(wrong)} molecules"
            f" have both: {_list_values(table, wrong[0], column)}. Use duplicates: merge_majority for classes."
        )


def _list_values(table: MoleculeTable, rows: Sequence[int], column: int) -> str:
    return list_rows([table.rows[row] for row in rows], [round(float(table.targets[row, column]), 6) for row in rows])


def _refuse_different_bounds(table: MoleculeTable, several: Sequence[tuple[int, list[int]]]) -> None:
    if table.bounds is None:
        return
    for _, rows in several:
        if len(table.bounds[rows].unique(dim=0)) > 1:
            raise DataError(
                f"{table.place}: the rows {', '.join(str(table.rows[row]) for row in rows[:10])} of one molecule have"
                " different bounds and cannot be merged. Use duplicates: report."
            )
