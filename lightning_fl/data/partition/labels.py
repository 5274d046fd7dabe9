"""Partitions by label: who holds which share of which class."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.partition.sizes import check_sizes
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

#: How far a sum of shares may be from 1, for rounding.
_SUM_TOLERANCE = 1e-5


def bin_targets(values: Tensor, num_bins: int) -> Tensor:
    """Labels of real targets: the bin between quantiles that each lies in, so that bins are about equally full.

    Equal targets share a bin, so there may be fewer bins than asked for. Missing targets (NaN) get a bin of their own,
    the last.

    Args:
        values: targets, shape [n].
        num_bins: at least 1.

    Returns:
        Labels ``0, 1, ...`` without gaps, ascending with the target, int64, shape [n].
    """
    if values.ndim != 1 or num_bins < 1:
        raise ConfigurationError(
            f"values of shape {list(values.shape)}, num_bins={num_bins}: give one target per sample, [n], and at least"
            " one bin."
        )
    missing = values.isnan()
    present = values[~missing].double().numpy(force=True)
    labels = torch.full(values.shape, num_bins, dtype=torch.long)
    if len(present):
        edges = np.quantile(present, np.arange(1, num_bins) / num_bins)
        labels[~missing.cpu()] = torch.from_numpy(np.searchsorted(edges, present, side="right"))
    return torch.unique(labels, return_inverse=True)[1]


def by_shares(labels: Tensor, shares: Tensor, seed: int) -> list[Tensor]:
    """Share out the samples of every class: client i gets the share ``shares[c, i]`` of class c.

    The samples of a class are shuffled and cut at the rounded cumulative shares. Where a row sums to 1, all of the
    class are dealt; where it sums to less, the rest is nobody's.

    Args:
        labels: classes ``0..C-1``, integers, shape [n].
        shares: >= 0 with rows that sum to 1 at most, shape [C, N].
        seed: seed of the partition.

    Returns:
        A list of N index tensors; a client whose shares round to nothing has none.
    """
    if shares.ndim != 2 or not (shares >= 0).all() or (shares.double().sum(1) > 1 + _SUM_TOLERANCE).any():
        raise ConfigurationError(
            f"shares of shape {list(shares.shape)}: give a matrix [classes, clients] of numbers >= 0 whose rows sum to"
            " 1, or to less where some samples are to stay unused."
        )
    labels = checked_labels(labels, len(shares))
    return by_counts(labels, _class_counts(labels, shares), seed)


def by_counts(labels: Tensor, counts: Tensor, seed: int) -> list[Tensor]:
    """Deal a given number of samples of every class to every client, drawn at random; the rest is nobody's.

    Args:
        labels: classes ``0..C-1``, integers, shape [n].
        counts: samples of class c for client i, >= 0, integers, shape [C, N].
        seed: seed of the partition.
    """
    if counts.ndim != 2 or counts.is_floating_point() or (counts < 0).any():
        raise ConfigurationError(
            f"counts of shape {list(counts.shape)} and type {counts.dtype}: give a matrix [classes, clients] of whole"
            " numbers >= 0."
        )
    labels = checked_labels(labels, len(counts))
    sizes = torch.bincount(labels, minlength=len(counts))
    if (short := (counts.sum(1) > sizes).nonzero()).numel():
        label = int(short[0])
        raise DataError(
            f"class {label} has {int(sizes[label])} samples, the clients need {int(counts[label].sum())} of it: take"
            " fewer or smaller parts."
        )
    rng = generator(seed, "partition", "by_shares")
    parts: list[list[Tensor]] = [[] for _ in range(counts.shape[1])]
    for label, of_class in enumerate(counts.tolist()):
        members = (labels == label).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=rng)][: sum(of_class)]
        for part, chosen in zip(parts, members.split(of_class), strict=True):
            part.append(chosen)
    return [torch.cat(part).sort().values for part in parts]


def by_sizes_stratified(labels: Tensor, sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Random parts of given sizes, each with the classes in the proportions of the whole; the rest is nobody's.

    See :func:`~lightning_fl.data.partition.stratified.stratified_parts` for how sizes become whole numbers per class.

    Args:
        labels: classes, integers >= 0, shape [n]; for real targets see :func:`bin_targets`.
        sizes: samples of every client, each at least 1.
        seed: seed of the partition.
    """
    check_sizes(sizes, len(labels))
    return stratified_parts(checked_labels(labels), sizes, generator(seed, "partition", "stratified"))


