"""Partitions by quantity alone, and the division of one client's samples into splits."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import derive_seed, generator
from lightning_fl.core.validation import check_counts
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.functional.dirichlet import sample_dirichlet

__all__ = [
    "apportion",
    "by_sizes",
    "check_fractions",
    "check_ratios",
    "check_sizes",
    "dirichlet_ratios",
    "iid",
    "quantity",
    "quantity_sizes",
    "remaining_fractions",
    "split_clients",
    "split_indices",
    "split_sizes",
]


def apportion(total: int, ratios: Sequence[float]) -> list[int]:
    """Divide ``total`` in given ratios into whole numbers that sum to it (largest remainders, ties to the first).

    >>> apportion(1128, [7, 2, 1])
    [790, 225, 113]
    """
    whole = math.fsum(ratios)
    if total < 0 or not all(0 <= ratio < math.inf for ratio in ratios) or not whole > 0:
        raise ConfigurationError(
            f"total={total}, ratios={list(ratios)}: give numbers >= 0, at least one ratio above 0."
        )
    quotas = [total * ratio / whole for ratio in ratios]
    counts = [math.floor(quota) for quota in quotas]
    # Rounded, so that 7:2:1 and 0.7:0.2:0.1 break ties alike.
    by_remainder = sorted(range(len(ratios)), key=lambda i: round(counts[i] - quotas[i], 9))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def iid(num_samples: int, num_clients: int, seed: int) -> list[Tensor]:
    """A random partition into parts whose sizes differ by at most one."""
    check_counts("", num_clients=num_clients)
    return quantity(num_samples, [1.0] * num_clients, seed)


def quantity(num_samples: int, ratios: Sequence[float], seed: int) -> list[Tensor]:
    """A random partition into parts of unequal size, such as 7:2:1.

    Args:
        num_samples: samples to share out.
        ratios: one positive number per client; only their proportions count.
        seed: seed of the partition.
    """
    return by_sizes(num_samples, quantity_sizes(num_samples, ratios), seed)


def quantity_sizes(num_samples: int, ratios: Sequence[float]) -> list[int]:
    """The sizes of such parts, one per client, each at least 1; see :func:`quantity`."""
    check_ratios(ratios)
    if len(ratios) > num_samples:
        raise DataError(f"{len(ratios)} clients share {num_samples} samples: ask for at most {num_samples} clients.")
    sizes = apportion(num_samples, ratios)
    if 0 in sizes:
        raise DataError(
            f"ratios={list(ratios)} leave client {sizes.index(0)} without any of the {num_samples} samples: give it a"
            " larger ratio or take fewer clients."
        )
    return sizes


def dirichlet_ratios(
    num_samples: int, num_clients: int, alpha: float, seed: int, *, min_samples: int = 10, max_draws: int = 1000
) -> list[float]:
    """Shares of the clients in all samples, drawn from Dir(alpha, ..., alpha): unequal sizes with one knob.

    He et al., "FedGraphNN", arXiv:2104.07145 (2021): latent Dirichlet allocation over the sizes, drawn anew until each
    client has at least 10 samples.

    Args:
        num_samples: samples to share out.
        num_clients: N.
        alpha: concentration > 0; small values give one client nearly everything.
        seed: seed of the partition.
        min_samples: least number of samples of a client.
        max_draws: draws before it is given up.

    Returns:
        N numbers with sum 1.
    """
    check_counts("", num_clients=num_clients)
    if num_clients * min_samples > num_samples:
        raise DataError(
            f"{num_clients} clients with at least {min_samples} of {num_samples} samples each: ask for at most"
            f" {num_samples // min_samples} clients, or lower min_samples."
        )
    rng, smallest = generator(seed, "partition", "dirichlet sizes"), -1
    for _ in range(max_draws):
        ratios: list[float] = sample_dirichlet(alpha, num_clients, rng).tolist()
        fewest = min(apportion(num_samples, ratios))
        if fewest >= min_samples:
            return ratios
        smallest = max(smallest, fewest)
    raise DataError(
        f"none of {max_draws} draws with alpha={alpha} gave each of {num_clients} clients {min_samples} of"
        f" {num_samples} samples (the best left one client {smallest}): raise alpha, take fewer clients, or lower"
        " min_samples."
    )


def by_sizes(num_samples: int, sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Random parts of given sizes; samples beyond their sum are in no part.

    Args:
        num_samples: samples to choose from.
        sizes: samples of every client, each at least 1.
        seed: seed of the partition.
    """
    check_sizes(sizes, num_samples)
    order = torch.randperm(num_samples, generator=generator(seed, "partition", "quantity"))
    return [part.sort().values for part in order[: sum(sizes)].split(list(sizes))]


