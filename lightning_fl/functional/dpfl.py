"""The mathematics of DPFL: a client's collaborators, chosen greedily on its own validation data.

Kharrat, Canini, Horváth, "DPFL: Decentralized Personalized Federated Learning", AISTATS 2025,
https://arxiv.org/abs/2406.06520, equations 6 to 8, algorithms 2 (GGC) and 3 (BGGC), theorem 1.

The reward R(S) of a set of collaborators is minus the validation loss of the average over S and the client. Both
algorithms go through the shuffled candidates and keep or drop each by the gains of adding it to X, the collaborators so
far, and of removing it from Y, which has all undecided candidates too (a randomised double greedy). R(X) and R(Y) carry
over to the next candidate, and of the last one both are known, so n candidates cost 2n rewards.

The rule keeps a candidate that neither helps X nor harms Y (a = b = 0), even one that harms both, so the chosen set may
have a smaller reward than the empty set: remark 3 of the paper, that it "returns a set no worse than the empty set with
probability 1", does not hold for the algorithm as given. Of 400 games of four candidates with independent uniform
rewards of sets it is worse in 68. ``Collaborators.never_worse`` is empty then.

B_c counts collaborators without the client, as in equations 3 and 8; in algorithms 2 and 3 X includes it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import shuffled
from lightning_fl.core.validation import Size, checked

#: The vectors of one model, floating-point, one per dtype.
Model = Sequence[Tensor]
State = TypeVar("State")


class Collaborators(NamedTuple):
    """A client's choice."""

    chosen: list[int]  #: the set X of the double greedy, ascending
    reward: float  #: R(X)
    reward_alone: float  #: R of the empty set

    @property
    def never_worse(self) -> list[int]:
        """``chosen``, or the empty list if the empty set has the larger reward."""
        return self.chosen if self.reward >= self.reward_alone else []


def double_greedy(
    value: Callable[[State], float],
    change: Callable[[State, int, int], State],
    alone: State,
    everybody: Callable[[], State],
    candidates: Sequence[int],
    budget: int | None,
    generator: torch.Generator,
) -> Collaborators:
    """Decide on every candidate (algorithm 2).

    A candidate is kept with probability ``a / (a + b)``, 1 if both are 0, with ``a = max(R(X + j) - R(X), 0)`` and
    ``b = max(R(Y - j) - R(Y), 0)``. A reward of NaN counts as the worst.

    Args:
        value: R of what stands for a set.
        change: that of the set with a candidate (1) or without it (-1); leaves its argument unchanged.
        alone: that of X at the start, the empty set.
        everybody: returns that of Y at the start, all candidates; only called if there is a choice.
        candidates: in the order of the decisions (see :func:`shuffled`).
        budget: most collaborators; the function returns once they are chosen.
    """

    def worth(members: State) -> float:
        reward = value(members)
        return -math.inf if math.isnan(reward) else reward

    reward_alone = reward = worth(alone)
    chosen: list[int] = []
    if not candidates or budget == 0:
        return Collaborators(chosen, reward, reward_alone)
    rest = everybody()
    of_rest = worth(rest)
    draws = torch.rand(len(candidates), dtype=torch.float64, generator=generator).tolist()
    for candidate, draw in zip(candidates, draws, strict=True):
        larger, smaller = change(alone, candidate, 1), change(rest, candidate, -1)
        if candidate == candidates[-1]:  # X with it is Y, and Y without it is X
            with_it, without_it = of_rest, reward
        else:
            with_it, without_it = worth(larger), worth(smaller)
        if draw < _probability(_gain(with_it, reward), _gain(without_it, of_rest)):
            alone, reward = larger, with_it
            chosen.append(candidate)
            if len(chosen) == budget:
                break
        else:
            rest, of_rest = smaller, without_it
    return Collaborators(sorted(chosen), reward, reward_alone)