def dirichlet_shares(
    labels: Tensor,
    num_clients: int,
    alpha: float,
    seed: int,
    *,
    num_classes: int | None = None,
    min_samples: int = 1,
    max_draws: int = 1000,
) -> Tensor:
    """Random class shares of the clients, one draw from Dir(α, ..., α) for every class.

    Drawn anew until every client has ``min_samples`` of the given labels, at most ``max_draws`` times. See
    :func:`dirichlet` for the arguments; ``num_classes`` is C, by default the largest label + 1.

    Returns:
        Shares, float64, shape [C, N]; each row sums to 1.
    """
    check_counts("", num_clients=num_clients, max_draws=max_draws)
    check_counts("", min_samples=min_samples, at_least=0)
    check_numbers("", alpha=alpha, above=0)
    labels = checked_labels(labels)
    if num_clients * max(1, min_samples) > len(labels):
        raise DataError(
            f"{num_clients} clients with at least {max(1, min_samples)} of {len(labels)} samples each: ask for at most"
            f" {len(labels) // max(1, min_samples)} clients."
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
    raise DataError(
        f"none of {max_draws} draws with alpha={alpha} gave each of {num_clients} clients {min_samples} samples (the"
        f" best left one client {smallest}): raise alpha, take fewer clients, or lower min_samples."
    )


def dirichlet(
    labels: Tensor, num_clients: int, alpha: float, seed: int, *, min_samples: int = 1, max_draws: int = 1000
) -> list[Tensor]:
    """Label shift: every class is shared out in proportions drawn from a Dirichlet distribution.

    Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual classification",
    2019, https://arxiv.org/abs/1909.06335, in the form with proportions per class (Yurochkin et al., ICML 2019).

    Args:
        labels: classes ``0..C-1``, integers, shape [n]; for real targets see :func:`bin_targets`.
        num_clients: N.
        alpha: concentration α > 0: 0.1 gives clients with few classes, 100 nearly equal ones.
        seed: seed of the partition.
        min_samples: least number of samples of a client.
        max_draws: how often to draw anew until every client has as many.
    """
    shares = dirichlet_shares(labels, num_clients, alpha, seed, min_samples=min_samples, max_draws=max_draws)
    return by_shares(labels, shares, seed)


def pathological_shares(
    labels: Tensor, num_clients: int, classes_per_client: int, seed: int, *, num_classes: int | None = None
) -> Tensor:
    """Equal class shares for the clients that hold a class; every client holds ``classes_per_client`` of them.

    Classes are dealt so that the numbers of their holders differ by at most one. ``num_classes`` is C, by default the
    largest label + 1; a class without samples is shared by all clients.

    Returns:
        Shares, float64, shape [C, N]; each row sums to 1.

    Raises:
        DataError: if a class has fewer samples than clients that hold it.
    """
    check_counts("", num_clients=num_clients)
    labels = checked_labels(labels)
    sizes = torch.bincount(labels, minlength=num_classes or 0)
    present = sizes.nonzero().squeeze(1)
    if not 1 <= classes_per_client <= len(present):
        raise ConfigurationError(
            f"classes_per_client={classes_per_client}: the data have {len(present)} classes, choose from 1 to that."
        )
    if num_clients * classes_per_client < len(present):
        raise ConfigurationError(
            f"{num_clients} clients with {classes_per_client} classes each cannot hold all {len(present)} classes:"
            f" raise classes_per_client to {-(-len(present) // num_clients)} or take more clients."
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
            f"class {label} has {int(sizes[label])} samples for {int(num_holders[label])} clients: take fewer"
            " clients or fewer classes per client."
        )
    holders[num_holders == 0] = 1.0
    return holders / holders.sum(1, keepdim=True)


def pathological(labels: Tensor, num_clients: int, classes_per_client: int, seed: int) -> list[Tensor]:
    """Label shift: every client has samples of exactly ``classes_per_client`` classes.

    After McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
    section 3, with whole classes instead of shards, so that the number of classes is exact.

    Raises:
        DataError: if a class has fewer samples than clients that hold it.
    """
    return by_shares(labels, pathological_shares(labels, num_clients, classes_per_client, seed), seed)


def type_shares(shares: Sequence[Sequence[float]], clients_per_type: int) -> Tensor:
    """Class shares of clients that come in types: a type's share of a class is split evenly among its clients.

    Client i is of type ``i // clients_per_type``.

    Args:
        shares: for every type the share of every class's samples, each >= 0; a class's shares sum to 1 at most.
        clients_per_type: clients of each type, at least 1.

    Returns:
        Shares, float64, shape [C, types · clients_per_type]; rows that sum to less than 1 leave samples unused.

    >>> type_shares([[1.0, 0.5], [0.0, 0.5]], 2).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    check_type_shares(shares, clients_per_type)
    matrix = torch.tensor([list(of_type) for of_type in shares], dtype=torch.float64)
    return (matrix / clients_per_type).repeat_interleave(clients_per_type, dim=0).T.contiguous()


def check_type_shares(shares: Sequence[Sequence[float]], clients_per_type: int, owner: object = "") -> None:
    """Refuse anything but shares of each class for each type, and a positive number of clients per type."""
    check_counts(owner, clients_per_type=clients_per_type)
    check_numbers(owner, shares=list(shares), at_least=0, at_most=1)
    if len(shares) == 0 or len(shares[0]) == 0 or len({len(of_type) for of_type in shares}) > 1:
        raise ConfigurationError(
            f"shares={[list(of_type) for of_type in shares]}: give every type a list of shares, one per class, all of"
            " one length."
        )
    for number, of_type in enumerate(shares):
        if not any(of_type):
            raise ConfigurationError(f"shares[{number}]={list(of_type)}: give at least one above 0.")
    for label, of_class in enumerate(zip(*shares, strict=True)):
        if math.fsum(of_class) > 1 + _SUM_TOLERANCE:
            raise ConfigurationError(
                f"the types' shares of class {label}, {list(of_class)}, sum to {math.fsum(of_class):g}: they may sum to"
                " 1 at most."
            )


def checked_labels(labels: Tensor, num_classes: int | None = None) -> Tensor:
    """The labels as int64 on the CPU."""
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or len(labels) == 0:
        raise DataError(
            f"labels of shape {list(labels.shape)} and type {labels.dtype}: give one integer class per sample, [n]; put"
            " real targets into bins with bin_targets."
        )
    if int(labels.min()) < 0:
        raise DataError(f"labels go down to {int(labels.min())}: number the classes from 0.")
    if num_classes is not None and int(labels.max()) >= num_classes:
        raise DataError(
            f"labels go up to {int(labels.max())}, the shares have rows for {num_classes} classes only: give one row"
            " per class."
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
