"""Rows of the same molecule: counted between the parts of clients, or merged before they are shared out."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.data.module import Split
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.data.text_table import list_rows

__all__ = ["DUPLICATES", "DuplicateCounts", "Duplicates", "count_duplicates", "merge_duplicates"]

#: What is done with several rows of one molecule.
Duplicates = Literal["report", "together", "merge_mean", "merge_majority", "merge_refuse"]
DUPLICATES: tuple[Duplicates, ...] = get_args(Duplicates)


@dataclass(frozen=True)
class DuplicateCounts:
    """How often molecules occur several times.

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

    def sentence(self) -> str:
        """All of it in one line; empty where no molecule occurs twice."""
        found = [
            (self.copies_in_a_client, "rows are copies within a client"),
            (self.train_and_test_in_a_client, "molecules are trained and tested on by one client"),
            (self.in_several_clients, "molecules are at several clients"),
            (self.train_and_test_across_clients, "are trained on by one client and tested on by another"),
        ]
        return ", ".join(f"{count:,} {words}" for count, words in found if count)


def count_duplicates(identities: Sequence[str], shares: Sequence[Mapping[Split, Tensor]]) -> DuplicateCounts:
    """Count molecules that occur several times.

    Args:
        identities: which molecule every sample is, length n.
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
    """One row for every molecule, in the place of its first row, which gives the other columns and the row's number.

    Args:
        table: n molecules.
        identities: which molecule every row is; ``None`` for a row that is left as it is.
        how: ``"merge_mean"``: the mean of the values that are there, of every target. ``"merge_majority"``: the value
            that most rows have; a missing value where several are as frequent. ``"merge_refuse"``: their common value.
        within: rows are merged only where they agree in these columns.

    Raises:
        DataError: values differ and are not to be merged, or are classes of which a mean is none; what else the rows
            say of their values differs.
    """
    keys: list[Hashable] = [
        row if name is None else (name, *(table.columns[column][row] for column in within))
        for row, name in enumerate(identities)
    ]
    rows_of: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        rows_of.setdefault(key, []).append(row)
    groups = list(rows_of.values())
    kept = [rows[0] for rows in groups]
    several = [(place, rows) for place, rows in enumerate(groups) if len(rows) > 1]
    if not several:
        return table
    if how == "merge_refuse":
        _refuse_conflicts(table, several)
    targets = table.targets[kept].clone()
    for column in range(targets.shape[1]):
        if how == "merge_mean":
            _refuse_classes(table, column, several)
        for place, rows in several:
            targets[place, column] = _merged(table.targets[rows, column], how)
    return dataclasses.replace(table, **_other_fields(table, kept, several), targets=targets)


def _merged(values: Tensor, how: Duplicates) -> float:
    """One value of several, NaN where none is there."""
    values = values[~values.isnan()].double()
    if len(values) == 0:
        return float("nan")
    if how == "merge_mean":
        return float(values.mean())
    most = Counter(values.tolist()).most_common(2)
    return float("nan") if len(most) == 2 and most[0][1] == most[1][1] else most[0][0]


def _conflicts(values: Tensor) -> bool:
    values = values[~values.isnan()]
    return len(values) > 1 and bool((values != values[0]).any())


def _refuse_conflicts(table: MoleculeTable, several: Sequence[tuple[int, list[int]]]) -> None:
    for column, name in enumerate(table.target_names):
        wrong = [rows for _, rows in several if _conflicts(table.targets[rows, column])]
        if wrong:
            shown = "; ".join(_shown(table, rows, column) for rows in wrong[:3])
            raise DataError(
                f"{table.place}: {len(wrong)} molecules have several values of {name!r}: {shown}. Correct them, or take"
                " duplicates: merge_mean, for classes merge_majority, or report to keep all rows."
            )


def _refuse_classes(table: MoleculeTable, column: int, several: Sequence[tuple[int, list[int]]]) -> None:
    """Refuse the mean of labels 0 and 1, which would make a regression of a classification."""
    values = table.targets[:, column]
    values = values[~values.isnan()]
    wrong = [rows for _, rows in several if _conflicts(table.targets[rows, column])]
    if wrong and bool(((values == 0) | (values == 1)).all()):
        raise DataError(
            f"{table.place}: {table.target_names[column]!r} has the values 0 and 1 only, and {len(wrong)} molecules"
            f" have both: {_shown(table, wrong[0], column)}. Take duplicates: merge_majority for classes."
        )


def _shown(table: MoleculeTable, rows: Sequence[int], column: int) -> str:
    return list_rows([table.rows[row] for row in rows], [round(float(table.targets[row, column]), 6) for row in rows])


def _other_fields(
    table: MoleculeTable, kept: Sequence[int], several: Sequence[tuple[int, list[int]]]
) -> dict[str, Any]:
    """What the table has for every row besides its targets, of the first rows."""
    length = len(table.smiles)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if field.name == "columns":
            found[field.name] = {name: [values[row] for row in kept] for name, values in value.items()}
        elif isinstance(value, Tensor) and field.name != "targets" and len(value) == length:
            for _, rows in several:
                if not torch.equal(value[rows], value[rows[:1]].expand_as(value[rows])):
                    raise DataError(
                        f"{table.place}: the rows {', '.join(str(table.rows[row]) for row in rows[:10])} are of one"
                        f" molecule and differ in their {field.name}: they cannot be merged. Take duplicates: report."
                    )
            found[field.name] = value[list(kept)]
        elif isinstance(value, list) and field.name in ("smiles", "rows"):
            found[field.name] = [value[row] for row in kept]
    return found
