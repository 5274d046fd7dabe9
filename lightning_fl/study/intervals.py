"""The mean of differences that are paired by seed, with its confidence interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from lightning_fl.errors import ConfigurationError

__all__ = ["Interval", "paired_interval"]


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval, NaN where they are not defined; ``n`` values behind it."""

    mean: float
    low: float
    high: float
    n: int


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean and Student's t confidence interval, ``mean -+ t_{n-1} s / sqrt(n)`` with s the sample's deviation.

    Args:
        differences: one for each seed [n]; one that is not finite makes everything NaN.
        confidence: of the two-sided interval, in (0, 1).

    Raises:
        ConfigurationError: ``confidence`` is out of its range.
    """
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence={confidence}: give a probability between 0 and 1, such as 0.95.")
    values = np.array(differences, dtype=float)
    n = len(values)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(values.mean())
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = float(stdtrit(n - 1, 0.5 + confidence / 2) * values.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)
