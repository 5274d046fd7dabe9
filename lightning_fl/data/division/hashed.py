"""By a keyed hash: the same thing is in the same part at every client, and none needs to see another's data."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import derive_seed
from lightning_fl.data.division.division import Cut, Division, check_train, read_texts
from lightning_fl.data.module import Split
from lightning_fl.data.partition.groups import murcko_scaffolds
from lightning_fl.data.partition.partitioner import read_smiles

__all__ = ["HashDivision", "hash_shares"]

#: What the hash is taken of.
By = Literal["molecule", "scaffold"]


def hash_shares(keys: Sequence[str], seed: int) -> Tensor:
    """A number in [0, 1) for every key, evenly spread, that depends on the key and the seed only; float64 [n]."""
    known = {key: derive_seed(seed, "division", "hash", key) / 2**63 for key in set(keys)}
    # the largest seeds round to 1
    return torch.tensor([known[key] for key in keys], dtype=torch.float64).clamp_(max=1 - 2**-53)


class HashDivision(Division):
    """By a hash of the molecule and the seed: a molecule that is tested by one client is trained on by none.

    Where several clients hold the same molecules, as laboratories that measured one compound, an independent division
    of each client lets one train on what another is tested on. Here the part of a molecule follows from a hash of it
    keyed with the seed, so that it is the same at every client although none knows what the others hold, and copies of
    a molecule are in one part; which molecules count as the same is the data module's ``identity``. Sizes follow the
    shares only on average.

    For the same aim, with hashes of scaffolds and other clusters: Simm et al., "Splitting chemical structure data sets
    for federated privacy-preserving machine learning", J. Cheminform. 13 (2021) 96.

    Args:
        by: ``"molecule"``, or ``"scaffold"``, so that all molecules of a Bemis-Murcko scaffold are in one part;
            frequent scaffolds make very unequal parts, and tautomers, which ``identity: inchikey_no_stereo`` takes for
            one molecule, may have several scaffolds.
        column: hash this column instead, such as the patient; for data that are no molecules too.
    """

    def __init__(self, *, by: By = "molecule", column: str | None = None) -> None:
        if by not in get_args(By):
            raise ConfigurationError(f"HashDivision.by={by!r}: expected one of {', '.join(get_args(By))}.")
        if column is not None and by != "molecule":
            raise ConfigurationError(f"HashDivision.by={by!r} and column={column!r}: give one of them.")
        self.by: By = by
        self.column = column

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        """What is hashed.

        Raises:
            DataError: the samples are no molecules, and no column is named.
        """
        if self.column is not None:
            return read_texts(dataset, self.column, "HashDivision")
        if self.by == "scaffold":
            return murcko_scaffolds(read_smiles(dataset, "HashDivision"))
        if identities is None:
            raise DataError(
                f"HashDivision: the samples of {type(dataset).__name__} are no molecules: name the column that says"
                " which of them belong together."
            )
        return identities

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        """The parts of the client's samples."""
        shares = hash_shares(keys, cut.seed)
        if cut.folds is not None:
            parts = cut.by_folds((shares * cut.folds).long())
        else:
            ends = torch.tensor(list(accumulate(cut.fractions[::-1])), dtype=torch.float64)  # test, val, train
            number = torch.searchsorted(ends[:2].contiguous(), shares, right=True)
            parts = cut.by_fractions([(number == place).nonzero()[:, 0] for place in (2, 1, 0)])
        return check_train(parts, cut, "its samples are too few for a division by hash; leave the client out")
