import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.study.claims import Answer, Term, answer_claim, correct_answers, parse_claim, verdict_of
from lightning_fl.study.intervals import Interval, paired_interval

ARMS = ["a", "b", "fedcollab+finetune", "dpfl_0.1"]
GRID = {"data": ["esol", "free-solv"], "mixture": ["10:90", "30:70"]}
finite = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))


def parse(text, percent=False):
    return parse_claim(text, ARMS, GRID, percent)


def table(values):
    """A value function of {(statistic, arm): {seed: value}}, the same at every place."""
    return lambda statistic, arm, place, seed: values[statistic, arm].get(seed, math.nan)


def answer_of(differences):
    interval = paired_interval(differences)
    return Answer("mean(a) > mean(b)", {}, verdict_of(interval, ">"), interval)


def test_a_claim_is_one_sum_compared_with_zero():
    claim = parse("2 * mean(a) - worst(dpfl_0.1, data=esol) <= 0.5 + std(b) - 3 on mixture=10:90")
    assert claim.relation == "<="
    assert claim.axes == (("mixture", "10:90"),)
    assert claim.terms == (
        Term(2.0, "mean", "a"),
        Term(-1.0, "worst", "dpfl_0.1", (("data", "esol"),)),
        Term(-0.5),
        Term(-1.0, "std", "b"),
        Term(3.0),
    )


@pytest.mark.parametrize(
    ("text", "percent", "terms"),
    [
        ("mean(a)>mean(b)where data=esol and mixture=30:70", False, [Term(1.0, "mean", "a"), Term(-1.0, "mean", "b")]),
        ("mean( a ) > mean( b )  on  data = esol ", False, [Term(1.0, "mean", "a"), Term(-1.0, "mean", "b")]),
        ("mean(fedcollab+finetune) > -mean(b) + 1e-2", False,
         [Term(1.0, "mean", "fedcollab+finetune"), Term(1.0, "mean", "b"), Term(-0.01)]),
        ("ipr(a) >= 95 %", False, [Term(1.0, "ipr", "a"), Term(-0.95)]),
        ("ipr(a) >= 95 %", True, [Term(1.0, "ipr", "a"), Term(-95.0)]),
        ("ipr(a) >= 0.95", False, [Term(1.0, "ipr", "a"), Term(-0.95)]),
        *[
            (f"mean(a) > {half} * mean(b) + 5 %", percent,
             [Term(1.0, "mean", "a"), Term(-0.5, "mean", "b"), Term(-five)])
            for half in ("0.5", "50 %")
            for percent, five in ((False, 0.05), (True, 5.0))
        ],
        ("mean(a) > mean(b) + 1", True, [Term(1.0, "mean", "a"), Term(-1.0, "mean", "b"), Term(-1.0)]),
    ],
)  # fmt: skip
def test_terms(text, percent, terms):
    claim = parse(text, percent)
    assert claim.terms == tuple(terms)
    assert dict(claim.axes).get("data") == ("esol" if "esol" in text else None)


@pytest.mark.parametrize(
    ("low", "high", "greater", "at_least"),
    [
        (1.0, 2.0, "holds", "holds"),
        (0.0, 2.0, "undecided", "holds"),
        (-1.0, 2.0, "undecided", "undecided"),
        (-1.0, 0.0, "does not hold", "undecided"),
        (-2.0, -1.0, "does not hold", "does not hold"),
        (0.0, 0.0, "does not hold", "holds"),
    ],
)
def test_the_verdict_is_where_the_whole_interval_lies(low, high, greater, at_least):
    interval = Interval((low + high) / 2, low, high, 5)
    turned = Interval(-(low + high) / 2, -high, -low, 5)
    assert verdict_of(interval, ">") == verdict_of(turned, "<") == greater
    assert verdict_of(interval, ">=") == verdict_of(turned, "<=") == at_least
    assert verdict_of(paired_interval([3.0]), ">") == "undecided"


@pytest.mark.slow
@given(st.lists(st.tuples(finite, finite), min_size=2, max_size=6), finite)
def test_swapping_sides_and_shifting_both_change_nothing(pairs, shift):
    def verdict(text, moved):
        values = {("mean", "a"): {}, ("mean", "b"): {}}
        for seed, (left, right) in enumerate(pairs):
            values["mean", "a"][seed], values["mean", "b"][seed] = left + moved, right + moved
        (answer,) = answer_claim(parse_claim(text, ["a", "b"], {}), range(len(pairs)), {}, table(values))
        return answer

    plain, swapped = verdict("mean(a) > mean(b)", 0.0), verdict("mean(b) < mean(a)", 0.0)
    assert plain.verdict == swapped.verdict
    assert plain.interval.low == pytest.approx(-swapped.interval.high)
    moved = verdict("mean(a) > mean(b)", shift)
    assert moved.interval.mean == pytest.approx(plain.interval.mean, abs=1e-9)
    assert moved.interval.high == pytest.approx(plain.interval.high, abs=1e-6)


