"""Claims about a study's results, such as ``worst(drflm) < worst(drfa) on data=esol``, and their tests.

A claim compares two sums of statistics and numbers::

    claim      := sum ("<" | "<=" | ">" | ">=") sum [("on" | "where") settings]
    sum        := ["-"] term (("+" | "-") term)*
    term       := number ["%"] ["*" quantity] | quantity
    quantity   := STATISTIC "(" ARM ["," settings] ")"
    settings   := AXIS "=" LABEL ((","| "and") AXIS "=" LABEL)*

The test of a claim is described in docs/study.md.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lightning_fl.core.errors import ConfigurationError, counted, did_you_mean
from lightning_fl.study.intervals import Interval, holm, paired_interval, seeds_needed

#: Statistics of a metric, and their meaning.
STATISTICS = {
    "mean": "mean over clients",
    "worst": "worst client",
    "best": "best client",
    "std": "standard deviation over clients",
    "last_mean": "mean over clients, averaged over the last rounds (LastRounds) instead of the best round",
    "last_worst": "worst client of each of the last rounds, averaged over them",
    "gain": "mean gain over the clients' own local training",
    "rsd": "standard deviation of these gains over clients",
    "ipr": "share of clients that gain over local training",
    "harmed": "share of clients that lose against local training",
    "ari": "adjusted Rand index of the coalitions against the clients' known groups (GroupAgreement)",
}
#: Statistics that are shares of clients.
SHARES = ("ipr", "harmed")
#: Name of an arm, an axis or a value of an axis.
LABEL = re.compile(r"[A-Za-z0-9_.:+\-/@]+")

Verdict = Literal["holds", "does not hold", "undecided"]
_LEVEL = 0.05
#: (statistic, arm, place, seed) -> value in the table's unit; NaN if missing, ``None`` if the study has no such run.
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
    """A parsed claim."""

    text: str
    terms: tuple[Term, ...]  #: of the left side, and of the right side with opposite signs
    relation: str
    axes: tuple[tuple[str, str], ...] = ()  #: the place after ``on``


@dataclass(frozen=True)
class Answer:
    """Verdict on a claim alone at one place of the grid."""

    claim: str
    axes: dict[str, str]
    verdict: Verdict
    interval: Interval  #: of the difference, left minus right, over seeds
    reason: str = ""  #: missing seeds or runs
    corrected_p_value: float = math.nan  #: of no difference, corrected for the number of tested claims

    @property
    def corrected(self) -> Verdict:
        """Verdict at a level of 5 % for all claims of the study together."""
        certain = self.interval.deviation == 0  # the same difference for every seed
        return self.verdict if certain or self.corrected_p_value < _LEVEL else "undecided"

    @property
    def seeds_needed(self) -> int | None:
        """Number of seeds that would decide it with a probability of 80 %; ``None`` if decided or unknown."""
        return seeds_needed(self.interval) if self.verdict == "undecided" else None


def cell_name(arm: str, place: Mapping[str, str], seed: int | None = None) -> str:
    """Name of a cell: "fedavg, data=esol, seed 3"; an empty arm or missing seed is left out."""
    parts = [arm, *(f"{axis}={label}" for axis, label in place.items()), "" if seed is None else f"seed {seed}"]
    return ", ".join(filter(None, parts))


def verdict_of(interval: Interval, relation: str) -> Verdict:
    """Whether ``difference RELATION 0`` holds, given the interval of the difference; undecided if that is NaN."""
    low, high = (interval.low, interval.high) if relation[0] == ">" else (-interval.high, -interval.low)
    if relation.endswith("="):
        return "holds" if low >= 0 else "does not hold" if high < 0 else "undecided"
    return "holds" if low > 0 else "does not hold" if high <= 0 else "undecided"


def answer_claim(claim: Claim, seeds: Sequence[int], grid: Mapping[str, Sequence[str]], value: ValueOf) -> list[Answer]:
    """Test a claim at every place that it leaves open.

    Places that are not part of the study are skipped; if none is left, the only answer is undecided with a reason.
    """
    fixed = dict(claim.axes)
    quantities = [term for term in claim.terms if term.statistic is not None]
    open_axes = [
        axis for axis in grid if axis not in fixed and any(axis not in dict(quantity.axes) for quantity in quantities)
    ]
    places = itertools.product(*(grid[axis] for axis in open_axes))
    answers = (_answer(claim, seeds, {**fixed, **dict(zip(open_axes, place, strict=True))}, value) for place in places)
    found = [answer for answer in answers if answer is not None]
    missing = "the study does not contain the compared runs"
    return found or [Answer(claim.text, fixed, "undecided", paired_interval([]), missing)]


def correct_answers(answers: Sequence[Answer]) -> list[Answer]:
    """Add p-values corrected for the number of answers."""
    p_values = holm([answer.interval.p_value for answer in answers])
    return [replace(answer, corrected_p_value=p) for answer, p in zip(answers, p_values, strict=True)]


def _answer(claim: Claim, seeds: Sequence[int], place: dict[str, str], value: ValueOf) -> Answer | None:
    differences = []
    missing: dict[str, dict[int, None]] = {}  # a claim may name a quantity twice
    for seed in seeds:
        parts = []
        for term in claim.terms:
            if term.statistic is None:
                parts.append(term.coefficient)
                continue
            axes = place | dict(term.axes)
            number = value(term.statistic, term.arm, axes, seed)
            if number is None:
                return None
            if math.isnan(number):
                missing.setdefault(f"{term.statistic}({cell_name(term.arm, axes)})", {})[seed] = None
            parts.append(term.coefficient * number)
        if not math.isnan(total := _rounded_sum(parts)):
            differences.append(total)
    interval = paired_interval(differences)
    verdict = verdict_of(interval, claim.relation)
    reasons = [f"{counted(interval.n, 'seed')}; an interval needs two"] if interval.n < 2 else []
    for name, of in missing.items():
        reasons.append(f"no {name} for {'seed' if len(of) == 1 else 'seeds'} {', '.join(map(str, of))}")
    return Answer(claim.text, place, verdict, interval, "; ".join(reasons))


def _rounded_sum(parts: Sequence[float]) -> float:
    """Sum rounded to twelve digits of its largest part, so that 0.3 - 0.1 - 0.2 is 0 and equal decimals stay equal."""
    largest = max(map(abs, parts))
    return round(sum(parts), 12 - math.floor(math.log10(largest))) if 0 < largest < math.inf else sum(parts)


def parse_claim(text: str, arms: Sequence[str], grid: Mapping[str, Sequence[str]], percent: bool = False) -> Claim:
    """Parse a claim; syntax errors and unknown names are a ConfigurationError."""
    return _Parser(text, arms, grid, percent).claim()


class _Parser:
    """Recursive-descent parser; ``_at`` is its position."""

    def __init__(self, text: str, arms: Sequence[str], grid: Mapping[str, Sequence[str]], percent: bool) -> None:
        self._text, self._arms, self._grid, self._percent = text, arms, grid, percent
        self._at = 0

    def claim(self) -> Claim:
        left = list(self._sum())
        relation = self._expect(r"<=|>=|<|>", "<, <=, > or >=")
        right = [replace(term, coefficient=-term.coefficient) for term in self._sum()]
        axes = self._settings() if self._take(r"(on|where)\b") else ()
        self._expect(r"$", "the end, or 'on AXIS=LABEL'")
        terms = (*left, *right)
        named = [term for term in terms if term.statistic is not None]
        if not named:
            raise self._error("a claim needs a statistic of an arm, such as mean(fedavg)")
        for axis, _ in axes:
            if all(axis in dict(term.axes) for term in named):
                raise self._error(f"every quantity already sets {axis}: remove it after on")
        return Claim(self._text, terms, relation, axes)

    def _sum(self) -> Iterator[Term]:
        sign: str | None = self._take(r"-") or "+"
        while sign is not None:
            term = self._term()
            yield replace(term, coefficient=-term.coefficient if sign == "-" else term.coefficient)
            sign = self._take(r"[+-]")

    def _term(self) -> Term:
        number = self._take(r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
        if number is None:
            return self._quantity()
        of_hundred = self._take(r"%") is not None
        is_factor = self._take(r"\*") is not None
        value = float(number) / (100 if of_hundred and (is_factor or not self._percent) else 1)
        if is_factor:
            return replace(self._quantity(), coefficient=value)
        named = set(STATISTICS).intersection(re.findall(r"(\w+)\s*\(", self._text))
        if not of_hundred and named and named <= set(SHARES):
            if self._percent and 0 < value <= 1:
                raise self._error(f"this study is in percent: write {100 * value:g} % or {number} %")
            if not self._percent and value > 1:
                raise self._error(f"ipr and harmed are shares from 0 to 1: write {number} %")
        return Term(value)

    def _quantity(self) -> Term:
        statistic = self._expect(r"[A-Za-z_]\w*", "a number or a quantity such as mean(fedavg)")
        if statistic not in STATISTICS:
            hint = f"{did_you_mean(statistic, STATISTICS)}; choose one of {', '.join(STATISTICS)}"
            raise self._error(f"unknown statistic {statistic!r}{hint}")
        self._expect(r"\(", f"( and an arm after {statistic}")
        arm = self._name(self._arms, "arm")
        axes = self._settings() if self._take(r",") else ()
        self._expect(r"\)", ")")
        return Term(1.0, statistic, arm, axes)

    def _settings(self) -> tuple[tuple[str, str], ...]:
        settings: dict[str, str] = {}
        while True:
            axis = self._name(list(self._grid), "axis")
            self._expect(r"=", f"= and a value of {axis}")
            if axis in settings:
                raise self._error(f"{axis} is set twice")
            settings[axis] = self._name(self._grid[axis], f"value of {axis}")
            if self._take(r",|and\b") is None:
                return tuple(settings.items())

    def _name(self, known: Sequence[str], kind: str) -> str:
        name = self._expect(LABEL.pattern, f"the name of an {kind}" if kind[0] == "a" else f"a {kind}")
        if name not in known:
            hint = f"{did_you_mean(name, known)}; the study has {', '.join(known) or 'none'}"
            raise self._error(f"unknown {kind} {name!r}{hint}")
        return name

    def _expect(self, pattern: str, wanted: str) -> str:
        found = self._take(pattern)
        if found is None:
            raise self._error(f"expected {wanted}")
        return found

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
