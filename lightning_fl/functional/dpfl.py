"""The mathematics of DPFL: a client's collaborators, chosen greedily on its own validation data.

Kharrat, Canini, Horváth, "DPFL: Decentralized Personalized Federated Learning", AISTATS 2025,
https://arxiv.org/abs/2406.06520, equations 6 to 8, algorithms 2 (GGC) and 3 (BGGC), theorem 1.

=================  ==========================================================  ==================
paper              here                                                        shape
=================  ==========================================================  ==================
k, S               the client, ``candidates``                                  [n] client numbers
p_i                ``weights``, any multiple of the sample counts              [n]
w_i                ``own``, what ``fetch`` returns: a model's vectors          [P] each
B_c                ``budget``, most collaborators; ``None`` for no limit
R(S)               ``reward``, minus the validation loss of the average over   number, larger is better
                   S and k
X, Y               collaborators so far; X and all undecided candidates
w^X, w^Y           running sums ``sum p_i w_i`` in double precision            [P]
=================  ==========================================================  ==================

Both algorithms go through the shuffled candidates and keep or drop each by the gains of adding it to X and of removing
it from Y (a randomised double greedy). R(X) and R(Y) carry over to the next candidate, so n candidates cost 2n + 2
rewards.

The rule keeps a candidate that neither helps X nor harms Y (a = b = 0), even one that harms both, so the chosen set may
have a smaller reward than the empty set: remark 3 of the paper, that it "returns a set no worse than the empty set with
probability 1", does not hold for the algorithm as given. Of 400 games of four candidates with independent uniform
rewards of sets it is worse in 68. ``Collaborators.never_worse`` is empty then.

Differs from the paper: B_c counts collaborators without the client itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import shuffled
from lightning_fl.core.validation import Size, checked

__all__ = ["Collaborators", "batched_greedy_collaborators", "double_greedy", "greedy_collaborators"]

#: The vectors of one model, floating-point, one per dtype.
Model = Sequence[Tensor]


class Collaborators(NamedTuple):
    """A client's choice."""

    chosen: list[int]
    """The set X of the double greedy, ascending."""
    reward: float
    """R(X)."""
    reward_alone: float
    """R of the empty set."""

    @property
    def never_worse(self) -> list[int]:
        """``chosen``, or the empty list if the empty set has the larger reward."""
        return self.chosen if self.reward >= self.reward_alone else []


class MarginalRewards(Protocol):
    """Rewards for the double greedy; holds X and Y."""

    def alone(self) -> float:
        """R(X) at the start."""

    def everybody(self) -> float:
        """R(Y) at the start."""

    def added(self, candidate: int) -> float:
        """R(X with the candidate)."""

    def removed(self, candidate: int) -> float:
        """R(Y without the candidate)."""

    def keep(self, candidate: int) -> None:
        """Add the candidate to X."""

    def drop(self, candidate: int) -> None:
        """Remove the candidate from Y."""


def double_greedy(
    rewards: MarginalRewards, candidates: Sequence[int], budget: int | None, generator: torch.Generator
) -> Collaborators:
    """Decide on every candidate (algorithm 2).

    A candidate is kept with probability ``a / (a + b)``, 1 if both are 0, with ``a = max(R(X + j) - R(X), 0)`` and
    ``b = max(R(Y - j) - R(Y), 0)``. A reward of NaN counts as the worst.

    Args:
        rewards: starts with X empty and Y = all candidates.
        candidates: in the order of the decisions (see :func:`shuffled`).
        budget: most collaborators; the function returns once they are chosen.
        generator: one uniform draw per candidate.
    """
    reward_alone = reward = _worst_if_nan(rewards.alone())
    chosen: list[int] = []
    if not candidates or budget == 0:
        return Collaborators(chosen, reward, reward_alone)
    of_rest = _worst_if_nan(rewards.everybody())
    draws = torch.rand(len(candidates), dtype=torch.float64, generator=generator).tolist()
    last = candidates[-1]
    for candidate, draw in zip(candidates, draws, strict=True):
        if candidate == last:  # X with it is Y, and Y without it is X
            with_it, without_it = of_rest, reward
        else:
            with_it, without_it = _worst_if_nan(rewards.added(candidate)), _worst_if_nan(rewards.removed(candidate))
        if draw < _probability(_gain(with_it, reward), _gain(without_it, of_rest)):
            rewards.keep(candidate)
            chosen.append(candidate)
            reward = with_it
            if len(chosen) == budget:
                break
        else:
            rewards.drop(candidate)
            of_rest = without_it
    return Collaborators(sorted(chosen), reward, reward_alone)


