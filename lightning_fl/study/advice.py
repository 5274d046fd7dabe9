"""Decisions from the results of ways to train ("arms"): is federating worth it, how, with whom, whom to avoid.

Gains are over training alone, in the unit of the metric, positive for better. Differences are paired by seed and have
95 % intervals of Student's t. The arm is chosen on validation data; all else is about test data, and nothing is said
that its interval does not support.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import connected_components

from lightning_fl.core.errors import listed
from lightning_fl.study.intervals import Interval, paired_interval, ratio_interval

LOCAL, SHARED, POOLED = "local", "fedavg", "pooled"
#: Prefix of an arm that averages all clients but one.
WITHOUT = "fedavg-without-"
TITLES = {LOCAL: "training alone", SHARED: "FedAvg", "fine-tuning": "FedAvg with fine-tuning", "ditto": "Ditto"}
TITLES |= {"hcct": "HCCT's coalitions", "fedcollab": "FedCollab's coalitions", "dpfl": "DPFL's graph"}
TITLES |= {POOLED: "pooled training"}
#: Clients that are tried as one to avoid, and names in one sentence.
_MOST_SUSPECTS, _MOST_NAMES = 3, 12

Verdict = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Results:
    """Gains: index (arm, seed), a column for every client; NaN where a client has no value.

    Arms are in the order from simple to complex. ``structures``, arm -> one matrix [N, N] for each seed, are True where
    a client (row) is put together with another one (column).
    """

    metric: str
    validation: pd.DataFrame
    test: pd.DataFrame
    structures: Mapping[str, Sequence[np.ndarray]] = field(default_factory=dict)

    @property
    def clients(self) -> list[str]:
        return list(map(str, self.test.columns))

    @property
    def arms(self) -> list[str]:
        """All but training alone."""
        return [arm for arm in dict.fromkeys(self.test.index.get_level_values(0)) if arm != LOCAL]

    @property
    def federated(self) -> list[str]:
        return [arm for arm in self.arms if arm != POOLED]


@dataclass(frozen=True)
class Advice:
    """Answers, with the intervals behind them."""

    recommended: str  #: arm
    metric: str
    sentences: list[str]
    arms: dict[str, Interval]  #: gain, mean over clients
    shares: dict[str, Interval]  #: of pooling's gain that a federated arm reaches; empty if pooling is not better
    clients: dict[str, Interval]  #: gain of each client with the recommended arm
    partners: dict[str, dict[str, float]]  #: client -> those it is put together with, and the share of seeds
    avoid: list[str]  #: clients without which the others do better
    settings: dict[str, Any]  #: of the trainer, for the recommended arm

    def as_dict(self) -> dict[str, Any]:
        """Content of ``advice.json``."""
        content = asdict(self)
        for name in ("arms", "shares", "clients"):
            for key, interval in getattr(self, name).items():
                numbers = {part: None if math.isnan(value) else value for part, value in asdict(interval).items()}
                content[name][key] = numbers | {"verdict": verdict(interval)}
        return content

    def trainer_arguments(self) -> dict[str, Any]:
        """Arguments of :func:`lightning_fl.federate` for the recommended arm."""
        from lightning_fl.study.advice_runs import make_callbacks

        return {**self.settings, "callbacks": make_callbacks(self.settings["callbacks"])}


def advise_on(results: Results, settings: Mapping[str, dict[str, Any]], notes: Sequence[str] = ()) -> Advice:
    """Choose an arm and answer the questions; ``settings`` are those of each arm, ``notes`` further sentences."""
    test, chosen = results.test, choose(results)
    clients = {str(name): paired_interval(of.dropna().tolist()) for name, of in test.loc[chosen].items()}
    partners, with_whom = _with_whom(results, chosen)
    avoid, about_avoiding = _to_avoid(results)
    shares, about_pooling = _pooling(results, chosen)
    sentences = [*_worth(results, chosen, clients), *with_whom, *about_avoiding, *about_pooling, *notes]
    arms = {arm: gain(test, arm) for arm in results.arms}
    return Advice(chosen, results.metric, sentences, arms, shares, clients, partners, avoid, settings[chosen])


def gain(gains: pd.DataFrame, arm: str, *, over: str = LOCAL, without: str | None = None) -> Interval:
    """Difference of two arms' gains, mean over clients (or all but one), paired by seed."""
    return paired_interval(_differences(gains.drop(columns=[] if without is None else [without]), arm, over).tolist())


