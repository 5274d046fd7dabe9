"""Divisions by groups that are never cut: scaffolds, or a column such as the patient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.validation import checked_fields
from lightning_fl.data.division.division import Cut, Division, fold_numbers, group_numbers, grouped_parts, read_texts
from lightning_fl.data.module import Split
from lightning_fl.data.partition.scaffold import read_scaffolds


class _WholeGroups(Division):
    """Division into whole groups, which are the keys."""

    balanced: bool

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        groups = group_numbers(keys)
        if cut.copies is not None:
            groups = joined_groups(groups, cut.copies)
        if cut.folds is not None:
            return cut.by_folds(fold_numbers(cut.size, cut.folds, cut.generator("group folds"), groups=groups))
        rng = cut.generator("groups")
        return cut.by_fractions(grouped_parts(groups, cut.fractions, rng, balanced=self.balanced))


@checked_fields
class GroupDivision(_WholeGroups):
    """Division by a column with groups that are never cut: the patient, the batch, a cluster of molecules.

    Each group in turn goes to the first of the three parts that it still fits into.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        balanced: groups larger than half of a held-out part come first, from the largest on, so that they are for
            training, the others in random order. Otherwise all groups come from the largest to the smallest, so that
            rare groups are for testing.
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
        return read_scaffolds(dataset, "ScaffoldDivision")


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
