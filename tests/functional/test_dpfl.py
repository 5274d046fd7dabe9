"""DPFL's double greedy against the paper's pseudocode, on sets and on running sums of models."""

import itertools
import math
import random
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from lightning_fl.core.seeding import generator, shuffled
from lightning_fl.functional.dpfl import batched_greedy_collaborators, greedy_collaborators

Reward = Callable[[frozenset[int]], float]


def plain_ggc(reward: Reward, candidates: Sequence[int], budget: int | None, draws: torch.Generator) -> list[int]:
    """Algorithm 2 as written: four rewards a candidate, sets made afresh."""
    order = shuffled(candidates, draws)
    x: set[int] = set()
    y = set(order)
    uniform = torch.rand(len(order), dtype=torch.float64, generator=draws).tolist() if order and budget != 0 else []
    for j, draw in zip(order, uniform, strict=False):
        a = max(reward(frozenset(x | {j})) - reward(frozenset(x)), 0)
        b = max(reward(frozenset(y - {j})) - reward(frozenset(y)), 0)
        if draw < (1 if a + b == 0 else a / (a + b)):
            x.add(j)
        else:
            y.remove(j)
        if len(x) == budget:
            break
    return sorted(x)


def random_reward(rng: np.random.Generator, num_clients: int) -> Reward:
    """Any function of a set: neither monotone nor submodular."""
    values = {
        frozenset(chosen): float(rng.normal())
        for size in range(num_clients + 1)
        for chosen in itertools.combinations(range(num_clients), size)
    }
    return values.__getitem__


def test_it_decides_as_the_pseudocode_does():
    for seed in range(60):
        assert_decisions_of_the_pseudocode(seed)