def verdict(interval: Interval) -> Verdict:
    """What the interval of a gain supports; one seed has none."""
    return "better" if interval.low > 0 else "worse" if interval.high < 0 else "undecided"  # False for NaN


def choose(results: Results) -> str:
    """The simplest arm within one standard error of the best one on validation data, paired by seed.

    The rule is that of Breiman et al. (CART, 1984). Arms with fewer seeds than others, and pooled training, a
    reference, are not chosen.
    """
    found = {arm: gain(results.validation, arm) for arm in (LOCAL, *results.federated)}
    seeds = max(found[arm].n for arm in results.federated)
    means = {arm: of.mean for arm, of in found.items() if of.n == seeds or arm == LOCAL}
    best = max(means, key=means.__getitem__)
    lags = {arm: gain(results.validation, best, over=arm) for arm in means}
    return next(arm for arm, lag in lags.items() if arm == best or lag.mean <= lag.deviation / math.sqrt(lag.n or 1))


def suspects(structures: Mapping[str, Sequence[np.ndarray]]) -> list[int]:
    """Clients that most structures put together with nobody, although with others: the most avoided first."""
    found = [matrix for matrices in structures.values() for matrix in matrices if matrix.any()]
    shares = np.mean([matrix.any(axis=0) for matrix in found], axis=0) if found else np.array([])
    return [int(client) for client in np.argsort(shares, kind="stable") if shares[client] < 0.5][:_MOST_SUSPECTS]


def title(arm: str) -> str:
    """An arm in a sentence."""
    return TITLES.get(arm) or f"FedAvg without {arm.removeprefix(WITHOUT)}"


def shown(interval: Interval) -> str:
    """ "+0.031 [+0.010, +0.052]", with two digits of half its width; without an interval for one seed."""
    half = (interval.high - interval.low) / 2
    form = f"+.{max(1 - math.floor(math.log10(half)), 0)}f" if half > 0 else "+.3g"  # False for NaN
    bounds = "" if math.isnan(half) else f" [{interval.low:{form}}, {interval.high:{form}}]"
    return f"{interval.mean:{form}}{bounds}"


def _differences(gains: pd.DataFrame, arm: str, over: str = LOCAL) -> "pd.Series[float]":
    """By seed, mean over clients; a client without one of both values does not count."""
    differences = cast(pd.DataFrame, gains.loc[arm]) - cast(pd.DataFrame, gains.loc[over])
    return differences.mean(axis="columns").dropna()


def _by_verdict(found: Mapping[str, Interval]) -> dict[Verdict, list[str]]:
    """Verdict -> names of the intervals with it; verdicts without any are left out."""
    names = {key: [name for name, of in found.items() if verdict(of) == key] for key in get_args(Verdict)}
    return {key: of for key, of in names.items() if of}


def _worth(results: Results, chosen: str, clients: Mapping[str, Interval]) -> list[str]:
    """Whether federating is worth it: overall, for each client, and against the other federated arms."""
    others = {arm: gain(results.test, arm, over=chosen) for arm in results.federated if arm != chosen}
    of_others = {arm: f"{title(arm)} {shown(found)}" for arm, found in others.items()}
    if chosen == LOCAL:
        gains = ", ".join(of_others.values())
        return [f"Train alone: no federated arm is clearly better on validation data. On test data they gain: {gains}."]
    found, way = gain(results.test, chosen), title(chosen)
    seeds = f"{found.n} seeds" if found.n > 1 else "1 seed, which has no interval: run more"
    text = f"{shown(found)} {results.metric} over training alone (mean over clients, {seeds})."
    worth = {
        "better": f"Federating is worth it. Use {way}: it gains {text}",
        "worse": f"Federating is not worth it. {way}, best on validation data, loses on test data: {text}",
        "undecided": f"Undecided whether federating is worth it. {way}, best on validation data, has {text}",
    }
    words = {"better": "gain", "worse": "are better off alone", "undecided": "are undecided"}
    parts = [f"{len(of)} {words[key]} ({listed(of, _MOST_NAMES)})" for key, of in _by_verdict(clients).items()]
    sentences = [worth[verdict(found)], f"Of {len(clients)} clients, each by its own interval, {'; '.join(parts)}."]
    against = {"better": "Better than", "worse": "Worse than", "undecided": "Not clearly different from"}
    for key, arms in _by_verdict(others).items():
        sentences.append(f"{against[key]} {way} on test data: {', '.join(of_others[arm] for arm in arms)}.")
    return sentences


