"""Divisions by a column or the scaffold: groups that are never cut, a keyed hash, or an order such as the date."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import derive_seed
from lightning_fl.core.validation import checked_fields
from lightning_fl.data.division import division
from lightning_fl.data.division.division import Cut, Division, check_train, fold_numbers, grouped_parts, read_texts
from lightning_fl.data.module import Split
from lightning_fl.data.partition.groups import murcko_scaffolds
from lightning_fl.data.partition.partitioner import read_smiles
from lightning_fl.data.sizes import split_sizes
from lightning_fl.files.text_table import read_numbers, refuse_values


class _WholeGroups(Division):
    """Division into whole groups, which are the keys."""

    balanced: bool

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        groups = division.group_numbers(keys)
        if cut.copies is not None:
            groups = joined_groups(groups, cut.copies)
        if cut.folds is not None:
            return cut.by_folds(fold_numbers(cut.size, cut.folds, cut.generator("group folds"), groups=groups))
        return cut.by_fractions(grouped_parts(groups, cut.fractions, cut.generator("groups"), balanced=self.balanced))


@checked_fields
class GroupDivision(_WholeGroups):
    """Division by a column with groups that are never cut: the patient, the batch, a cluster of molecules.

    Each group in turn goes to the first of the three parts that it still fits into.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        balanced: groups larger than half of a held-out part come first, from the largest on, so that they are for
            training, the others in random order. If false, the largest come first, so rare groups are for testing.
    """

    column: str
    balanced: bool = True

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        return read_texts(dataset, self.column, type(self).__name__)


@checked_fields
class ScaffoldDivision(_WholeGroups):
    """Division by Bemis-Murcko scaffold, so that test molecules have other scaffolds than training molecules.

    Molecules without a ring share one scaffold. The result depends on the client's molecules, its name and the seed,
    not on the order of rows or on other clients.

    Args:
        balanced: as for :class:`GroupDivision`: chemprop's ``SCAFFOLD_BALANCED``, or otherwise DeepChem's
            ``ScaffoldSplitter``. Differs from chemprop, which shuffles the large scaffolds too, so that one may
            overfill a held-out part while training has room.
    """

    balanced: bool = True

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        return murcko_scaffolds(read_smiles(dataset, "ScaffoldDivision"))


def joined_groups(first: Tensor, second: Tensor) -> Tensor:
    """Join two groupings [n], integers >= 0: samples that share a group of either are in one group, int64 [n].

    Groups are numbered from 0 in the order of their smallest group in ``first``.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    size, other = int(first.max()) + 1, int(second.max()) + 1
    ones = torch.ones(len(first), dtype=torch.int8).numpy()
    links = coo_matrix((ones, (first.numpy(), second.numpy() + size)), shape=(size + other, size + other))
    _, component = connected_components(links, directed=False)
    # components are found in the order of their smallest node; numbers of groups may have gaps
    return torch.from_numpy(component).long()[first].unique(return_inverse=True)[1]


def hash_shares(keys: Sequence[str], seed: int) -> Tensor:
    """Uniform numbers in [0, 1) that depend on the key and the seed only; float64 [n]."""
    known = {key: derive_seed(seed, "division", "hash", key) / 2**63 for key in set(keys)}
    # the largest seeds round to 1
    return torch.tensor([known[key] for key in keys], dtype=torch.float64).clamp_(max=1 - 2**-53)


@checked_fields
class HashDivision(Division):
    """Division by a hash of the molecule and the seed: no client trains on a molecule that another one tests on.

    If several clients hold the same molecules, independent divisions let one client train on another's test molecules.
    Here the part of a molecule follows from its hash keyed with the seed, the same at every client, and copies of a
    molecule are in one part; the data module's ``identity`` defines which molecules are the same. Sizes follow the
    shares only on average.

    For the same aim, with hashes of scaffolds and other clusters: Simm et al., "Splitting chemical structure data sets
    for federated privacy-preserving machine learning", J. Cheminform. 13 (2021) 96.

    Args:
        by: ``"molecule"``, or ``"scaffold"``, so that all molecules of a Bemis-Murcko scaffold are in one part;
            frequent scaffolds make very unequal parts, and tautomers, one molecule for ``identity:
            inchikey_no_stereo``, may have several scaffolds.
        column: hash this column instead, such as the patient; also for data other than molecules.
    """

    by: Literal["molecule", "scaffold"] = "molecule"
    column: str | None = None

    def __post_init__(self) -> None:
        if self.column is not None and self.by != "molecule":
            raise ConfigurationError(f"HashDivision.by={self.by!r} and column={self.column!r}: give one of them.")

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        if self.column is not None:
            return read_texts(dataset, self.column, "HashDivision")
        if self.by == "scaffold":
            return murcko_scaffolds(read_smiles(dataset, "HashDivision"))
        if identities is None:
            raise DataError(f"HashDivision: {type(dataset).__name__} does not hold molecules: set HashDivision.column.")
        return identities

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        shares = hash_shares(keys, cut.seed)
        if cut.folds is not None:
            parts = cut.by_folds((shares * cut.folds).long())
        else:
            ends = torch.tensor(list(accumulate(cut.fractions[::-1])), dtype=torch.float64)  # test, val, train
            number = torch.searchsorted(ends[:2].contiguous(), shares, right=True)
            parts = cut.by_fractions([(number == place).nonzero()[:, 0] for place in (2, 1, 0)])
        return check_train(parts, cut, "it has too few samples for HashDivision; leave the client out")


@checked_fields
class OrderDivision(Division):
    """Division by a column that orders the samples, such as the date: the first for training, the last for testing.

    Samples of one date stay together, in the part of the first. If copies do, the earliest date counts. No ``folds``.

    Args:
        column: name of the column, read with ``dataset.column(name)``: numbers, or dates (and times) in ISO format such
            as 2020-04-09; a time without a zone is UTC.
    """

    takes_folds = False
    column: str

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[float]:
        """The column as numbers; dates as seconds."""
        import pandas as pd

        texts = pd.Series(read_texts(dataset, self.column, "OrderDivision"), dtype=object)
        numbers, _ = read_numbers(texts)
        dates = texts.map(_seconds).astype(float)
        found, kind = (numbers, "numbers") if numbers.count() >= dates.count() else (dates, "dates")
        texts.index = read_texts(dataset, None, "OrderDivision")  # rows, for the message
        remedy = "Give all as numbers, or all as dates in ISO format such as 2020-04-09"
        wrong = texts[found.isna().to_numpy()]
        refuse_values(wrong, f"OrderDivision.column={self.column!r}", f"are not {kind} like the others", remedy)
        return found.tolist()

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        times = torch.tensor(keys, dtype=torch.float64)
        if cut.copies is not None:
            first = torch.full((int(cut.copies.max()) + 1,), math.inf, dtype=torch.float64)
            times = first.scatter_reduce(0, cut.copies, times, "amin")[cut.copies]
        return cut.by_fractions(ordered_parts(times.unique(return_inverse=True)[1], cut.fractions))


def ordered_parts(ranks: Tensor, fractions: Sequence[float]) -> list[Tensor]:
    """Divide samples by their ranks [n] in an order: the first are for training, then come validation and test.

    Samples of one rank stay together, in the part of the first of them, so parts may differ from their shares.
    """
    ends = torch.tensor(split_sizes(len(ranks), fractions)).cumsum(0)
    ordered = ranks.sort().values
    begins = torch.searchsorted(ordered, ranks)  # of the first with the same rank
    part = torch.searchsorted(ends, begins, right=True)
    return [(part == number).nonzero()[:, 0] for number in range(3)]


def _seconds(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
