"""Sizes in given ratios, and of a client's training, validation and test samples."""

import math
from collections.abc import Sequence
from functools import lru_cache

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.module import SPLITS, Split


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


def split_sizes(num_samples: int, fractions: Sequence[float]) -> list[int]:
    """Sizes of one client's parts by largest remainder, from shares with sum 1, the first for training.

    There is always a training sample and, from three samples on, one in each part with a positive fraction.
    """
    return list(_split_sizes(num_samples, tuple(fractions)))


@lru_cache(maxsize=1024)  # clients of the same size are many
def _split_sizes(num_samples: int, fractions: tuple[float, ...]) -> list[int]:
    sizes = apportion(num_samples, fractions)
    wanted = [part for part, fraction in enumerate(fractions) if fraction > 0] if num_samples >= len(SPLITS) else [0]
    for part in wanted:
        if sizes[part] == 0:
            sizes[sizes.index(max(sizes))] -= 1
            sizes[part] = 1
    return sizes


def remaining_fractions(fractions: Sequence[float], given: Sequence[Split]) -> list[float]:
    """Rescale the shares of train, val and test to sum to 1 without the splits that have samples already.

    The share of a ``given`` split becomes 0, except that of "train".
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
        raise ConfigurationError(f"split={list(split)}: must be shares of train (above 0), val and test with sum 1.")