def test_open_axes_are_answered_one_by_one():
    values = {"esol": [1.0, 1.1, 1.2], "free-solv": [3.0, 3.2, 3.1]}

    def value(statistic, arm, place, seed):
        assert place["mixture"] == "10:90"
        return values[place["data"]][seed] + (arm == "b")

    answers = answer_claim(parse("mean(b) > mean(a) + 0.5 on mixture=10:90"), [0, 1, 2], GRID, value)
    assert [answer.axes for answer in answers] == [
        {"mixture": "10:90", "data": "esol"},
        {"mixture": "10:90", "data": "free-solv"},
    ]
    assert {answer.verdict for answer in answers} == {"holds"}
    answers = answer_claim(parse("mean(a, data=esol) < mean(a, data=free-solv) on mixture=10:90"), [0, 1], GRID, value)
    assert [answer.axes for answer in answers] == [{"mixture": "10:90"}]
    assert answers[0].interval.mean == pytest.approx((1.0 - 3.0 + 1.1 - 3.2) / 2)


@pytest.mark.parametrize("claim", ["mean(a) > mean(b)", "mean(a) - mean(b) > 0.5 * mean(a) - 0.5 * mean(b)"])
@pytest.mark.parametrize(
    ("seeds", "verdict", "reason"),
    [
        ([0, 1, 2], "holds", "no mean(b) for seed 2"),
        ([1, 2], "undecided", "1 seed; an interval needs two; no mean(b) for seed 2"),
        ([3], "undecided", "0 seeds; an interval needs two; no mean(a) for seed 3; no mean(b) for seed 3"),
    ],
)
def test_missing_runs_are_named_and_the_rest_decides(claim, seeds, verdict, reason):
    values = {("mean", "a"): {0: 1.0, 1: 1.1, 2: 1.2}, ("mean", "b"): {0: 0.0, 1: 0.1}}
    (answer,) = answer_claim(parse_claim(claim, ["a", "b"], {}), seeds, {}, table(values))
    assert (answer.verdict, answer.reason) == (verdict, reason)
    assert answer.interval.n == len({0, 1} & set(seeds))


def test_places_that_are_not_run_are_left_out():
    def value(statistic, arm, place, seed):
        return None if place["data"] == "esol" else float(seed)

    claim = parse_claim("mean(a) >= 0", ["a"], {"data": ["esol", "hiv"]})
    answers = answer_claim(claim, [1, 2], {"data": ["esol", "hiv"]}, value)
    assert [answer.axes for answer in answers] == [{"data": "hiv"}]
    (answer,) = answer_claim(claim, [1, 2], {"data": ["esol"]}, value)
    assert (answer.verdict, answer.interval.n) == ("undecided", 0)
    assert "does not contain" in answer.reason


def test_claims_that_hold_one_by_one_need_not_hold_all_together():
    clear, weak = answer_of([1.0, 1.1, 0.9, 1.0]), answer_of([0.2, 1.0, 0.9, 0.5])  # p is 0.0001, 0.04
    assert (clear.verdict, weak.verdict) == ("holds", "holds")
    assert [one.corrected for one in correct_answers([weak])] == ["holds"]
    together = correct_answers([clear, weak, answer_of([0.3, -0.4, 0.2, 0.1])])
    assert [one.corrected for one in together] == ["holds", "undecided", "undecided"]
    assert together[1].corrected_p_value == pytest.approx(2 * weak.interval.p_value)
    same = answer_of([0.0, 0.0])
    assert (same.verdict, correct_answers([same])[0].corrected) == ("does not hold", "does not hold")


@pytest.mark.parametrize(
    ("text", "values", "verdict"),
    [
        ("harmed(a) <= 55 %", {("harmed", "a"): [100 * (11 / 20)] * 3}, "holds"),
        ("harmed(a) >= 28 %", {("harmed", "a"): [100 * (7 / 25)] * 3}, "holds"),
        ("mean(a) >= mean(b) + 0.1", {("mean", "a"): [0.3, 0.5, 0.7], ("mean", "b"): [0.2, 0.4, 0.6]}, "holds"),
        ("mean(a) > mean(b) + 0.1", {("mean", "a"): [0.3, 0.5, 0.7], ("mean", "b"): [0.2, 0.4, 0.6]}, "does not hold"),
        (
            "mean(a) > 3 * mean(b)",
            {("mean", "a"): [3e-9, 6e-9, 9e-9], ("mean", "b"): [1e-9, 2e-9, 3e-9]},
            "does not hold",
        ),
        ("mean(a) > 1000", {("mean", "a"): [1000 + 1e-7, 1000 + 1e-7]}, "holds"),
    ],
)
def test_equal_sides_are_equal_whatever_their_sums_round_to(text, values, verdict):
    claim = parse_claim(text, ["a", "b"], {}, percent="%" in text)
    seeds = range(len(next(iter(values.values()))))
    (answer,) = correct_answers(answer_claim(claim, seeds, {}, lambda name, arm, place, seed: values[name, arm][seed]))
    assert (answer.verdict, answer.corrected, answer.interval.deviation) == (verdict, verdict, 0)


def test_an_undecided_claim_says_how_many_seeds_it_needs():
    assert answer_of([1.0, -0.5, 1.5]).seeds_needed > 3
    assert answer_of([1.0, 1.1, 0.9]).seeds_needed is None
