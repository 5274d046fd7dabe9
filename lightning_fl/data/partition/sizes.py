"""Sizes in given ratios, and the division of one client's samples into splits."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import derive_seed
from lightning_fl.data.module import SPLITS, Split

__all__ = [
    "apportion",
    "check_fractions",
    "remaining_fractions",
    "split_clients",
    "split_indices",
    "split_sizes",
]


def apportion(total: int, ratios: Sequence[float]) -> list[int]:
    """Divide ``total`` in the given ratios into whole numbers with that sum (largest remainders, ties to the first).

    >>> apportion(1128, [7, 2, 1])
    [790, 225, 113]
    """
    whole = math.fsum(ratios)
    if total < 0 or not all(0 <= ratio < math.inf for ratio in ratios) or not whole > 0:
        raise ConfigurationError(f"total={total}, ratios={list(ratios)}: must be at least 0, one ratio above 0.")
    quotas = [total * ratio / whole for ratio in ratios]
    counts = [math.floor(quota) for quota in quotas]
    # Rounded, so that 7:2:1 and 0.7:0.2:0.1 break ties alike.
    by_remainder = sorted(range(len(ratios)), key=lambda i: round(counts[i] - quotas[i], 9))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def split_indices(indices: Tensor, fractions: Sequence[float], seed: int, client: int) -> dict[Split, Tensor]:
    """Divide one client's samples at random into training, validation and test samples.

    Sizes follow the fractions, see :func:`split_sizes`. The result depends on the set of indices, the seed and the
    client only.

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
    """Apply :func:`split_indices` to the samples of several clients at once, which is faster."""
    check_fractions(fractions)
    counts = [len(indices) for indices in samples]
    if 0 in counts:
        client = clients[counts.index(0)]
        raise DataError(f"client {client} has no samples to split: use fewer clients or a more even partition.")
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
    """Sort values within each group [n], groups ascending."""
    by_value = values.argsort()
    return values[by_value[groups[by_value].argsort(stable=True)]]


def split_sizes(num_samples: int, fractions: Sequence[float]) -> list[int]:
    """Sizes of one client's parts by largest remainder.

    There is always a training sample and, from three samples on, one in each part with a positive fraction.

    Args:
        num_samples: samples of the client, at least 1.
        fractions: shares of at most three parts, that for training first and > 0, the others >= 0, with sum 1.
    """
    sizes = apportion(num_samples, fractions)
    wanted = [part for part, fraction in enumerate(fractions) if fraction > 0] if num_samples >= len(SPLITS) else [0]
    for part in wanted:
        if sizes[part] == 0:
            sizes[sizes.index(max(sizes))] -= 1
            sizes[part] = 1
    return sizes


def remaining_fractions(fractions: Sequence[float], given: Sequence[Split]) -> list[float]:
    """Rescale the shares of train, val and test to sum to 1 without the splits that have samples already.

    Args:
        fractions: shares of train, val and test.
        given: splits with samples of their own: their share becomes 0, except that of "train".
    """
    kept = [split == "train" or split not in given for split in SPLITS]
    if all(kept):
        return list(fractions)  # unchanged: a quotient could differ in the last digit
    shares = [share if keep else 0.0 for keep, share in zip(kept, fractions, strict=True)]
    return [share / math.fsum(shares) for share in shares]


def check_fractions(split: Sequence[float]) -> None:
    """Refuse anything but three shares for train, val and test: in [0, 1], the first above 0, with sum 1."""
    in_range = len(split) == len(SPLITS) and all(0 <= share <= 1 for share in split)
    if not in_range or split[0] == 0 or abs(math.fsum(split) - 1) > 1e-6:
        raise ConfigurationError(
            f"split={list(split)}: must be three shares (train, val, test) with sum 1, the first above 0, such as"
            " [0.8, 0.1, 0.1]."
        )