def greedy_collaborators(
    reward: Callable[[frozenset[int]], float],
    candidates: Sequence[int],
    budget: int | None,
    generator: torch.Generator,
) -> Collaborators:
    """Choose collaborators by greedy graph construction (GGC, algorithm 2).

    Args:
        reward: of a set of collaborators, larger is better; called at most 2n times.
        candidates: clients to choose from, without the client itself; n of them.
        budget: B_c, the most collaborators; ``None`` for no limit.
        generator: of the order and of the draws.
    """
    _check(candidates, budget)
    order = shuffled(candidates, generator)
    return double_greedy(_SetRewards(reward, order), order, budget, generator)


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
        candidates: clients to choose from, without the client itself.
        weights: candidate -> p_i > 0.
        own_weight: p_k > 0.
        fetch: returns the models of some candidates; earlier results are released before each call.
        budget: B_c, the most collaborators; ``None`` for no limit.
        generator: of the order and of the draws; an equal one gives the set of :func:`greedy_collaborators`.
        batch_size: models fetched at a time; B_c by default, all if there is no budget.
        everybody: ``p_k w_k + sum_i p_i w_i`` over all candidates, float64, if known; saves the first pass.
    """
    _check(candidates, budget)
    bad = [client for client in candidates if not weights[client] > 0]
    if bad or not own_weight > 0:
        raise ConfigurationError(f"weights of clients {bad or 'itself'} are not positive: give them samples.")
    order = shuffled(candidates, generator)
    size = batch_size or budget or max(len(order), 1)
    rewards = _RunningRewards(evaluate, own, own_weight, weights, order, fetch, size, everybody)
    return double_greedy(rewards, order, budget, generator)


class _SetRewards:
    """Rewards of sets."""

    def __init__(self, reward: Callable[[frozenset[int]], float], candidates: Sequence[int]) -> None:
        self._reward = reward
        self._chosen: frozenset[int] = frozenset()
        self._rest = frozenset(candidates)

    def alone(self) -> float:
        return self._reward(self._chosen)

    def everybody(self) -> float:
        return self._reward(self._rest)

    def added(self, candidate: int) -> float:
        return self._reward(self._chosen | {candidate})

    def removed(self, candidate: int) -> float:
        return self._reward(self._rest - {candidate})

    def keep(self, candidate: int) -> None:
        self._chosen |= {candidate}

    def drop(self, candidate: int) -> None:
        self._rest -= {candidate}


class _RunningRewards:
    """Rewards of averages, from w^X and w^Y."""

    def __init__(
        self,
        evaluate: Callable[[list[Tensor]], float],
        own: Model,
        own_weight: float,
        weights: Mapping[int, float],
        order: list[int],
        fetch: Callable[[Sequence[int]], Sequence[Model]],
        size: int,
        everybody: Model | None,
    ) -> None:
        self._evaluate = evaluate
        self._weights = weights
        self._order = order
        self._fetch = fetch
        self._size = size
        self._dtypes = [vector.dtype for vector in own]
        self._chosen = _Sum([vector.double() * own_weight for vector in own], own_weight)
        total = own_weight + math.fsum(weights[client] for client in order)
        self._rest = _Sum([] if everybody is None else [vector.double().clone() for vector in everybody], total)
        self._batch: dict[int, Model] = {}

    def alone(self) -> float:
        return self._value(self._chosen.vectors, self._chosen.weight)

    def everybody(self) -> float:
        if not self._rest.vectors:
            self._rest = _Sum([vector.clone() for vector in self._chosen.vectors], self._chosen.weight)
            for candidate in self._order:
                self._rest.add_(self._model(candidate), self._weights[candidate])
        return self._value(self._rest.vectors, self._rest.weight)

    def added(self, candidate: int) -> float:
        return self._value_with(self._chosen, candidate, self._weights[candidate])

    def removed(self, candidate: int) -> float:
        return self._value_with(self._rest, candidate, -self._weights[candidate])

    def keep(self, candidate: int) -> None:
        self._chosen.add_(self._model(candidate), self._weights[candidate])

    def drop(self, candidate: int) -> None:
        self._rest.add_(self._model(candidate), -self._weights[candidate])

    def _model(self, candidate: int) -> Model:
        if candidate not in self._batch:
            first = self._order.index(candidate)
            batch = self._order[first : first + self._size]
            self._batch = {}  # release the last models first
            self._batch = dict(zip(batch, self._fetch(batch), strict=True))
        return self._batch[candidate]

    def _value_with(self, total: "_Sum", candidate: int, weight: float) -> float:
        pairs = zip(total.vectors, self._model(candidate), strict=True)
        return self._value([vector.add(other, alpha=weight) for vector, other in pairs], total.weight + weight)

    def _value(self, vectors: list[Tensor], weight: float) -> float:
        return self._evaluate([(v / weight).to(dtype) for v, dtype in zip(vectors, self._dtypes, strict=True)])


class _Sum:
    """``sum p_i w_i`` in float64, and ``sum p_i``."""

    def __init__(self, vectors: list[Tensor], weight: float) -> None:
        self.vectors = vectors
        self.weight = weight

    def add_(self, model: Model, weight: float) -> None:
        for vector, other in zip(self.vectors, model, strict=True):
            vector.add_(other, alpha=weight)
        self.weight += weight


@checked
def _check(candidates: Sequence[int], budget: Size | None) -> None:
    if len(set(candidates)) != len(candidates):
        raise ConfigurationError(f"candidates={list(candidates)}: name each client once.")


def _probability(a: float, b: float) -> float:
    """Probability of keeping a candidate."""
    if math.isinf(a) or math.isinf(b):
        return 0.5 if a == b else float(a > b)
    return 1.0 if a + b == 0 else a / (a + b)


def _gain(new: float, old: float) -> float:
    """Increase of the reward, at least 0; two infinite losses are equal."""
    return 0.0 if new <= old else new - old


def _worst_if_nan(reward: float) -> float:
    return -math.inf if math.isnan(reward) else reward
