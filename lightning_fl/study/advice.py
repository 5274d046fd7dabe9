"""Decisions from the results of ways to train ("arms"): is federating worth it, how, with whom, whom to avoid.

Gains are over training alone, in the unit of the metric, positive for better. Differences are paired by seed and have
95 % intervals of Student's t. The arm is chosen on validation data; all else is about test data, and nothing is said
that its interval does not support.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import connected_components

from lightning_fl.core.errors import listed
from lightning_fl.study.intervals import Interval, paired_interval

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
    def federated(self) -> list[str]:
        arms = dict.fromkeys(self.test.index.get_level_values(0))
        return [arm for arm in arms if arm not in (LOCAL, POOLED)]


@dataclass(frozen=True)
class Advice:
    """Answers, with the intervals behind them."""

    recommended: str  #: arm
    metric: str
    sentences: list[str]
    arms: dict[str, Interval]  #: gain, mean over clients
    clients: dict[str, Interval]  #: gain of each client with the recommended arm
    partners: dict[str, dict[str, float]]  #: client -> those it is put together with, and the share of seeds
    avoid: list[str]  #: clients without which the others do better
    settings: dict[str, Any]  #: of the trainer, for the recommended arm

    def as_dict(self) -> dict[str, Any]:
        """Content of ``advice.json``."""
        content = asdict(self)
        for name in ("arms", "clients"):
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
    chosen = choose(results)
    clients = {str(name): paired_interval(of.dropna().tolist()) for name, of in results.test.loc[chosen].items()}
    partners, with_whom = _with_whom(results, chosen)
    avoid, about_avoiding = _to_avoid(results)
    sentences = [_worth(results, chosen), *_others(results, chosen), *with_whom, *about_avoiding]
    if chosen != LOCAL:
        sentences.insert(1, _of_clients(clients))
    arms = {arm: gain(results.test, arm) for arm in results.federated}
    if POOLED in results.test.index:
        arms[POOLED] = gain(results.test, POOLED)
        found = gain(results.test, POOLED, over=chosen)
        said = {"better": "Pooling the data would still add", "worse": "Pooling the data would be worse:"}
        said["undecided"] = "Undecided whether pooling the data would add anything:"
        sentences.append(f"{said[verdict(found)]} {shown(found)} over {title(chosen)}.")
    return Advice(chosen, results.metric, [*sentences, *notes], arms, clients, partners, avoid, settings[chosen])


def gain(gains: pd.DataFrame, arm: str, *, over: str = LOCAL, without: str | None = None) -> Interval:
    """Difference of two arms' gains, mean over clients (or all but one), paired by seed."""
    kept = gains.drop(columns=[] if without is None else [without])
    # By seed; a client without one of both values does not count.
    differences = cast(pd.DataFrame, kept.loc[arm]) - cast(pd.DataFrame, kept.loc[over])
    return paired_interval(differences.mean(axis="columns").dropna().tolist())


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
    """ "+0.031 [+0.01, +0.052]"; without an interval for one seed."""
    bounds = "" if math.isnan(interval.low) else f" [{interval.low:+.3g}, {interval.high:+.3g}]"
    return f"{interval.mean:+.3g}{bounds}"


def _worth(results: Results, chosen: str) -> str:
    if chosen == LOCAL:
        others = ", ".join(f"{title(arm)} {shown(gain(results.test, arm))}" for arm in results.federated)
        return f"Train alone: no federated arm is clearly better on validation data. On test data they gain: {others}."
    found, way = gain(results.test, chosen), title(chosen)
    text = (
        f"{shown(found)} {results.metric} over training alone (mean over clients, {found.n} seed{'s' * (found.n > 1)})"
    )
    match verdict(found):
        case "better":
            return f"Federating is worth it: with {way} clients gain {text}."
        case "worse":
            return f"Federating is not worth it: {way}, best on validation data, loses on test data: {text}."
    more = "" if found.n > 1 else " One seed has no interval: run more."
    return f"Undecided whether federating is worth it: {way}, best on validation data, has {text}.{more}"


def _of_clients(gains: Mapping[str, Interval]) -> str:
    names: dict[str, list[str]] = {"better": [], "worse": [], "undecided": []}
    for client, interval in gains.items():
        names[verdict(interval)].append(client)
    words = {"better": "gain", "worse": "lose and are better off alone"}
    texts = [f"{len(of)} {words[key]} ({listed(of, _MOST_NAMES)})" for key, of in names.items() if of and key in words]
    texts += [f"{len(names['undecided'])} are undecided"] if names["undecided"] else []
    return f"Of {len(gains)} clients, each by its own interval, {'; '.join(texts)}."


def _others(results: Results, chosen: str) -> list[str]:
    """What is decided between the recommended arm and the other federated ones."""
    others = {arm: gain(results.test, arm, over=chosen) for arm in results.federated if arm != chosen}
    if chosen == LOCAL or not others:
        return []
    texts: dict[str, list[str]] = {"better": [], "worse": [], "undecided": []}
    for arm, found in others.items():
        texts[verdict(found)].append(f"{title(arm)} {shown(found)}")
    words = {"better": "Better on test data", "worse": "Worse", "undecided": "Undecided"}
    if len(texts["undecided"]) == len(others):
        words["undecided"] = "Nothing is decided between the federated arms"
    return [f"{words[key]}, against {title(chosen)}: {', '.join(of)}." for key, of in texts.items() if of]


def _with_whom(results: Results, chosen: str) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Each client's partners in the best structure with their shares of seeds, and sentences about structures."""
    arms = [arm for arm in results.federated if results.structures.get(arm)]
    if not arms:
        return {}, []
    best, names = max(arms, key=lambda arm: (arm == chosen, gain(results.validation, arm).mean)), results.clients
    shares = np.mean(results.structures[best], axis=0)
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
        groups = [
            listed([names[client] for client in np.flatnonzero(labels == group)], _MOST_NAMES) for group in range(count)
        ]
        same = (labels[:, None] == labels) & ~np.eye(len(names), dtype=bool)
        exact = sum((matrix == same).all() for matrix in matrices)
        found = f"{{{'}, {'.join(groups)}}}, exactly so in {exact} of {len(matrices)}"
    else:
        rows = list(zip(names, together, strict=True))[:_MOST_NAMES]
        texts = [listed([names[other] for other in np.flatnonzero(row)], 4) or "nobody" for _, row in rows]
        found = "; ".join(f"{name} with {text}" for (name, _), text in zip(rows, texts, strict=True))
    over = gain(results.test, arm, over=SHARED) if SHARED in results.federated else None
    against = "" if over is None else f" That is {verdict(over)} against all together (FedAvg): {shown(over)}."
    return f"With whom, by {title(arm)} in most seeds: {found}.{against}"


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
