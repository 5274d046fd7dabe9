"""Decisions from the results of ways to train ("arms"): is federating worth it, how, with whom, whom to avoid.

Gains are over training alone, in the unit of the metric, positive for better. Differences are paired by seed and have
95 % intervals of Student's t. The arm is chosen on validation data; all else is about test data, and nothing is said
that its interval does not support.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import connected_components

from lightning_fl.core.errors import listed
from lightning_fl.recipe.file import class_entry
from lightning_fl.study.intervals import Interval, Verdict, paired_interval, ratio_interval, seeds_needed

LOCAL, SHARED, POOLED = "local", "fedavg", "pooled"
#: Prefix of an arm that averages all clients but one.
WITHOUT = "fedavg-without-"
#: Clients that are tried as one to avoid, and names in one sentence.
_MOST_SUSPECTS, _MOST_NAMES = 3, 12
_ANSWERS: dict[Verdict, str] = {"better": "Yes", "worse": "No", "undecided": "Undecided"}


@dataclass(frozen=True)
class Way:
    """A way to train."""

    title: str  #: in a sentence
    callbacks: Sequence[str | dict[str, Any]] = ()  #: entries of a recipe
    strategy: str = "fedavg"
    finds: Literal["coalitions", "graph"] | None = None  #: who is put together with whom
    pairs: bool = False  #: whether it compares every pair of clients


#: Arm -> way, from simple and cheap to complex. Clients with a model of their own keep it as of their own best round; a
#: shared one is that of the best round for all.
ARMS = {
    LOCAL: Way("training alone", ["LocalTraining", "BestClientModels"]),
    SHARED: Way("FedAvg"),
    "fine-tuning": Way("FedAvg with fine-tuning", [class_entry("FineTuning", epochs=10, best_epoch=True)]),
    "hcct": Way("HCCT's coalitions", ["HCCT"], finds="coalitions"),
    "fedcollab": Way("FedCollab's coalitions", ["FedCollab"], finds="coalitions", pairs=True),
    "ditto": Way("Ditto", ["BestClientModels"], strategy="ditto"),
    "dpfl": Way(
        "DPFL's graph",
        [class_entry("CollaborationGraph", every_n_rounds=5), "BestClientModels"],
        finds="graph",
        pairs=True,
    ),
    POOLED: Way("pooled training", ["PooledTraining"]),
}


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
    def arms(self) -> list[str]:
        """All but training alone."""
        return [arm for arm in dict.fromkeys(self.test.index.get_level_values(0)) if arm != LOCAL]

    @property
    def federated(self) -> list[str]:
        """Those in which clients keep their data and none is left out."""
        return [arm for arm in self.arms if arm != POOLED and not arm.startswith(WITHOUT)]


@dataclass(frozen=True)
class Advice:
    """Answers, with the intervals behind them."""

    recommended: str  #: arm
    metric: str
    sentences: list[str]
    arms: dict[str, Interval]  #: gain, mean over clients
    shares: dict[str, Interval]  #: of pooling's gain that a federated arm reaches; empty if pooling is not better
    clients: dict[str, Interval]  #: gain of each client with the recommended arm
    structure: str  #: arm whose coalitions or graph are in ``partners``; "" for none
    partners: dict[str, dict[str, float]]  #: client -> those it is put together with, and the share of seeds
    avoid: list[str]  #: clients without which the others do better
    settings: dict[str, Any]  #: of the trainer, for the recommended arm

    def as_dict(self) -> dict[str, Any]:
        """Content of ``advice.json``."""
        content = asdict(self)
        for name in ("arms", "shares", "clients"):
            for key, interval in getattr(self, name).items():
                numbers = {part: None if math.isnan(value) else value for part, value in asdict(interval).items()}
                content[name][key] = numbers | {"verdict": interval.verdict}
        return content

    def trainer_arguments(self) -> dict[str, Any]:
        """Arguments of :func:`lightning_fl.federate` for the recommended arm."""
        from lightning_fl.study.advice_runs import make_callbacks

        return {**self.settings, "callbacks": make_callbacks(self.settings["callbacks"])}


def advise_on(results: Results, settings: Mapping[str, dict[str, Any]], notes: Sequence[str] = ()) -> Advice:
    """Choose an arm and answer the questions; ``settings`` are those of each arm, ``notes`` further sentences."""
    test, chosen = results.test, choose(results)
    clients = {str(name): paired_interval(of.dropna().tolist()) for name, of in test.loc[chosen].items()}
    # A graph has a model for each client: it says little about other methods.
    found = [arm for arm in results.federated if results.structures.get(arm)]
    structures = [arm for arm in found if arm == chosen or ARMS[arm].finds == "coalitions"]
    structures.sort(key=lambda arm: (arm == chosen, gain(results.validation, arm).mean), reverse=True)
    tried = [client for client in clients if {SHARED, WITHOUT + client} <= set(results.arms)]
    without = {client: gain(test.drop(columns=client), WITHOUT + client, over=SHARED) for client in tried}
    shares = _shares_of_pooling(results)
    return Advice(
        recommended=chosen,
        metric=results.metric,
        sentences=[
            *_worth(results, chosen, clients),
            *(_with_whom(results, arm) for arm in structures),
            *(f"Should the others avoid {_named(c)}? {_answer(of)} by FedAvg without it." for c, of in without.items()),
            *_pooling(results, chosen, shares),
            *notes,
        ],
        arms={arm: gain(test, arm) for arm in results.arms},
        shares=shares,
        clients=clients,
        structure=structures[0] if structures else "",
        partners=_partners(list(clients), results.structures[structures[0]]) if structures else {},
        avoid=[client for client, of in without.items() if of.verdict == "better"],
        settings=settings[chosen],
    )


def gain(gains: pd.DataFrame, arm: str, *, over: str = LOCAL) -> Interval:
    """Difference of two arms' gains, mean over clients, paired by seed."""
    return paired_interval(_differences(gains, arm, over).tolist())


