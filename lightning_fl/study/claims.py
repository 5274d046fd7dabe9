"""Claims about a study's results, such as ``worst(drflm) < worst(drfa) on data=esol``, and what the runs say of them.

A claim compares two sums of statistics and numbers::

    claim      := sum ("<" | "<=" | ">" | ">=") sum [("on" | "where") settings]
    sum        := ["-"] term (("+" | "-") term)*
    term       := number ["%"] ["*" quantity] | quantity
    quantity   := STATISTIC "(" ARM ["," settings] ")"
    settings   := AXIS "=" LABEL ((","| "and") AXIS "=" LABEL)*

``mean(pifl, mixture=10:90)`` is one quantity at one place of the grid; ``on`` says the place of all the others. An axis
that neither names stands for each of its values: the claim is answered once for every one of them. Numbers are in the
unit of the study's table; "1 %" is a hundredth of what the metric measures, whatever that unit is.

A claim is judged by the difference, left less right, of every seed: its mean over seeds and the two-sided 95 %
confidence interval of Student's t. It *holds* if the whole interval lies on the claimed side, *does not hold* if it
lies on the other side, and is *undecided* else, which with fewer than two seeds it always is. Of many claims some hold
by chance: a second answer is at a level of 5 % for all of them together, by Holm's correction of their p-values.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.study.intervals import Interval, holm, paired_interval, seeds_needed

__all__ = [
    "LABEL",
    "SHARES",
    "STATISTICS",
    "Answer",
    "Claim",
    "Term",
    "Verdict",
    "answer_claim",
    "corrected",
    "judge",
    "parse_claim",
]

#: What a run has of a metric over its clients: ``mean``, ``worst``, ``best`` and ``std`` of the metric itself;
#: ``gain`` (mean), ``rsd``, ``ipr`` and ``harmed`` of the gains over local training; ``ari`` of its coalitions.
STATISTICS = ("mean", "worst", "best", "std", "last_mean", "last_worst", "gain", "rsd", "ipr", "harmed", "ari")
#: Of these, shares of clients.
SHARES = ("ipr", "harmed")
#: A name of an arm, an axis or a value of an axis.
LABEL = re.compile(r"[A-Za-z0-9_.:+\-/@]+")

Verdict = Literal["holds", "does not hold", "undecided"]
_LEVEL = 0.05
#: (statistic, arm, place on the grid, seed) -> value in the table's unit; NaN where there is none yet, ``None`` where
#: the study has no such run.
ValueOf = Callable[[str, str, Mapping[str, str], int], float | None]


@dataclass(frozen=True)
class Term:
    """``coefficient * statistic(arm, axes)``, or the number ``coefficient`` where ``statistic`` is ``None``."""

    coefficient: float
    statistic: str | None = None
    arm: str = ""
    axes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim that was parsed.

    Args:
        text: as it was written.
        terms: of the left side, and of the right side with their signs turned; constants among them.
        relation: "<", "<=", ">" or ">=".
        axes: the place on the grid that ``on`` names.
    """

    text: str
    terms: tuple[Term, ...]
    relation: str
    axes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the runs say of a claim at one place of the grid.

    Args:
        claim: its text.
        axes: the place.
        verdict: the answer.
        interval: of the difference, left less right, over seeds.
        reason: why it is undecided, or what is missing; empty where there is nothing to say.
        corrected_p_value: of no difference, corrected for the number of claims that were answered.
    """

    claim: str
    axes: dict[str, str]
    verdict: Verdict
    interval: Interval
    reason: str = ""
    corrected_p_value: float = math.nan

    @property
    def corrected(self) -> Verdict:
        """The answer at a level of 5 % for all claims of the study together."""
        certain = self.interval.deviation == 0  # every seed says the same
        return self.verdict if certain or self.corrected_p_value < _LEVEL else "undecided"

    @property
    def seeds_needed(self) -> int | None:
        """Seeds that would decide it with a probability of 80 %; ``None`` where it is decided, or nothing tells."""
        return seeds_needed(self.interval) if self.verdict == "undecided" else None


def judge(interval: Interval, relation: str) -> Verdict:
    """Whether ``difference RELATION 0`` holds.

    Args:
        interval: of the difference.
        relation: "<", "<=", ">" or ">=".
    """
    if interval.n < 2:
        return "undecided"
    low, high = (interval.low, interval.high) if relation[0] == ">" else (-interval.high, -interval.low)
    if relation.endswith("="):
        return "holds" if low >= 0 else "does not hold" if high < 0 else "undecided"
    return "holds" if low > 0 else "does not hold" if high <= 0 else "undecided"


def answer_claim(claim: Claim, seeds: Sequence[int], grid: Mapping[str, Sequence[str]], value: ValueOf) -> list[Answer]:
    """What the runs say of a claim: one answer, or one for each value of the axes that it leaves open.

    Args:
        claim: a claim.
        seeds: of the study.
        grid: axis -> its labels.
        value: a statistic of one run. Places at which the study lacks a run are left out; if that leaves none, the one
            answer says so.
    """
    fixed = dict(claim.axes)
    quantities = [term for term in claim.terms if term.statistic is not None]
    open_axes = [
        axis for axis in grid if axis not in fixed and any(axis not in dict(quantity.axes) for quantity in quantities)
    ]
    places = itertools.product(*(grid[axis] for axis in open_axes))
    answers = (_answer(claim, seeds, {**fixed, **dict(zip(open_axes, place, strict=True))}, value) for place in places)
    found = [answer for answer in answers if answer is not None]
    nothing = Interval(math.nan, math.nan, math.nan, 0)
    return found or [
        Answer(claim.text, fixed, "undecided", nothing, "the runs that it compares are not part of the study")
    ]


def corrected(answers: Sequence[Answer]) -> list[Answer]:
    """The answers, with their p-values corrected for their number."""
    p_values = holm([answer.interval.p_value for answer in answers])
    return [replace(answer, corrected_p_value=p) for answer, p in zip(answers, p_values, strict=True)]


def _answer(claim: Claim, seeds: Sequence[int], place: dict[str, str], value: ValueOf) -> Answer | None:
    differences = []
    missing: dict[str, list[int]] = {}
    for seed in seeds:
        total = 0.0
        for term in claim.terms:
            if term.statistic is None:
                total += term.coefficient
                continue
            axes = place | dict(term.axes)
            number = value(term.statistic, term.arm, axes, seed)
            if number is None:
                return None
            if math.isnan(number):
                where = ", ".join([term.arm, *(f"{axis}={label}" for axis, label in axes.items())])
                missing.setdefault(f"{term.statistic}({where})", []).append(seed)
            total += term.coefficient * number
        if not math.isnan(total):
            differences.append(total)
    interval = paired_interval(differences)
    verdict = judge(interval, claim.relation)
    reasons = []
    if interval.n < 2:
        reasons.append(f"{interval.n} {'seed' if interval.n == 1 else 'seeds'}, two are needed for an interval")
    for name, of in missing.items():
        reasons.append(f"no {name} for {'seed' if len(of) == 1 else 'seeds'} {', '.join(map(str, of))}")
    return Answer(claim.text, place, verdict, interval, "; ".join(reasons))


def parse_claim(text: str, arms: Sequence[str], grid: Mapping[str, Sequence[str]], percent: bool = False) -> Claim:
    """Parse a claim.

    Args:
        text: such as "mean(drfa) > mean(fedavg) + 0.1 on data=esol".
        arms: the study's arms.
        grid: axis -> its labels.
        percent: whether the table, and so the claim, is in percent.

    Raises:
        ConfigurationError: it is not of the grammar above, or names what the study does not have.
    """
    return _Parser(text, arms, grid, percent).claim()


class _Parser:
    """Reads a claim from left to right; ``_at`` is how far it has come."""

    def __init__(self, text: str, arms: Sequence[str], grid: Mapping[str, Sequence[str]], percent: bool) -> None:
        self._text, self._arms, self._grid, self._percent = text, arms, grid, percent
        self._at = 0

    def claim(self) -> Claim:
        left = list(self._sum())
        relation = self._take(r"<=|>=|<|>")
        if relation is None:
            raise self._error("expected <, <=, > or >=")
        right = [replace(term, coefficient=-term.coefficient) for term in self._sum()]
        axes = self._settings() if self._take(r"(on|where)\b") else ()
        if self._take(r"$") is None:
            raise self._error("expected the end, or 'on AXIS=LABEL'")
        terms = (*left, *right)
        named = [term for term in terms if term.statistic is not None]
        if not named:
            raise self._error("a claim names a statistic of an arm, such as mean(fedavg)")
        for axis, _ in axes:
            if all(axis in dict(term.axes) for term in named):
                raise self._error(f"every quantity names its own {axis} already: drop it after on")
        return Claim(self._text, terms, relation, axes)

    def _sum(self) -> Iterator[Term]:
        sign = -1.0 if self._take(r"-") else 1.0
        while True:
            term = self._term()
            yield replace(term, coefficient=sign * term.coefficient)
            operator = self._take(r"[+-]")
            if operator is None:
                return
            sign = 1.0 if operator == "+" else -1.0

    def _term(self) -> Term:
        number = self._take(r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
        if number is None:
            return self._quantity()
        of_hundred = self._take(r"%") is not None
        value = float(number) / (100 if of_hundred and not self._percent else 1)
        if self._take(r"\*"):
            return replace(self._quantity(), coefficient=value)
        if not of_hundred and re.search(r"\b(ipr|harmed)\b", self._text) and not re.search(_OTHERS, self._text):
            self._check_share(number)
        return Term(value)

    def _check_share(self, number: str) -> None:
        value = float(number)
        if self._percent and 0 < value <= 1:
            raise self._error(f"this study is in percent: write {100 * value:g} %, or {number} % if that is meant")
        if not self._percent and value > 1:
            raise self._error(f"ipr and harmed are shares from 0 to 1: write {number} %")

    def _quantity(self) -> Term:
        statistic = self._take(r"[A-Za-z_]\w*")
        if statistic is None:
            raise self._error("expected a number or a quantity such as mean(fedavg)")
        if statistic not in STATISTICS:
            raise self._error(
                f"there is no statistic {statistic!r}{did_you_mean(statistic, STATISTICS)}; there are"
                f" {', '.join(STATISTICS)}"
            )
        if self._take(r"\(") is None:
            raise self._error(f"expected ( and an arm after {statistic}")
        arm = self._name(self._arms, "arm")
        axes = self._settings() if self._take(r",") else ()
        if self._take(r"\)") is None:
            raise self._error("expected )")
        return Term(1.0, statistic, arm, axes)

    def _settings(self) -> tuple[tuple[str, str], ...]:
        settings: dict[str, str] = {}
        while True:
            axis = self._name(list(self._grid), "axis")
            if self._take(r"=") is None:
                raise self._error(f"expected = and a value of {axis}")
            if axis in settings:
                raise self._error(f"{axis} is given twice")
            settings[axis] = self._name(self._grid[axis], f"value of {axis}")
            if self._take(r",|and\b") is None:
                return tuple(settings.items())

    def _name(self, known: Sequence[str], kind: str) -> str:
        name = self._take(LABEL.pattern)
        if name is None:
            raise self._error(f"expected the name of an {kind}" if kind[0] == "a" else f"expected a {kind}")
        if name not in known:
            raise self._error(
                f"there is no {kind} {name!r}{did_you_mean(name, known)}; the study has {', '.join(known) or 'none'}"
            )
        return name

    def _take(self, pattern: str) -> str | None:
        match = re.compile(rf"\s*({pattern})").match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[1]

    def _error(self, problem: str) -> ConfigurationError:
        read, rest = self._text[: self._at].rstrip(), self._text[self._at :].strip()
        where = f" before {rest!r}" if rest and read else ""
        return ConfigurationError(f"{self._text!r}{where}: {problem}.")


#: A quantity that is not a share.
_OTHERS = rf"\b({'|'.join(name for name in STATISTICS if name not in SHARES)})\s*\("
