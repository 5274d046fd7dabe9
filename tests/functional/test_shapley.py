"""Shapley values against the axioms, games solved in closed form, and the losses that they approximate."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lightning_fl.core.seeding import generator
from lightning_fl.functional import FirstOrderShapley, shapley_exact, shapley_first_order, shapley_permutations

Game = Callable[[frozenset[int]], float]


def random_game(seed: int, num_players: int) -> Game:
    rng = np.random.default_rng(seed)
    values = {
        frozenset(players): float(rng.normal())
        for size in range(num_players + 1)
        for players in itertools.combinations(range(num_players), size)
    }
    return values.__getitem__


def over_all_orders(game: Game, num_players: int) -> list[float]:
    """The definition by permutations: the mean of what a player adds to those before it."""
    added = [0.0] * num_players
    for order in itertools.permutations(range(num_players)):
        for place, player in enumerate(order):
            added[player] += game(frozenset(order[: place + 1])) - game(frozenset(order[:place]))
    return [total / math.factorial(num_players) for total in added]


class TestExact:
    @pytest.mark.parametrize("num_players", [1, 2, 3, 5])
    def test_equals_the_definition_by_permutations(self, num_players):
        game = random_game(num_players, num_players)
        values = shapley_exact(game, num_players)
        assert values.dtype == torch.float64
        assert values.tolist() == pytest.approx(over_all_orders(game, num_players))

    def test_each_coalition_is_valued_once(self):
        asked: Counter[frozenset[int]] = Counter()

        def game(players: frozenset[int]) -> float:
            asked[players] += 1
            return float(len(players))

        shapley_exact(game, 6)
        assert len(asked) == 64
        assert set(asked.values()) == {1}


class TestPermutations:
    @pytest.mark.parametrize("num_permutations", [4, 6, 20])
    def test_standard_errors_are_those_of_the_pairs_means(self, num_permutations):
        """The same orders drawn by hand; the standard error of a mean is the sample's deviation over √pairs."""
        game, draws = random_game(4, 5), generator(3)
        pairs = []
        for _ in range(num_permutations // 2):
            order = torch.randperm(5, generator=draws).tolist()
            added = np.zeros((2, 5))
            for row, joining in enumerate((order, order[::-1])):
                for place, player in enumerate(joining):
                    with_player = frozenset(joining[: place + 1])
                    added[row, player] = game(with_player) - game(with_player - {player})
            pairs.append(added.mean(0))
        found = shapley_permutations(game, 5, generator(3), num_permutations=num_permutations)
        expected = np.std(pairs, axis=0, ddof=1) / math.sqrt(len(pairs))
        assert found.values.tolist() == pytest.approx(np.mean(pairs, axis=0).tolist())
        assert found.standard_errors.tolist() == pytest.approx(expected.tolist())

    def test_no_coalition_is_valued_twice(self):
        asked: Counter[frozenset[int]] = Counter()
        game = random_game(0, 4)

        def counted(players: frozenset[int]) -> float:
            asked[players] += 1
            return game(players)

        shapley_permutations(counted, 4, generator(0), num_permutations=100)
        assert set(asked.values()) == {1}


class TestFirstOrder:
    def test_by_hand(self):
        """W_M = (2.25, 2); W_i - W_M = (-2.25, -3), (0.75, 1); times (1, 2): -8.25, 2.75; times -λ."""
        found = shapley_first_order(torch.tensor([1.0, 2.0]), [0.25, 0.75], torch.tensor([[0.0, -1.0], [3.0, 3.0]]))
        assert found.tolist() == [0.25 * 8.25, -0.75 * 2.75]
        assert found.dtype == torch.float64

    @pytest.mark.parametrize("seed", range(5))
    def test_direct_formulas(self, seed):
        rng = np.random.default_rng(seed)
        gradient, models = rng.normal(size=9), rng.normal(size=(6, 9))
        weights = rng.dirichlet(np.ones(6))
        aggregate = weights @ models
        tensors = torch.from_numpy(gradient), torch.from_numpy(weights), torch.from_numpy(models)
        expected = -weights * ((models - aggregate) @ gradient)
        np.testing.assert_allclose(shapley_first_order(*tensors), expected, atol=1e-14)
        unnormalized = -weights * (models @ gradient)
        np.testing.assert_allclose(shapley_first_order(*tensors, normalized=False), unnormalized, atol=1e-14)

    def test_linear_loss(self):
        """Unnormalised values of updates are the exact ones, and sum to the drop of the loss."""
        rng = np.random.default_rng(0)
        gradient, start, updates = rng.normal(size=4), rng.normal(size=4), rng.normal(size=(5, 4))
        weights = np.array([0.1, 0.3, 0.2, 0.25, 0.15])

        def drop(players: frozenset[int]) -> float:
            inside = sorted(players)
            return float(gradient @ start - gradient @ (start + weights[inside] @ updates[inside]))

        found = shapley_first_order(
            torch.from_numpy(gradient), weights.tolist(), torch.from_numpy(updates), normalized=False
        )
        torch.testing.assert_close(found, shapley_exact(drop, 5))
        assert float(found.sum()) == pytest.approx(drop(frozenset(range(5))))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_sums_are_in_double_precision_whatever_the_dtype(self, dtype):
        draw = generator(4)
        gradient, models = torch.randn(300, generator=draw).to(dtype), torch.randn(3, 300, generator=draw).to(dtype)
        found = shapley_first_order(gradient, [1, 2, 1], models)
        torch.testing.assert_close(found, shapley_first_order(gradient.double(), [1, 2, 1], models.double()))

    def test_several_vectors_are_one(self):
        draw = generator(5)
        gradient, models = torch.randn(10, generator=draw), torch.randn(3, 10, generator=draw)
        parts = [[model[:4].double(), model[4:]] for model in models]
        found = shapley_first_order([gradient[:4].double(), gradient[4:]], [1, 2, 1], parts)
        torch.testing.assert_close(found, shapley_first_order(gradient, [1, 2, 1], models))

    def test_a_model_longer_than_a_block(self, monkeypatch):
        draw = generator(6)
        gradient, models = torch.randn(10, generator=draw), torch.randn(3, 10, generator=draw)
        whole = shapley_first_order(gradient, [1, 2, 1], models)
        monkeypatch.setattr("lightning_fl.functional.shapley._CHUNK", 4)
        torch.testing.assert_close(shapley_first_order(gradient, [1, 2, 1], models), whole)

    @pytest.mark.parametrize("normalized", [False, True])
    def test_one_client_at_a_time_in_any_order(self, normalized):
        draw = generator(7)
        gradient, models = torch.randn(10, generator=draw), torch.randn(4, 10, generator=draw)
        weights = [0.1, 0.2, 0.3, 0.4]
        direct = shapley_first_order(gradient, weights, models, normalized=normalized).tolist()
        for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
            stream = FirstOrderShapley(gradient, normalized=normalized)
            for client in order:
                stream.add(client, weights[client], models[client])
            assert stream.values() == dict(enumerate(direct))
        before = models.clone()
        shapley_first_order(gradient, weights, (model for model in models), normalized=normalized)
        assert torch.equal(models, before)
