import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_fl.study.intervals import Interval, holm, paired_interval, ratio_interval, seeds_needed, share_interval

numbers = st.floats(-100, 100)


def test_by_hand():
    # Differences 1, 2, 3: mean 2, standard deviation 1. With two degrees of freedom the quantile of Student's t at
    # (1 + a) / 2 is a sqrt(2 / (1 - a^2)).
    found = paired_interval([1.0, 2.0, 3.0])
    half = 0.95 * math.sqrt(2 / (1 - 0.95**2)) / math.sqrt(3)
    assert (found.mean, found.n) == (2.0, 3)
    assert found.low == pytest.approx(2 - half, rel=1e-9)
    assert found.high == pytest.approx(2 + half, rel=1e-9)


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8), st.sampled_from([0.5, 0.9, 0.99]))
def test_it_is_scipys_paired_t_interval(pairs, confidence):
    ours, theirs = zip(*pairs, strict=True)
    differences = np.subtract(ours, theirs)
    found = paired_interval(differences.tolist(), confidence)
    if differences.std() < 1e-9:
        assert found.high - found.low < 1e-5
        return
    expected = stats.ttest_rel(ours, theirs).confidence_interval(confidence)
    assert found.low == pytest.approx(expected.low, rel=1e-9, abs=1e-9)
    assert found.high == pytest.approx(expected.high, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_ratio_to_equal_values_has_the_interval_of_its_numerators(sign):
    found, expected = ratio_interval([1.0, 2.0, 3.0], [4.0 * sign] * 3), paired_interval([1.0, 2.0, 3.0])
    bounds = sorted([expected.low * sign / 4, expected.high * sign / 4])
    assert [found.mean, found.low, found.high] == pytest.approx([sign / 2, *bounds])
    assert found.n == 3


def test_equal_ratios_have_an_interval_of_no_width():
    found = ratio_interval([0.3, 0.36, 0.42], [0.5, 0.6, 0.7])
    assert [found.mean, found.low, found.high] == pytest.approx([0.6] * 3, abs=1e-6)


@given(st.lists(st.tuples(numbers, st.floats(80, 100)), min_size=3, max_size=8))
def test_the_bounds_of_a_ratio_are_those_at_which_a_difference_is_not_decided(pairs):
    tops, bottoms = map(np.array, zip(*pairs, strict=True))
    found = ratio_interval(tops.tolist(), bottoms.tolist())
    assert found.mean == pytest.approx(tops.mean() / bottoms.mean())
    for ratio in (found.low, found.high):
        at = paired_interval((tops - ratio * bottoms).tolist())
        assert min(abs(at.low), abs(at.high)) < 1e-5


@pytest.mark.parametrize("bottoms", [[-1.0, 2.0, 3.0], [1.0], [], [0.0] * 3])
def test_a_ratio_to_what_may_be_zero_has_no_interval(bottoms):
    found = ratio_interval([1.0] * len(bottoms), bottoms)
    assert [found.mean, found.low, found.high] == pytest.approx([math.nan] * 3, nan_ok=True)


@pytest.mark.parametrize(("values", "mean"), [([], math.nan), ([2.0], 2.0), ([1.0, math.nan, 2.0], math.nan)])
def test_without_an_interval(values, mean):
    found = paired_interval(values)
    assert (found.mean, found.n) == pytest.approx((mean, len(values)), nan_ok=True)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@given(st.lists(numbers, min_size=2, max_size=8))
def test_zero_is_outside_of_the_interval_where_the_p_value_is_below_five_per_cent(differences):
    found = paired_interval(differences)
    if found.deviation > 1e-9:
        assert (found.p_value < 0.05) == (found.low > 0 or found.high < 0)
        assert found.p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-6)


@pytest.mark.parametrize(("values", "p"), [([0.5, 0.5], 0.0), ([0.0, 0.0], 1.0), ([0.5], math.nan)])
def test_the_p_value_of_equal_differences(values, p):
    assert paired_interval(values).p_value == pytest.approx(p, nan_ok=True)


def test_wilsons_interval_by_his_formula():
    z, n, share = stats.norm.ppf(0.975), 12, 0.75
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    assert share_interval(9, 12) == pytest.approx((middle - half, middle + half))
    assert share_interval(0, 4)[0] == 0.0
    assert share_interval(0, 4)[1] == pytest.approx(z**2 / (4 + z**2))  # not [0, 0], as from no spread between seeds


def test_holm_by_hand():
    # sorted: 0.01 x 4, 0.02 x 3, 0.03 x 2 (not less than the one before), 0.5
    assert holm([0.02, 0.5, 0.01, math.nan, 0.03]) == pytest.approx([0.06, 0.5, 0.04, math.nan, 0.06], nan_ok=True)
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_lies_between_no_correction_and_bonferronis(p_values):
    for own, corrected in zip(p_values, holm(p_values), strict=True):
        assert own <= corrected <= min(len(p_values) * own, 1.0)
    assert holm(p_values[:1]) == p_values[:1]


def test_the_seeds_that_are_needed_reach_the_power_in_simulation():
    pilot = paired_interval([0.4, 1.6, -0.2, 1.0])
    needed = seeds_needed(pilot)
    draws = np.random.default_rng(0).normal(pilot.mean, pilot.deviation, (20_000, needed))
    decided = np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05)
    fewer = np.mean(stats.ttest_1samp(draws[:, :-1], 0, axis=1).pvalue < 0.05)
    error = 4 * math.sqrt(0.8 * 0.2 / len(draws))
    assert decided > 0.8 - error
    assert fewer < 0.8 + error


@pytest.mark.parametrize(
    "pilot",
    [
        Interval(0.0, -1.0, 1.0, 3, 1.0, 0.4),
        Interval(0.001, -1.0, 1.0, 3, 0.9, 1.0),  # some 8,000
        paired_interval([0.5]),
        paired_interval([0.5, 0.5]),
    ],
    ids=["no mean", "too many", "one", "no deviation"],
)
def test_seeds_that_are_not_needed_or_too_many(pilot):
    assert seeds_needed(pilot) is None
