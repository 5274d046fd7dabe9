"""Division by a keyed hash: a molecule is in the same part at every client, without sharing any data."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import derive_seed
from lightning_fl.core.validation import checked_fields
from lightning_fl.data.division.division import Cut, Division, check_train, read_texts
from lightning_fl.data.module import Split
from lightning_fl.data.partition.scaffold import read_scaffolds


def hash_shares(keys: Sequence[str], seed: int) -> Tensor:
    """Uniform numbers in [0, 1) that depend on the key and the seed only; float64 [n]."""
    known = {key: derive_seed(seed, "division", "hash", key) / 2**63 for key in set(keys)}
    # the largest seeds round to 1
    return torch.tensor([known[key] for key in keys], dtype=torch.float64).clamp_(max=1 - 2**-53)


@checked_fields
class HashDivision(Division):
    """Division by a hash of the molecule and the seed: no client trains on a molecule that another one tests on.

    If several clients hold the same molecules, such as laboratories that measured one compound, independent divisions
    let one client train on another's test molecules. Here the part of a molecule follows from its hash keyed with the
    seed, so that it is the same at every client although no client knows the others' data, and copies of a molecule are
    in one part; the data module's ``identity`` defines which molecules are the same. Sizes follow the shares only on
    average.

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
        super().__post_init__()
        if self.column is not None and self.by != "molecule":
            raise ConfigurationError(f"HashDivision.by={self.by!r} and column={self.column!r}: give one of them.")

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        if self.column is not None:
            return read_texts(dataset, self.column, "HashDivision")
        if self.by == "scaffold":
            return read_scaffolds(dataset, "HashDivision")
        if identities is None:
            raise DataError(
                f"HashDivision: the samples of {type(dataset).__name__} are not molecules: give a column that groups"
                " them."
            )
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
