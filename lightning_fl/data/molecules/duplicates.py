"""Rows of the same molecule: found, counted between clients' splits, kept together, or merged before the partition."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from statistics import multimode
from typing import Literal

from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.core.validation import checked
from lightning_fl.data.module import Split
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.files.tensors import load_or_compute
from lightning_fl.files.text_table import list_rows

#: Criterion by which two molecules are the same.
Identity = Literal["smiles", "inchikey_no_stereo"]
#: Treatment of several rows of one molecule.
Duplicates = Literal["report", "together", "merge_mean", "merge_majority", "merge_refuse"]

_IDENTITY_VERSION = 1
#: Counts of :func:`count_duplicates`, and what they count.
_COUNTS = {
    "copies_in_a_client": "rows are copies within a client",
    "train_and_test_in_a_client": "molecules are trained and tested on by one client",
    "in_several_clients": "molecules are at several clients",
    "train_and_test_across_clients": "are trained on by one client and tested on by another",
}
_REPORT_FROM = 5000


def duplicates_report(counts: Mapping[str, int], identity: Identity, hashed: bool) -> str:
    """Summarise the counts of :func:`count_duplicates`, with advice unless a hash divides the molecules."""
    summary = ", ".join(f"{counts[name]:,} {words}" for name, words in _COUNTS.items() if counts[name])
    if not summary:
        return ""
    advice = []
    if counts["train_and_test_in_a_client"]:
        advice.append("duplicates: together keeps them in one split of a client")
    if counts["train_and_test_across_clients"]:
        advice.append("division: HashDivision keeps them in the same split at all clients")
    hint = f" ({'; '.join(advice)})" if advice and not hashed else ""
    return f"Same molecules by {identity}: {summary}{hint}."


@checked
def molecule_identities(
    smiles: Sequence[str], identity: Identity = "smiles", cache: Path | None = None
) -> list[str | None]:
    """Compute texts that are equal for equal molecules; ``None`` for SMILES that RDKit cannot read.

    ``"smiles"`` is RDKit's canonical SMILES, with stereochemistry, isotopes and charges; ``"inchikey_no_stereo"`` the
    first block of the standard InChIKey (formula and connections), which stereoisomers, many tautomers and
    isotopologues share, or, without an InChI, the canonical SMILES without stereochemistry.
    """
    distinct = sorted(set(smiles))
    kind = f"identities {_IDENTITY_VERSION}, {identity}"
    found = load_or_compute(cache, kind, distinct, lambda: _compute(distinct, identity))
    known = dict(zip(distinct, found, strict=True))
    return [known[text] for text in smiles]


def _compute(smiles: Sequence[str], identity: Identity) -> list[str | None]:
    from rdkit.Chem import MolToSmiles
    from rdkit.Chem.inchi import MolToInchiKey
    from rdkit.rdBase import BlockLogs

    from lightning_fl.data.molecules.codes import read_molecule

    if len(smiles) > _REPORT_FROM:
        rank_zero_info(f"Comparing {len(smiles):,} molecules")
    found: list[str | None] = []
    with BlockLogs():  # the data set reports unreadable SMILES with their rows
        for text in smiles:
            if (molecule := read_molecule(text)) is None:
                found.append(None)
            elif identity == "smiles":
                found.append(MolToSmiles(molecule))
            else:
                found.append(MolToInchiKey(molecule).partition("-")[0] or MolToSmiles(molecule, isomericSmiles=False))
    return found


def count_duplicates(identities: Sequence[str], shares: Sequence[Mapping[Split, Tensor]]) -> dict[str, int]:
    """Count molecules with several rows, by the identity of every sample and every client's samples in each split."""
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
    several = sum(count > 1 for count in holders.values())
    return dict(zip(_COUNTS, (copies, both, several, across), strict=True))


def merge_duplicates(
    table: MoleculeTable, identities: Sequence[str | None], how: Duplicates, within: Sequence[str] = ()
) -> MoleculeTable:
    """Merge the rows of each molecule into its first, which keeps its place, row number and other columns.

    ``identities`` are those of the rows, which stay as they are with ``None``. ``how`` is ``"merge_mean"``: the mean of
    a target's values, missing ones left out; ``"merge_majority"``: the most frequent value, missing where several are
    as frequent; ``"merge_refuse"``: the common value. Rows must agree in the columns ``within`` to be merged.
    """
    rows_of: dict[Hashable, list[int]] = {}
    for row, name in enumerate(identities):
        key: Hashable = row if name is None else (name, *(table.columns[column][row] for column in within))
        rows_of.setdefault(key, []).append(row)
    several = [(place, rows) for place, rows in enumerate(rows_of.values()) if len(rows) > 1]
    if not several:
        return table
    merged = table.take([rows[0] for rows in rows_of.values()])
    for column in range(table.targets.shape[1]):
        if how != "merge_majority":
            _refuse_conflicts(table, column, several, how)
        for place, rows in several:
            merged.targets[place, column] = _merge_values(table.targets[rows, column], how)
    _merge_bounds(table, merged, several)
    return merged


def _merge_values(values: Tensor, how: Duplicates) -> float:
    """Merge values of one target; NaN if all are missing."""
    values = values[~values.isnan()].double()
    if how == "merge_mean":
        return float(values.mean())
    most_frequent = multimode(values.tolist())
    return most_frequent[0] if len(most_frequent) == 1 else float("nan")


def _refuse_conflicts(
    table: MoleculeTable, column: int, several: Sequence[tuple[int, list[int]]], how: Duplicates
) -> None:
    """Refuse different values, or with a mean different labels 0 and 1, which would become a regression."""
    values = table.targets[:, column]
    wrong = [rows for _, rows in several if len(values[rows][~values[rows].isnan()].unique()) > 1]
    if not wrong or (how == "merge_mean" and not bool(((values == 0) | (values == 1) | values.isnan()).all())):
        return
    shown = "; ".join(
        list_rows([table.rows[row] for row in rows], [round(float(values[row]), 6) for row in rows])
        for rows in wrong[:3]
    )
    remedy = "Correct them, or use duplicates: merge_mean, for classes merge_majority, or report to keep all rows."
    if how == "merge_mean":
        remedy = "The values are only 0 and 1: use duplicates: merge_majority for classes."
    name = table.target_names[column]
    raise DataError(f"{table.place}: {len(wrong)} molecules have several values of {name!r}: {shown}. {remedy}")


def _merge_bounds(table: MoleculeTable, merged: MoleculeTable, several: Sequence[tuple[int, list[int]]]) -> None:
    if table.bounds is None or merged.bounds is None:
        return
    for place, rows in several:
        for column, values in enumerate(table.targets[rows].T):
            given = table.bounds[rows, column][~values.isnan()].unique()
            if len(given) > 1:
                named = ", ".join(str(table.rows[row]) for row in rows[:10])
                raise DataError(f"{table.place}: rows {named} of a molecule differ in bounds: set duplicates: report.")
            merged.bounds[place, column] = given.sum()  # 0 without a value
