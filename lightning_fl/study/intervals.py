"""Confidence intervals over seeds, corrected p-values, and the number of seeds that a test needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt, Lt, doc
from scipy.special import nctdtr, stdtr, stdtrit

from lightning_fl.core.validation import checked

_MAX_SEEDS = 1000

#: What the interval of a gain supports.
Verdict = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Interval:
    """Mean, standard deviation and confidence interval of n values, and the p-value of a mean of 0 (two-sided).

    NaN where undefined.
    """

    mean: float
    low: float
    high: float
    n: int
    p_value: float = math.nan
    deviation: float = math.nan

    @property
    def verdict(self) -> Verdict:
        """What it supports as the interval of a gain; one value has none."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "undecided"  # False for NaN

    def __format__(self, form: str) -> str:
        """ "+0.031 [+0.010, +0.052]", without bounds where undefined.

        ``form`` is that of each number; default: to two digits of half the width, at most four of the mean.
        """
        if not form:
            size = max((self.high - self.low) / 2, abs(self.mean) / 100)  # NaN if the bounds are
            form = f"+.{max(1 - math.floor(math.log10(size)), 0)}f" if size > 0 else "+.3g"
        bounds = "" if math.isnan(self.low) else f" [{self.low:{form}}, {self.high:{form}}]"
        return f"{self.mean:{form}}{bounds}"


@checked
def paired_interval(
    differences: Sequence[float], confidence: Annotated[float, Gt(0), Lt(1), doc("such as 0.95")] = 0.95
) -> Interval:
    """Student's t confidence interval of a mean, ``mean -+ t_{n-1} s / sqrt(n)`` with the sample deviation s.

    ``differences`` has one per seed [n]; a non-finite one makes everything NaN.
    """
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
    else:  # all equal, or not finite
        p_value = 0.0 if mean else 1.0 if mean == 0 else math.nan
    return Interval(mean, mean - half, mean + half, n, p_value, deviation)


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95) -> Interval:
    """Fieller's confidence interval of a ratio of means, paired (Journal of the Royal Statistical Society B, 1954).

    It has the ratios r for which the interval of the mean of numerator - r denominator contains 0: exact for few normal
    values, where the delta method is not; NaN unless the interval of the denominators' mean [n] excludes 0.
    """
    if not (of := paired_interval(denominators, confidence)).low * of.high > 0:
        return Interval(math.nan, math.nan, math.nan, of.n)
    pairs = np.array([numerators, denominators], dtype=float)
    top, bottom = pairs.mean(axis=1)
    errors = np.cov(pairs) / of.n * stdtrit(of.n - 1, 0.5 + confidence / 2) ** 2
    # low and high solve scale r^2 - 2 centre r + constant = 0
    scale, centre, constant = bottom**2 - errors[1, 1], top * bottom - errors[0, 1], top**2 - errors[0, 0]
    half = math.sqrt(max(centre**2 - scale * constant, 0.0))
    return Interval(float(top / bottom), float((centre - half) / scale), float((centre + half) / scale), of.n)


def seeds_needed(interval: Interval, power: float = 0.8, confidence: float = 0.95) -> int | None:
    """Number of seeds with which a two-sided t test detects a difference of this mean and deviation.

    Power, the probability of detection, by the noncentral t distribution (Cohen, Statistical Power Analysis, 1988).
    ``interval`` is of a pilot with at least two seeds. Returns the smallest number, at least 2; ``None`` if the pilot
    does not determine it or it exceeds 1000.
    """
    if not interval.deviation > 0 or not interval.mean:
        return None
    effect = abs(interval.mean) / interval.deviation
    n = np.arange(2, _MAX_SEEDS + 1)
    bound, shift = stdtrit(n - 1, 0.5 + confidence / 2), effect * np.sqrt(n)
    reached = 1 - nctdtr(n - 1, shift, bound) >= power
    return int(n[reached.argmax()]) if reached.any() else None


def share_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of the share ``count / total`` (Wilson, JASA 1927)."""
    from scipy.stats import binomtest  # slow to import

    found = binomtest(count, total).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected by Holm's step-down rule (Scandinavian Journal of Statistics, 1979); NaN is not counted."""
    values = np.array(p_values, dtype=float)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    values[order] = np.minimum(np.maximum.accumulate(np.arange(len(order), 0, -1) * values[order]), 1.0)
    return values.tolist()