def _with_whom(results: Results, chosen: str) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Each client's partners in the best structure with their shares of seeds, and sentences about structures."""
    arms = [arm for arm in results.federated if results.structures.get(arm)]
    arms.sort(key=lambda arm: (arm == chosen, gain(results.validation, arm).mean), reverse=True)
    if not arms:
        return {}, []
    names, shares = results.clients, np.mean(results.structures[arms[0]], axis=0)
    partners = {
        name: {names[other]: float(row[other]) for other in np.argsort(-row, kind="stable") if row[other]}
        for name, row in zip(names, shares, strict=True)
    }
    return partners, [_about_structure(results, arm) for arm in arms if arm == chosen or arm != "dpfl"]


def _about_structure(results: Results, arm: str) -> str:
    names, matrices = results.clients, results.structures[arm]
    together = np.mean(matrices, axis=0) > 0.5
    if (together == together.T).all():
        count, labels = connected_components(together, directed=False)
        same = (labels[:, None] == labels) & ~np.eye(len(names), dtype=bool)
        groups = [[names[client] for client in np.flatnonzero(labels == group)] for group in range(count)]
        found = " and ".join(f"{{{listed(group, _MOST_NAMES)}}}" for group in groups)
        found = {1: "all clients together", len(names): "every client alone"}.get(count, found)
        found += f", exactly so in {sum((matrix == same).all() for matrix in matrices)} of {len(matrices)} seeds"
    else:
        rows = list(zip(names, together, strict=True))[:_MOST_NAMES]
        texts = [listed([names[other] for other in np.flatnonzero(row)], 4) or "nobody" for _, row in rows]
        found = "; ".join(f"{name} with {text}" for (name, _), text in zip(rows, texts, strict=True))
    over = gain(results.test, arm, over=SHARED) if SHARED in results.federated else None
    against = "" if over is None else f" Against all together (FedAvg), that is {verdict(over)}: {shown(over)}."
    return f"With whom, by {title(arm)}: {found}.{against}"


def _to_avoid(results: Results) -> tuple[list[str], list[str]]:
    """Clients without which the others do better, by training without them."""
    avoid, sentences = [], []
    for arm in results.federated:
        client = arm.removeprefix(WITHOUT)
        if client == arm or SHARED not in results.federated:
            continue
        found = gain(results.test, arm, over=SHARED, without=client)
        said = {"better": f"The others should avoid {client}", "worse": f"{client} helps the others"}
        said["undecided"] = f"Undecided whether the others should avoid {client}"
        sentences.append(f"{said[verdict(found)]}: FedAvg without it gives them {shown(found)}.")
        avoid += [client] * (verdict(found) == "better")
    return avoid, sentences


def _pooling(results: Results, chosen: str) -> tuple[dict[str, Interval], list[str]]:
    """Shares of pooling's gain over training alone that federated arms reach, if it has one; what it would add."""
    if POOLED not in results.arms:
        return {}, []
    found = gain(results.test, POOLED, over=chosen)
    said = {"better": "Pooling the data would still add", "worse": "Pooling the data would be worse:"}
    said["undecided"] = "Undecided whether pooling the data would add anything:"
    sentences = [f"{said[verdict(found)]} {shown(found)} over {title(chosen)}."]
    over_alone, shares = gain(results.test, POOLED), {}
    if verdict(over_alone) == "better":
        gap = _differences(results.test, POOLED)
        for arm in results.federated:
            of_arm, of_pooling = _differences(results.test, arm).align(gap, join="inner")
            shares[arm] = ratio_interval(of_arm.tolist(), of_pooling.tolist())
        texts = [
            f"{title(arm)} {share.mean:.0%} [{share.low:.0%}, {share.high:.0%}]"
            for arm, share in shares.items()
            if not math.isnan(share.mean)
        ]
        reached = ", ".join(texts) or "undecided"
        alone = f"training alone ({shown(over_alone)})"
        sentences.append(f"Share of pooling's gain over {alone} that each way reaches: {reached}.")
    return shares, sentences