def split_indices(indices: Tensor, fractions: Sequence[float], seed: int, client: int) -> dict[Split, Tensor]:
    """Divide one client's samples at random into training, validation and test samples.

    Sizes follow the fractions by largest remainder. There is always a training sample and, from three samples on, one
    in each split with a positive fraction. The division depends on the set of indices, the seed and the client only.

    Args:
        indices: the client's samples, int64, shape [n], n >= 1.
        fractions: shares of train, val and test, the first > 0, the others >= 0, with sum 1.
        seed: seed of the partition.
        client: number of the client.

    Returns:
        Ascending indices under "train", "val" and "test" that together are ``indices``.
    """
    (parts,) = split_clients([indices], fractions, seed, [client])
    return parts


def split_clients(
    samples: Sequence[Tensor], fractions: Sequence[float], seed: int, clients: Sequence[int]
) -> list[dict[Split, Tensor]]:
    """What :func:`split_indices` makes of the samples of each of some clients, which are cut and sorted all at once."""
    check_fractions(fractions)
    counts = [len(indices) for indices in samples]
    if 0 in counts:
        client = clients[counts.index(0)]
        raise DataError(f"client {client} has no samples to split: take fewer clients or a more even partition.")
    of_size = {count: split_sizes(count, fractions) for count in set(counts)}
    sizes = torch.tensor([of_size[count] for count in counts])
    draws = torch.Generator()
    orders = [
        torch.randperm(count, generator=draws.manual_seed(derive_seed(seed, "split", client)))
        for client, count in zip(clients, counts, strict=True)
    ]
    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    ascending = _sorted_within(owner, torch.cat(list(samples)))
    part = torch.arange(sizes.numel()).repeat_interleave(sizes.flatten())
    places = _sorted_within(part, torch.cat(orders))
    starts = torch.tensor(counts).cumsum(0) - torch.tensor(counts)
    parts = ascending[starts[owner] + places].split(sizes.flatten().tolist())
    return [
        dict(zip(SPLITS, parts[begin : begin + len(SPLITS)], strict=True))
        for begin in range(0, len(parts), len(SPLITS))
    ]


def _sorted_within(groups: Tensor, values: Tensor) -> Tensor:
    """Values sorted within each group [n], groups ascending."""
    by_value = values.argsort()
    return values[by_value[groups[by_value].argsort(stable=True)]]


def split_sizes(num_samples: int, fractions: Sequence[float]) -> list[int]:
    """Sizes of the parts of one client, the first for training, by largest remainder.

    There is always a training sample and, from three samples on, one in each part with a positive fraction.

    Args:
        num_samples: of the client, at least 1.
        fractions: shares of the parts, the first > 0, the others >= 0, with sum 1; three at most.
    """
    sizes = apportion(num_samples, fractions)
    wanted = [part for part, fraction in enumerate(fractions) if fraction > 0] if num_samples >= len(SPLITS) else [0]
    for part in wanted:
        if sizes[part] == 0:
            sizes[sizes.index(max(sizes))] -= 1
            sizes[part] = 1
    return sizes


def remaining_fractions(fractions: Sequence[float], given: Sequence[Split]) -> list[float]:
    """Shares of train, val and test in what is divided among training and the splits that are not given already.

    Args:
        fractions: shares of train, val and test.
        given: splits that have their samples.

    Returns:
        Three shares with sum 1, that of a given split 0; those of the others (and of "train") in proportion.
    """
    kept = [split == "train" or split not in given for split in SPLITS]
    if all(kept):
        return list(fractions)  # as they are: a quotient could differ in the last digit
    shares = [share if keep else 0.0 for keep, share in zip(kept, fractions, strict=True)]
    return [share / math.fsum(shares) for share in shares]


def check_ratios(ratios: Sequence[float]) -> None:
    """Refuse ratios that are not positive numbers, one per client."""
    if len(ratios) == 0 or not all(0 < ratio < math.inf for ratio in ratios):
        raise ConfigurationError(f"ratios={list(ratios)}: give one positive number per client, such as [7, 2, 1].")


def check_sizes(sizes: Sequence[int], num_samples: int | None = None) -> None:
    """Refuse sizes that are not positive whole numbers, one per client, or need more than ``num_samples`` samples."""
    if len(sizes) == 0 or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ConfigurationError(f"sizes={list(sizes)}: give a whole number of at least 1 per client.")
    if num_samples is not None and sum(sizes) > num_samples:
        raise DataError(
            f"{len(sizes)} clients need {sum(sizes)} samples together, there are {num_samples}: take fewer or smaller"
            " clients."
        )


def check_fractions(fractions: Sequence[float]) -> None:
    """Refuse anything but the shares of train, val and test."""
    if (
        len(fractions) != len(SPLITS)
        or not all(0 <= fraction <= 1 for fraction in fractions)
        or fractions[0] == 0
        or abs(math.fsum(fractions) - 1) > 1e-6
    ):
        raise ConfigurationError(
            f"split={list(fractions)}: give the shares of train, val and test, the first above 0, with sum 1, such as"
            " [0.8, 0.1, 0.1]."
        )
