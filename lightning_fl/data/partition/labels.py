"""Partitions by label: the share of every class that each client holds."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Fraction, Size, checked
from lightning_fl.data.partition.sizes import Concentration, check_sizes, no_draw
from lightning_fl.data.partition.stratified import stratified_parts
from lightning_fl.functional.dirichlet import sample_dirichlet

__all__ = [
    "bin_targets",
    "by_counts",
    "by_shares",
    "by_sizes_stratified",
    "check_type_shares",
    "checked_labels",
    "dirichlet",
    "dirichlet_shares",
    "pathological",
    "pathological_shares",
    "type_shares",
]

#: Rounding error allowed in a sum of shares.
_SUM_TOLERANCE = 1e-5


@checked
def bin_targets(values: Tensor, num_bins: Count) -> Tensor:
    """Turn real targets into labels: bins between quantiles, about equally full.

    Equal targets share a bin, so there may be fewer than ``num_bins``. Missing targets (NaN) get their own bin, the
    last.

    Args:
        values: targets, shape [n].
        num_bins: number of bins.

    Returns:
        Labels ``0, 1, ...`` without gaps, ascending with the target, int64, shape [n].
    """
    if values.ndim != 1:
        raise ConfigurationError(f"values of shape {list(values.shape)}: must have one target per sample, [n].")
    missing = values.isnan()
    present = values[~missing].double().numpy(force=True)
    labels = torch.full(values.shape, num_bins, dtype=torch.long)
    if len(present):
        edges = np.quantile(present, np.arange(1, num_bins) / num_bins)
        labels[~missing.cpu()] = torch.from_numpy(np.searchsorted(edges, present, side="right"))
    return torch.unique(labels, return_inverse=True)[1]


def by_shares(labels: Tensor, shares: Tensor, seed: int) -> list[Tensor]:
    """Divide the samples of every class: client i gets the share ``shares[c, i]`` of class c.

    The samples of a class are shuffled and cut at the rounded cumulative shares. Where a row sums to less than 1, the
    rest stays unused.

    Args:
        labels: classes ``0..C-1``, integers, shape [n].
        shares: >= 0, rows with sums of at most 1, shape [C, N].
        seed: seed of the partition.

    Returns:
        N index tensors; empty for a client whose shares round to nothing.
    """
    if shares.ndim != 2 or not (shares >= 0).all() or (shares.double().sum(1) > 1 + _SUM_TOLERANCE).any():
        raise ConfigurationError(
            f"shares of shape {list(shares.shape)}: must be a matrix [classes, clients] of numbers of at least 0 whose"
            " rows sum to at most 1."
        )
    labels = checked_labels(labels, len(shares))
    return by_counts(labels, _class_counts(labels, shares), seed)


def by_counts(labels: Tensor, counts: Tensor, seed: int) -> list[Tensor]:
    """Draw a given number of samples of every class for every client; the rest stays unused.

    Args:
        labels: classes ``0..C-1``, integers, shape [n].
        counts: samples of class c for client i, >= 0, integers, shape [C, N].
        seed: seed of the partition.
    """
    if counts.ndim != 2 or counts.is_floating_point() or (counts < 0).any():
        raise ConfigurationError(
            f"counts of shape {list(counts.shape)} and type {counts.dtype}: must be a matrix [classes, clients] of"
            " whole numbers of at least 0."
        )
    labels = checked_labels(labels, len(counts))
    sizes = torch.bincount(labels, minlength=len(counts))
    if (short := (counts.sum(1) > sizes).nonzero()).numel():
        label = int(short[0])
        raise DataError(
            f"class {label} has {int(sizes[label])} samples, the clients need {int(counts[label].sum())}: use fewer or"
            " smaller parts."
        )
    rng = generator(seed, "partition", "by_shares")
    parts: list[list[Tensor]] = [[] for _ in range(counts.shape[1])]
    for label, of_class in enumerate(counts.tolist()):
        members = (labels == label).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=rng)][: sum(of_class)]
        for part, chosen in zip(parts, members.split(of_class), strict=True):
            part.append(chosen)
    return [torch.cat(part).sort().values for part in parts]


@checked
def by_sizes_stratified(labels: Tensor, sizes: Sequence[Count], seed: int) -> list[Tensor]:
    """Draw random parts of given sizes, each with the classes in proportion; the rest stays unused.

    See :func:`~lightning_fl.data.partition.stratified.stratified_parts`.

    Args:
        labels: classes, integers >= 0, shape [n]; for real targets see :func:`bin_targets`.
        sizes: samples of every client.
        seed: seed of the partition.
    """
    check_sizes(sizes, len(labels))
    return stratified_parts(checked_labels(labels), sizes, generator(seed, "partition", "stratified"))


@checked
def dirichlet_shares(
    labels: Tensor,
    num_clients: Count,
    alpha: Concentration,
    seed: int,
    *,
    num_classes: int | None = None,
    min_samples: Size = 1,
    max_draws: Count = 1000,
) -> Tensor:
    """Class shares of the clients, one draw from Dir(α, ..., α) for every class.

    Redrawn, at most ``max_draws`` times, until every client has ``min_samples`` of the given labels.

    Args:
        labels: classes ``0..C-1``, integers, shape [n]; for real targets see :func:`bin_targets`.
        num_clients: N.
        alpha: concentration α.
        seed: seed of the partition.
        num_classes: C; ``None`` for the largest label + 1.
        min_samples: least number of samples of a client.
        max_draws: number of draws after which it fails.

    Returns:
        Shares, float64, shape [C, N]; each row sums to 1.
    """
    labels, least = checked_labels(labels), max(1, min_samples)
    if num_clients * least > len(labels):
        raise DataError(
            f"{len(labels)} samples for {num_clients} clients with at least {least} each: use at most"
            f" {len(labels) // least} clients."
        )
    rng = generator(seed, "partition", "dirichlet")
    num_classes = int(labels.max()) + 1 if num_classes is None else num_classes
    smallest = -1
    for _ in range(max_draws):
        shares = sample_dirichlet(alpha, num_clients, rng, (num_classes,))
        fewest = int(_class_counts(labels, shares).sum(0).min())
        if fewest >= min_samples:
            return shares
        smallest = max(smallest, fewest)
    raise no_draw(max_draws, alpha, num_clients, min_samples, smallest)


def dirichlet(
    labels: Tensor, num_clients: int, alpha: float, seed: int, *, min_samples: int = 1, max_draws: int = 1000
) -> list[Tensor]:
    """Partition by :func:`dirichlet_shares`; see :class:`~lightning_fl.data.partition.Dirichlet`."""
    shares = dirichlet_shares(labels, num_clients, alpha, seed, min_samples=min_samples, max_draws=max_draws)
    return by_shares(labels, shares, seed)


@checked
def pathological_shares(
    labels: Tensor, num_clients: Count, classes_per_client: Count, seed: int, *, num_classes: int | None = None
) -> Tensor:
    """Equal class shares for the clients that hold a class; every client holds ``classes_per_client`` of them.

    The numbers of holders of the classes differ by at most one. All clients share a class without samples.

    Args:
        labels: classes ``0..C-1``, integers, shape [n].
        num_clients: N.
        classes_per_client: classes of every client.
        seed: seed of the partition.
        num_classes: C; ``None`` for the largest label + 1.

    Returns:
        Shares, float64, shape [C, N]; each row sums to 1.

    Raises:
        DataError: a class has fewer samples than clients that hold it.
    """
    labels = checked_labels(labels)
    sizes = torch.bincount(labels, minlength=num_classes or 0)
    present = sizes.nonzero().squeeze(1)
    if not -(-len(present) // num_clients) <= classes_per_client <= len(present):
        raise ConfigurationError(
            f"classes_per_client={classes_per_client} for {num_clients} clients and {len(present)} classes: must be"
            f" from {-(-len(present) // num_clients)}, so that each class has a holder, to {len(present)}."
        )
    rng = generator(seed, "partition", "pathological")
    holders = torch.zeros(len(sizes), num_clients, dtype=torch.float64)
    num_holders = torch.zeros(len(sizes), dtype=torch.long)
    for client in range(num_clients):
        # The classes with the fewest holders, ties in random order.
        shuffled = present[torch.randperm(len(present), generator=rng)]
        fewest = shuffled[num_holders[shuffled].argsort(stable=True)][:classes_per_client]
        holders[fewest, client] = 1.0
        num_holders[fewest] += 1
    if (short := (sizes < num_holders).nonzero()).numel():
        label = int(short[0])
        raise DataError(
            f"class {label} has {int(sizes[label])} samples for {int(num_holders[label])} clients: use fewer clients or"
            " a smaller classes_per_client."
        )
    holders[num_holders == 0] = 1.0
    return holders / holders.sum(1, keepdim=True)


def pathological(labels: Tensor, num_clients: int, classes_per_client: int, seed: int) -> list[Tensor]:
    """Partition by :func:`pathological_shares`; see :class:`~lightning_fl.data.partition.Pathological`."""
    return by_shares(labels, pathological_shares(labels, num_clients, classes_per_client, seed), seed)


@checked
def type_shares(shares: Sequence[Sequence[Fraction]], clients_per_type: Count) -> Tensor:
    """Class shares of clients of several types: a type's share of a class is split evenly among its clients.

    Args:
        shares: for every type the share of every class's samples; a class's shares sum to at most 1.
        clients_per_type: clients of each type; client i is of type ``i // clients_per_type``.

    Returns:
        Shares, float64, shape [C, types · clients_per_type]; rows that sum to less than 1 leave samples unused.

    >>> type_shares([[1.0, 0.5], [0.0, 0.5]], 2).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    check_type_shares(shares)
    matrix = torch.tensor([list(of_type) for of_type in shares], dtype=torch.float64)
    return (matrix / clients_per_type).repeat_interleave(clients_per_type, dim=0).T.contiguous()