def greedy_collaborators(
    reward: Callable[[frozenset[int]], float], candidates: Sequence[int], budget: int | None, generator: torch.Generator
) -> Collaborators:
    """Choose collaborators by greedy graph construction (GGC, algorithm 2).

    Args:
        reward: of a set of collaborators, larger is better; called at most 2n times.
        candidates: n clients to choose from, without the client itself.
        budget: B_c, the most collaborators; ``None`` for no limit.
    """
    _check(candidates, budget)
    order, none = shuffled(candidates, generator), frozenset[int]()

    def change(members: frozenset[int], candidate: int, sign: int) -> frozenset[int]:
        return members | {candidate} if sign > 0 else members - {candidate}

    return double_greedy(reward, change, none, lambda: frozenset(order), order, budget, generator)


def batched_greedy_collaborators(
    evaluate: Callable[[list[Tensor]], float],
    own: Model,
    candidates: Sequence[int],
    weights: Mapping[int, float],
    own_weight: float,
    fetch: Callable[[Sequence[int]], Sequence[Model]],
    budget: int | None,
    generator: torch.Generator,
    *,
    batch_size: int | None = None,
    everybody: Model | None = None,
) -> Collaborators:
    """Choose the same set from running sums of models that come in batches (BGGC, algorithm 3; theorem 1).

    A first pass sums all models, a second one decides. Only the models of one batch are held at a time.

    Args:
        evaluate: the reward of a model, as its vectors in their own dtypes; larger is better.
        own: the client's own model.
        weights: candidate -> p_i > 0.
        own_weight: p_k > 0.
        fetch: returns the models of some candidates; earlier results are released before each call.
        generator: of the order and of the draws; an equal one gives the set of :func:`greedy_collaborators`.
        batch_size: models fetched at a time; B_c by default, all if there is no budget.
        everybody: ``p_k w_k + sum_i p_i w_i`` over all candidates, float64, if known; saves the first pass.
    """
    _check(candidates, budget)
    bad = [client for client in candidates if not weights[client] > 0]
    if bad or not own_weight > 0:
        raise ConfigurationError(f"weights of clients {bad}, own_weight={own_weight}: must be above 0; give samples.")
    order = shuffled(candidates, generator)
    size = batch_size or budget or max(len(order), 1)
    held: dict[int, Model] = {}

    def model(candidate: int) -> Model:
        if candidate not in held:
            first = order.index(candidate)
            held.clear()  # release the last models first
            batch = order[first : first + size]
            held.update(zip(batch, fetch(batch), strict=True))
        return held[candidate]

    def change(total: _Sum, candidate: int, sign: int) -> _Sum:
        weight = sign * weights[candidate]
        pairs = zip(total.vectors, model(candidate), strict=True)
        return _Sum([vector.add(other, alpha=weight) for vector, other in pairs], total.weight + weight)

    def value(total: _Sum) -> float:
        return evaluate([(v / total.weight).to(of.dtype) for v, of in zip(total.vectors, own, strict=True)])

    alone = _Sum([vector.double() * own_weight for vector in own], own_weight)

    def all_of_them() -> _Sum:
        if everybody is not None:
            return _Sum(everybody, own_weight + math.fsum(weights[client] for client in order))
        return reduce(lambda total, candidate: change(total, candidate, 1), order, alone)

    return double_greedy(value, change, alone, all_of_them, order, budget, generator)


class _Sum(NamedTuple):
    """``sum p_i w_i`` in float64, and ``sum p_i``."""

    vectors: Model
    weight: float


@checked
def _check(candidates: Sequence[int], budget: Size | None) -> None:
    if len(set(candidates)) != len(candidates):
        raise ConfigurationError(f"candidates={list(candidates)}: name each client once.")


def _probability(a: float, b: float) -> float:
    if math.isinf(a) or math.isinf(b):
        return 0.5 if a == b else float(a > b)
    return 1.0 if a + b == 0 else a / (a + b)


def _gain(new: float, old: float) -> float:
    """Increase of the reward, at least 0; two infinite losses are equal."""
    return 0.0 if new <= old else new - old
