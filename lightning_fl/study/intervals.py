"""What some seeds say of all: intervals of means and shares, corrected p-values, the number of seeds that is needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import nctdtr, stdtr, stdtrit

from lightning_fl.core.errors import ConfigurationError

__all__ = ["Interval", "holm", "paired_interval", "seeds_needed", "share_interval"]

#: More seeds than these nobody runs.
_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval, NaN where they are not defined.

    Args:
        mean: of the values.
        low: of the interval.
        high: of the interval.
        n: values behind it.
        p_value: of the two-sided test that the mean is 0, which is below ``1 - confidence`` where 0 is outside.
        deviation: the values' standard deviation.
    """

    mean: float
    low: float
    high: float
    n: int
    p_value: float = math.nan
    deviation: float = math.nan


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean and Student's t confidence interval, ``mean -+ t_{n-1} s / sqrt(n)`` with s the sample's deviation.

    Args:
        differences: one for each seed [n]; one that is not finite makes everything NaN.
        confidence: of the two-sided interval, in (0, 1).
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
    deviation = float(values.std(ddof=1))
    error = deviation / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * error
    if error:
        p_value = 2 * float(stdtr(n - 1, -abs(mean) / error))
    else:  # all alike, or not finite
        p_value = 0.0 if mean else 1.0 if mean == 0 else math.nan
    return Interval(mean, mean - half, mean + half, n, p_value, deviation)


def seeds_needed(interval: Interval, power: float = 0.8, confidence: float = 0.95) -> int | None:
    """Seeds by which a difference as large and as variable as that of a pilot is decided with some probability.

    The power of the two-sided t test, from the noncentral t distribution (Cohen, Statistical Power Analysis, 1988).

    Args:
        interval: of the pilot, of two seeds or more.
        power: the probability.
        confidence: of the interval that is to leave out 0.

    Returns:
        The least number, at least 2; ``None`` where the pilot tells none, or more than 1000.
    """
    if not interval.deviation > 0 or not interval.mean:
        return None
    effect = abs(interval.mean) / interval.deviation
    n = np.arange(2, _MOST_SEEDS + 1)
    bound, shift = stdtrit(n - 1, 0.5 + confidence / 2), effect * np.sqrt(n)
    reached = 1 - nctdtr(n - 1, shift, bound) >= power
    return int(n[reached.argmax()]) if reached.any() else None


def share_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share (Wilson, JASA 1927).

    Args:
        count: that have what is counted.
        total: of all, at least 1.
        confidence: of the interval.
    """
    from scipy.stats import binomtest  # slow to import

    found = binomtest(count, total).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number by Holm's step-down rule (Scandinavian Journal of Statistics, 1979).

    Args:
        p_values: of all tests; NaN for one that was not made, which is not counted and stays NaN.
    """
    values = np.array(p_values, dtype=float)
    made = np.flatnonzero(~np.isnan(values))
    order = made[np.argsort(values[made], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    values[order] = np.minimum(np.maximum.accumulate(factors * values[order]), 1.0)
    return values.tolist()