def check_type_shares(shares: Sequence[Sequence[float]]) -> None:
    """Refuse types without a class, of unequal lengths, or that together use more than all samples of a class."""
    if not shares or not shares[0] or len({len(of_type) for of_type in shares}) > 1:
        raise ConfigurationError(f"shares={shares}: must have one list per type, each with one share per class.")
    for number, of_type in enumerate(shares):
        if not any(of_type):
            raise ConfigurationError(f"shares[{number}]={of_type}: must have a share above 0.")
    for label, of_class in enumerate(zip(*shares, strict=True)):
        if math.fsum(of_class) > 1 + _SUM_TOLERANCE:
            raise ConfigurationError(
                f"shares of class {label}, {list(of_class)}, sum to {math.fsum(of_class):g}: must be at most 1."
            )


def checked_labels(labels: Tensor, num_classes: int | None = None) -> Tensor:
    """The labels as int64 on the CPU, checked to be one class ``0..num_classes-1`` per sample."""
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or len(labels) == 0:
        raise DataError(
            f"labels of shape {list(labels.shape)} and type {labels.dtype}: must be one integer class per sample, [n];"
            " put real targets into bins with bin_targets."
        )
    if int(labels.min()) < 0:
        raise DataError(f"labels have a minimum of {int(labels.min())}: number the classes from 0.")
    if num_classes is not None and int(labels.max()) >= num_classes:
        raise DataError(
            f"labels have a maximum of {int(labels.max())}, the shares only rows for {num_classes} classes: give one"
            " row per class."
        )
    return labels.cpu().long()


def _class_counts(labels: Tensor, shares: Tensor) -> Tensor:
    """Samples of every class for every client, int64 [C, N]: differences of the rounded cumulative shares."""
    sizes = torch.bincount(labels, minlength=len(shares))
    shares = shares.cpu().double()
    ends = (shares.cumsum(1) * sizes[:, None]).round().long()
    whole = shares.sum(1) >= 1 - _SUM_TOLERANCE
    ends[whole, -1] = sizes[whole]  # whatever the rounding of the sum
    ends.clamp_(max=sizes[:, None])
    return ends.diff(dim=1, prepend=torch.zeros(len(shares), 1, dtype=torch.long))