def assert_decisions_of_the_pseudocode(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_clients = int(rng.integers(0, 8))
    reward = random_reward(rng, num_clients)
    candidates = [int(i) for i in rng.permutation(num_clients)]
    budget = None if seed % 3 == 0 else int(rng.integers(0, num_clients + 2))
    found = greedy_collaborators(reward, candidates, budget, generator(seed))
    assert found.chosen == plain_ggc(reward, candidates, budget, generator(seed))
    assert (found.reward, found.reward_alone) == (reward(frozenset(found.chosen)), reward(frozenset()))
    assert budget is None or len(found.chosen) <= budget
    assert found.never_worse == (found.chosen if found.reward >= found.reward_alone else [])
    assert reward(frozenset(found.never_worse)) >= reward(frozenset())


@pytest.mark.parametrize("budget", [None, 0, 3])
def test_two_rewards_a_candidate(budget):
    seen: list[frozenset[int]] = []

    def reward(chosen: frozenset[int]) -> float:
        seen.append(chosen)
        return -float(len(chosen))

    found = greedy_collaborators(reward, range(6), budget, generator(0))
    assert found.chosen == []
    assert len(seen) == len(set(seen)) == (1 if budget == 0 else 2 * 6)  # of the last one both are known
    assert seen[0] == frozenset()


def test_remark_3_of_the_paper_fails_in_a_sixth_of_random_games():
    """Sets of four candidates with independent uniform rewards; which of them is worse than nobody is drawn, too."""
    worse = 0
    for game in range(400):
        draws = random.Random(game)
        rewards = {frozenset(s): draws.random() for k in range(5) for s in itertools.combinations(range(4), k)}
        found = greedy_collaborators(rewards.__getitem__, list(range(4)), None, generator(game, "game"))
        worse += found.reward < found.reward_alone
        assert rewards[frozenset(found.never_worse)] >= found.reward_alone
    assert worse == pytest.approx(400 / 6, abs=4 * math.sqrt(400 * 5 / 36))


def test_the_rule_may_choose_to_a_clients_loss_and_nobody_is_never_worse():
    reward = {frozenset(): 0.0, frozenset({0}): -1.0, frozenset({1}): -3.0, frozenset({0, 1}): -2.0}.__getitem__
    found = [greedy_collaborators(reward, [0, 1], None, generator(seed)) for seed in range(50)]
    # 0 first: it harms X, and Y without it is worse: a = b = 0, kept; then 1 goes. 1 first: it goes, and then 0 does.
    assert {(*one.chosen, one.reward) for one in found} == {(0, -1.0), (0.0,)}
    assert all(one.never_worse == [] and one.reward_alone == 0.0 for one in found)


@pytest.mark.parametrize("worst", [math.nan, -math.inf])
def test_a_model_that_explodes_is_not_chosen(worst):
    def reward(chosen: frozenset[int]) -> float:
        return worst if 2 in chosen else float(len(chosen))

    for seed in range(10):
        assert greedy_collaborators(reward, range(4), None, generator(seed)).chosen == [0, 1, 3]


class Clients:
    """Quadratic validation losses around each client's own optimum, and how many foreign models are held."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.number = int(rng.integers(2, 14))
        self.models = [torch.from_numpy(rng.normal(size=7).astype(np.float32)) for _ in range(self.number)]
        self.weights = {i: float(rng.integers(1, 500)) for i in range(self.number)}
        self.optimum = torch.from_numpy(rng.normal(size=7))
        self.held: list[weakref.ref[torch.Tensor]] = []
        self.most_held = 0
        self.fetched: list[list[int]] = []

    def evaluate(self, vectors: list[torch.Tensor]) -> float:
        assert [vector.dtype for vector in vectors] == [torch.float32]
        return -float((vectors[0].double() - self.optimum).square().sum())

    def reward(self, chosen: frozenset[int]) -> float:
        """R(S) afresh; client 0 chooses."""
        members = [0, *chosen]
        total = sum(self.weights[i] for i in members)
        return self.evaluate([(sum(self.weights[i] * self.models[i].double() for i in members) / total).float()])

    def fetch(self, batch: Sequence[int]) -> list[list[torch.Tensor]]:
        self.fetched.append(list(batch))
        assert sum(one() is not None for one in self.held) == 0  # the last batch is gone
        copies = [self.models[i].clone() for i in batch]
        self.held = [weakref.ref(copy) for copy in copies]
        self.most_held = max(self.most_held, len(copies))
        return [[copy] for copy in copies]


@pytest.mark.slow
def test_theorem_1():
    """GGC and BGGC with one seed choose the same set, and BGGC never holds more than B_c foreign models."""
    for seed in range(200):
        assert_theorem_1(seed)


def assert_theorem_1(seed: int) -> None:
    clients = Clients(seed)
    others = list(range(1, clients.number))
    budget = [None, 1, 2, 3, 5, 20][seed % 6]
    own = [clients.models[0]]
    found = batched_greedy_collaborators(
        clients.evaluate, own, others, clients.weights, clients.weights[0], clients.fetch, budget, generator(seed)
    )
    assert found.chosen == plain_ggc(clients.reward, others, budget, generator(seed))
    assert found.never_worse == greedy_collaborators(clients.reward, others, budget, generator(seed)).never_worse
    assert found.reward == pytest.approx(clients.reward(frozenset(found.chosen)), rel=1e-5)
    assert found.reward_alone == clients.reward(frozenset())
    assert clients.most_held <= (len(others) if budget is None else budget)
    assert len(found.chosen) <= (len(others) if budget is None else budget)
    total = [sum(clients.weights[i] * model.double() for i, model in enumerate(clients.models))]
    clients.fetched, clients.held = [], []
    again = batched_greedy_collaborators(
        clients.evaluate, own, others, clients.weights, clients.weights[0], clients.fetch, budget, generator(seed),
        batch_size=2, everybody=total,
    )  # fmt: skip
    assert again.chosen == found.chosen
    assert all(len(batch) <= 2 for batch in clients.fetched)
    assert len(set(itertools.chain(*clients.fetched))) == sum(map(len, clients.fetched))  # one pass, nobody twice


def test_own_models_and_given_sums_are_left_alone():
    clients = Clients(3)
    own, total = [clients.models[0]], [sum(clients.weights[i] * m.double() for i, m in enumerate(clients.models))]
    before, sum_before = own[0].clone(), total[0].clone()
    batched_greedy_collaborators(
        clients.evaluate, own, range(1, clients.number), clients.weights, clients.weights[0], clients.fetch, None,
        generator(0), everybody=total,
    )  # fmt: skip
    assert torch.equal(own[0], before)
    assert torch.equal(total[0], sum_before)


def test_nobody_to_choose_from():
    assert greedy_collaborators(lambda chosen: 1.5, [], None, generator(0)) == ([], 1.5, 1.5)
