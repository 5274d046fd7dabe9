import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_fl.errors import ConfigurationError
from lightning_fl.study.intervals import paired_interval

numbers = st.floats(-100, 100)


def test_by_hand():
    # Differences 1, 2, 3: mean 2, standard deviation 1. With two degrees of freedom the quantile of Student's t at
    # (1 + a) / 2 is a sqrt(2 / (1 - a^2)).
    found = paired_interval([1.0, 2.0, 3.0])
    half = 0.95 * math.sqrt(2 / (1 - 0.95**2)) / math.sqrt(3)
    assert (found.mean, found.n) == (2.0, 3)
    assert found.low == pytest.approx(2 - half, rel=1e-9)
    assert found.high == pytest.approx(2 + half, rel=1e-9)


@pytest.mark.slow
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


@given(st.lists(numbers, min_size=1, max_size=6), numbers)
def test_turning_the_differences_turns_it_and_shifting_them_shifts_it(differences, shift):
    found = paired_interval(differences)
    turned = paired_interval([-value for value in differences])
    moved = paired_interval([value + shift for value in differences])
    same = (found.mean, found.low, found.high)
    assert (-turned.mean, -turned.high, -turned.low) == pytest.approx(same, abs=1e-9, nan_ok=True)
    back = (moved.mean - shift, moved.low - shift, moved.high - shift)
    assert back == pytest.approx(same, abs=1e-6, nan_ok=True)


def test_one_difference_has_no_interval_and_none_no_mean():
    one, none = paired_interval([2.0]), paired_interval([])
    assert (one.mean, one.n, none.n) == (2.0, 1, 0)
    assert all(map(math.isnan, (one.low, one.high, none.mean, none.low, none.high)))


def test_what_is_not_finite_is_not_left_out():
    found = paired_interval([1.0, math.nan, 2.0])
    assert all(map(math.isnan, (found.mean, found.low, found.high)))
    assert found.n == 3


def test_confidence():
    with pytest.raises(ConfigurationError, match=r"confidence=95: give a probability between 0 and 1"):
        paired_interval([1.0, 2.0], confidence=95)
