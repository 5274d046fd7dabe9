"""Mixtures of two distributions: every client holds a share of D_A and the rest of D_B, all clients equally much."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Size, checked, checked_fields
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.classes import read_classes
from lightning_fl.data.partition.labels import deal_classes
from lightning_fl.data.partition.partitioner import JointPartitioner, name_split, read_column
from lightning_fl.data.sizes import remaining_fractions, split_sizes

#: Rounding error allowed in products of shares and sizes.
_TOLERANCE = 1e-9


@checked_fields
class Mixture(JointPartitioner):
    """Clients of equal size that each hold a mixture of two distributions, D_A and D_B.

    The settings of FedSoft (Ruan, Joe-Wong, AAAI 2022, https://arxiv.org/abs/2112.06053) and PI-FL (Khan et al. 2023,
    https://arxiv.org/abs/2304.07514, section 4.1), where D_A and D_B are disjoint halves of the classes. A column can
    also define them, such as the protein that molecules were measured on.

    Every split is dealt separately, in whole numbers: a client has exactly the same mixture in training and test data,
    or exactly the inverse (:func:`~lightning_fl.data.partition.mixture_counts`). Clients are as large as the data
    allow without using a sample twice; samples beyond that stay unused. Validation samples (and test samples, if the
    data have no part for them) come from the training data, a share ``split`` of every client's samples.

    Differs from the papers: FedSoft's clients have from 100 to 200 samples and may share some; PI-FL does not give the
    sizes. PI-FL has no validation data; here they have the mixture of the test data.

    Args:
        num_clients: number N of clients.
        mixture: ``"p:q"``, two percentages that add to 100, for q % of D_A in the first half of the clients and p % in
            the others; ``"linear"`` for (k + 1/2) / N of D_A in client k; ``"random"`` for a share drawn for each
            client. The rest is D_B.
        classes_a: classes of D_A; ``None`` for the first half of the classes (rounded down). Real targets count as two
            classes, below the median and from it on.
        classes_b: classes of D_B; ``None`` for all others. Samples of neither stay unused.
        column: define D_A and D_B by this column, read with ``dataset.column(name)``, instead of by class.
        values_a: its values in D_A.
        values_b: its values in D_B; ``None`` for all others.
        samples_per_client: a client's samples of the training data, including those cut for other splits; ``None`` for
            as many as possible. Separate validation and test data are used where possible.
        invert_test: the test data have the inverse mixture: 1 - a of D_A where the training data have a.
        invert_validation: the same for the validation data; ``None`` for the value of ``invert_test``.

    Example:
        >>> letters = Mixture(num_clients=100, mixture="30:70", classes_a=list(range(26)), invert_test=True)
    """

    num_clients: Count
    mixture: str = "10:90"
    classes_a: list[Size] | None = None
    classes_b: list[Size] | None = None
    column: str | None = None
    values_a: list[str] | None = None
    values_b: list[str] | None = None
    samples_per_client: Count | None = None
    invert_test: bool = False
    invert_validation: bool | None = None

    def __post_init__(self) -> None:
        check_mixture(self.mixture)
        by_class = self.column is None
        if by_class != (self.values_a is None) or (by_class and self.values_b is not None):
            values = f"column={self.column!r}, values_a={self.values_a}, values_b={self.values_b}"
            raise ConfigurationError(f"{values}: give a column and values_a, perhaps values_b, or none of them.")
        if not by_class and (self.classes_a is not None or self.classes_b is not None):
            classes = f"classes_a={self.classes_a}, classes_b={self.classes_b}"
            raise ConfigurationError(f"column={self.column!r} with {classes}: use the column or classes, not both.")
        _check_disjoint("classes", self.classes_a, self.classes_b)
        _check_disjoint("values", self.values_a, self.values_b)
        if self.invert_validation is None:
            self.invert_validation = self.invert_test

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, list[Tensor]]:
        return {split: of_split[split] for split, of_split in self._dealt(datasets, (1.0, 0.0, 0.0), seed).items()}

    def partition_clients(
        self, datasets: Mapping[Split, Dataset], fractions: Sequence[float], seed: int
    ) -> dict[Split, list[Tensor]]:
        dealt = self._dealt(datasets, remaining_fractions(fractions, list(datasets)), seed)
        return {split: dealt[split if split in datasets else "train"][split] for split in SPLITS}

    def _dealt(
        self, datasets: Mapping[Split, Dataset], fractions: Sequence[float], seed: int
    ) -> dict[Split, dict[Split, list[Tensor]]]:
        """The splits dealt from every data set: from the training data in these shares, from others their own."""
        shares = mixture_shares(self.mixture, self.num_clients, seed)
        inverse: dict[Split, bool] = {"train": False, "val": bool(self.invert_validation), "test": self.invert_test}
        dealt: dict[Split, dict[Split, list[Tensor]]] = {}
        for split, of_b in self._distributions(datasets).items():
            with name_split(split):
                if split == "train":
                    inverted, size = list(inverse.values()), self.samples_per_client
                    parts = by_mixture(of_b, shares, seed, fractions=fractions, inverted=inverted, size=size)
                    dealt[split] = dict(zip(SPLITS, parts, strict=True))
                else:
                    dealt[split] = {split: by_mixture(of_b, shares, seed, inverted=[inverse[split]])[0]}
        return dealt

    def _distributions(self, datasets: Mapping[Split, Dataset]) -> dict[Split, Tensor]:
        """For every sample 0 for D_A, 1 for D_B, 2 for neither, int64, shape [n] each."""
        keys = self._keys(datasets)
        known = set().union(*keys.values())
        name = "classes" if self.column is None else "values"
        of_a: Sequence[Hashable] | None = self.classes_a if self.column is None else self.values_a
        of_b: Sequence[Hashable] | None = self.classes_b if self.column is None else self.values_b
        for letter, named in (("a", of_a), ("b", of_b)):
            if unknown := [key for key in named or [] if key not in known]:
                values = listed(list(map(str, sorted(known))))
                raise DataError(f"{name}_{letter}: the data have no {unknown[0]!r}. They have {values}.")
        in_a = set(sorted(known)[: len(known) // 2] if of_a is None else of_a)
        number = {key: 0 if key in in_a else 1 if of_b is None or key in of_b else 2 for key in known}
        return {split: torch.tensor([number[key] for key in part], dtype=torch.long) for split, part in keys.items()}

    def _keys(self, datasets: Mapping[Split, Dataset]) -> dict[Split, list[Any]]:
        """The class of every sample, or the text of its value in the column."""
        if self.column is not None:
            columns = {split: read_column(dataset, self.column, "Mixture") for split, dataset in datasets.items()}
            return {split: list(map(str, values)) for split, values in columns.items()}
        remedy = "give a column and values_a to define the distributions"
        return {split: part.tolist() for split, part in read_classes(datasets, num_bins=2, remedy=remedy).items()}


@checked
def mixture_shares(mixture: str, num_clients: Count, seed: int) -> Tensor:
    """Every client's share of D_A, float64 [N]; if N is odd, the first half is the larger.

    ============  ====================================================================================
    ``"10:90"``   p:q, two percentages: q % for the first half of the clients, p % for the others
    ``"linear"``  (k + 1/2) / N for client k of N: (0.5 + k) % for a hundred clients
    ``"random"``  drawn uniformly from 0 to 1 for each client independently, the same for every N
    ============  ====================================================================================

    >>> mixture_shares("10:90", 4, 0).tolist()
    [0.9, 0.9, 0.1, 0.1]
    """
    shares = [mixture_share(mixture, client, num_clients, seed) for client in range(num_clients)]
    return torch.tensor(shares, dtype=torch.float64)


def mixture_share(mixture: str, client: int, num_clients: int, seed: int) -> float:
    """One client's share of D_A; see :func:`mixture_shares`."""
    if (percentages := check_mixture(mixture)) is not None:
        p, q = percentages
        return (q if 2 * client < num_clients else p) / 100
    if mixture == "linear":
        return (client + 0.5) / num_clients
    return float(torch.rand((), generator=generator(seed, "partition", "mixture", client), dtype=torch.float64))


def check_mixture(mixture: str) -> tuple[float, float] | None:
    """The percentages p and q of a mixture ``"p:q"``, or ``None`` for ``"linear"`` and ``"random"``."""
    if mixture in ("linear", "random"):
        return None
    try:
        p, q = map(float, mixture.split(":"))
    except ValueError:
        p = q = -1.0
    if p >= 0 and q >= 0 and abs(p + q - 100) < _TOLERANCE:
        return p, q
    raise ConfigurationError(f"mixture={mixture!r}: must be linear, random, or two percentages of sum 100.")


def mixture_counts(shares: Tensor, sizes: Sequence[int], inverted: Sequence[bool]) -> Tensor:
    """Numbers of samples of D_A and D_B in each part of every client, int64 [2, N, parts].

    A part of m samples has a·m of D_A, rounded to the nearest whole number; halves go to the distribution with the
    larger share, or to D_A if both are equal. An inverted part swaps the two numbers, so that it mirrors a part of the
    same size exactly. ``shares`` holds a for every client, float64 [N].

    >>> mixture_counts(mixture_shares("10:90", 2, 0), [10, 5], [False, True])[0].tolist()  # of D_A
    [[9, 0], [1, 5]]
    """
    size = torch.tensor(sizes, dtype=torch.long)
    exact = shares.double()[:, None] * size
    upwards = (exact + 0.5 + _TOLERANCE).floor()
    downwards = (exact - 0.5 - _TOLERANCE).ceil()
    counts = torch.where(shares[:, None] >= 0.5, upwards, downwards).long()
    of_a = torch.where(torch.tensor(inverted), size - counts, counts)
    return torch.stack([of_a, size - of_a])


def largest_mixture(
    available: Sequence[int], shares: Tensor, fractions: Sequence[float], inverted: Sequence[bool]
) -> int:
    """The largest number of samples per client for which no sample is needed twice.

    Found by trying, downwards from the ``available`` samples of D_A and of D_B divided by the clients: because of
    rounding, the numbers needed do not always grow with the size. 0 if there is none.
    """
    limit = torch.tensor(available)
    sizes = range(sum(available) // len(shares), 0, -1)
    return next((size for size in sizes if (_needed(size, shares, fractions, inverted) <= limit).all()), 0)


def by_mixture(
    of_b: Tensor,
    shares: Tensor,
    seed: int,
    *,
    fractions: Sequence[float] = (1.0,),
    inverted: Sequence[bool] = (False,),
    size: int | None = None,
) -> list[list[Tensor]]:
    """Deal the samples of two distributions at random to clients of equal size: for every part, one tensor per client.

    ``of_b`` [n] is 0 for a sample of D_A, 1 for D_B, 2 for neither; ``shares`` [N] are the clients' of D_A. Each part
    has one of ``fractions``, with sum 1, of a client's samples, and may be ``inverted``. ``size`` is a client's number
    of samples, all parts together; ``None`` for the largest possible one.
    """
    available = torch.bincount(of_b, minlength=3)[:2].tolist()
    if 0 in available:
        letter = "AB"[available.index(0)]
        raise DataError(f"distribution {letter} has none of the {len(of_b)} samples: choose values of both.")
    advice = "use fewer clients" if size is None else "use fewer clients or samples_per_client"
    if size is None:
        size = max(1, largest_mixture(available, shares, fractions, inverted))
    needed = _needed(size, shares, fractions, inverted).tolist()
    if any(need > have for need, have in zip(needed, available, strict=True)):
        what = f"{len(shares)} clients with {size} samples need {needed[0]} of distribution A and {needed[1]} of B"
        raise DataError(f"{what}, there are {available[0]} and {available[1]}: {advice}.")
    wanted = mixture_counts(shares, split_sizes(size, fractions), inverted)  # [2, N, parts]
    table = torch.cat([wanted.flatten(1), torch.zeros(1, wanted[0].numel(), dtype=torch.long)])
    dealt = list(deal_classes(of_b, table, seed))  # client by client, each part after part
    return [dealt[part :: len(fractions)] for part in range(len(fractions))]


def _needed(size: int, shares: Tensor, fractions: Sequence[float], inverted: Sequence[bool]) -> Tensor:
    """Samples of D_A and of D_B that clients of this size need together, shape [2]."""
    return mixture_counts(shares, split_sizes(size, fractions), inverted).sum((1, 2))


def _check_disjoint(name: str, of_a: Sequence[Hashable] | None, of_b: Sequence[Hashable] | None) -> None:
    is_empty = (of_a is not None and not of_a) or (of_b is not None and not of_b)
    if is_empty or (of_b is not None and (of_a is None or set(of_a) & set(of_b))):
        raise ConfigurationError(f"{name}_a={of_a}, {name}_b={of_b}: give disjoint non-empty lists, or only {name}_a.")