def choose(results: Results) -> str:
    """The simplest arm within one standard error, over seeds, of the best one on validation data.

    The rule is that of Breiman et al. (CART, 1984), for gains over training alone: the error is that of the best arm's
    gain. Arms with fewer seeds than others, and pooled training, a reference, are not chosen.
    """
    found = {arm: gain(results.validation, arm) for arm in (LOCAL, *results.federated)}
    seeds = max(found[arm].n for arm in results.federated)
    able = {arm: of for arm, of in found.items() if of.n == seeds or arm == LOCAL}
    best = max(able.values(), key=lambda of: of.mean)
    error = best.deviation / math.sqrt(best.n) if best.n > 1 else 0.0
    # What differs in one seed alone may lie exactly one standard error apart, but for rounding.
    return next(arm for arm, of in able.items() if best.mean - of.mean <= error * (1 + 1e-9))


def suspects(structures: Mapping[str, Sequence[np.ndarray]]) -> list[int]:
    """Clients that most structures put together with nobody, although with others: the most avoided first."""
    found = [matrix for matrices in structures.values() for matrix in matrices if matrix.any()]
    shares = np.mean([matrix.any(axis=0) for matrix in found], axis=0) if found else np.array([])
    return [int(client) for client in np.argsort(shares, kind="stable") if shares[client] < 0.5][:_MOST_SUSPECTS]


def title(arm: str) -> str:
    """An arm in a sentence."""
    return ARMS[arm].title if arm in ARMS else f"FedAvg without {_named(arm.removeprefix(WITHOUT))}"


def _named(client: str) -> str:
    return f"client {client}" if client.isdigit() else client


def _differences(gains: pd.DataFrame, arm: str, over: str = LOCAL) -> "pd.Series[float]":
    """By seed, mean over clients; a client without one of both values does not count."""
    differences = cast(pd.DataFrame, gains.loc[arm]) - cast(pd.DataFrame, gains.loc[over])
    return differences.mean(axis="columns").dropna()


def _answer(found: Interval) -> str:
    """ "Yes: +0.031 [+0.010, +0.052]"."""
    return f"{_ANSWERS[found.verdict]}: {found}"


def _by_verdict(found: Mapping[str, Interval]) -> str:
    """ "2 better (north, south); 1 undecided (west)"."""
    names = {key: [name for name, of in found.items() if of.verdict == key] for key in get_args(Verdict)}
    return "; ".join(f"{len(of)} {key} ({listed(of, _MOST_NAMES)})" for key, of in names.items() if of)


def _worth(results: Results, chosen: str, clients: Mapping[str, Interval]) -> list[str]:
    """Whether federating is worth it: overall, for each client, and against the other federated arms."""
    others = {arm: gain(results.test, arm, over=chosen) for arm in results.federated if arm != chosen}
    against = {f"{title(arm)} {found}": found for arm, found in others.items()}
    how = [f"Other ways against {title(chosen)}, on test data: {_by_verdict(against)}."] if others else []
    if chosen == LOCAL:
        answer = "No" if {of.verdict for of in others.values()} == {"worse"} else "Undecided"
        return [f"Is federating worth it? {answer}: no federated way is clearly better on validation data.", *how]
    found = gain(results.test, chosen)
    seeds = f"{found.n} seeds" if found.n > 1 else "1 seed, which has no interval: run more"
    if found.verdict == "undecided" and (needed := seeds_needed(found)):
        seeds += f"; about {needed} would decide a difference of this size"
    return [
        f"Is federating worth it? {_answer(found)} {results.metric} over training alone by {title(chosen)}, the"
        f" simplest way within one standard error of the best on validation data (here on test data, mean over clients,"
        f" {seeds}).",
        f"For which clients? Each by its own interval: {_by_verdict(clients)}.",
        *how,
    ]


def _partners(names: list[str], matrices: Sequence[np.ndarray]) -> dict[str, dict[str, float]]:
    """Client -> those it is put together with, the most frequent first, and the share of seeds."""
    rows = zip(names, np.mean(matrices, axis=0), strict=True)
    return {name: {names[k]: float(row[k]) for k in np.argsort(-row, kind="stable") if row[k]} for name, row in rows}


def _with_whom(results: Results, arm: str) -> str:
    names, matrices = list(map(str, results.test)), results.structures[arm]
    together = np.mean(matrices, axis=0) > 0.5
    if (together == together.T).all():
        count, labels = connected_components(together, directed=False)
        same = (labels[:, None] == labels) & ~np.eye(len(names), dtype=bool)
        found = " and ".join(f"{{{listed(list(of), _MOST_NAMES)}}}" for _, of in pd.Series(names).groupby(labels))
        found = {1: "all clients together", len(names): "every client alone"}.get(count, found)
        found += f", exactly so in {sum((matrix == same).all() for matrix in matrices)} of {len(matrices)} seeds"
    else:
        rows = list(zip(names, together, strict=True))[:_MOST_NAMES]
        others = {name: listed([names[other] for other in np.flatnonzero(row)], 4) for name, row in rows}
        found = "; ".join(f"{name} with {texts or 'nobody'}" for name, texts in others.items())
    over = gain(results.test, arm, over=SHARED) if SHARED in results.federated else None
    against = "" if over is None else f" Better than all together (FedAvg)? {_answer(over)}."
    return f"With whom? By {title(arm)}: {found}.{against}"


def _shares_of_pooling(results: Results) -> dict[str, Interval]:
    """Federated arm -> share of pooling's gain over training alone; none if pooling is not better."""
    if POOLED not in results.arms or gain(results.test, POOLED).verdict != "better":
        return {}
    pooled = _differences(results.test, POOLED)
    pairs = {arm: _differences(results.test, arm).align(pooled, join="inner") for arm in results.federated}
    return {arm: ratio_interval(own.tolist(), of_pooled.tolist()) for arm, (own, of_pooled) in pairs.items()}


def _pooling(results: Results, chosen: str, shares: Mapping[str, Interval]) -> Iterator[str]:
    if POOLED not in results.arms:
        return
    found = gain(results.test, POOLED, over=chosen)
    yield f"Would pooling the data add anything? {_answer(found)} over {title(chosen)}."
    if reached := [f"{title(arm)} {share:.0%}" for arm, share in shares.items() if not math.isnan(share.mean)]:
        alone = f"training alone ({gain(results.test, POOLED)})"
        yield f"Share of pooling's gain over {alone} that each way reaches: {', '.join(reached)}."
