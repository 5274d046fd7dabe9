"""Shapley values against the axioms, games solved in closed form, and the losses that they approximate."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from rounding import rounding
from scipy.stats import spearmanr

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

    @pytest.mark.parametrize("seed", range(10))
    def test_efficiency(self, seed):
        game = random_game(seed, 7)
        assert float(shapley_exact(game, 7).sum()) == pytest.approx(game(frozenset(range(7))) - game(frozenset()))

    @pytest.mark.parametrize("seed", range(5))
    def test_symmetry(self, seed):
        """Players 1 and 3 are told apart by nothing but their number."""
        inner = random_game(seed, 5)

        def game(players: frozenset[int]) -> float:
            swapped = frozenset({1: 3, 3: 1}.get(player, player) for player in players)
            return inner(players) + inner(swapped)

        values = shapley_exact(game, 5)
        assert float(values[1]) == pytest.approx(float(values[3]))

    @pytest.mark.parametrize("seed", range(5))
    def test_null_player(self, seed):
        inner = random_game(seed, 5)
        assert abs(float(shapley_exact(lambda players: inner(players - {2}), 5)[2])) == 0.0

    @pytest.mark.parametrize("seed", range(5))
    def test_linearity(self, seed):
        one, other = random_game(seed, 5), random_game(seed + 100, 5)
        joint = shapley_exact(lambda players: 2 * one(players) - 3 * other(players), 5)
        torch.testing.assert_close(joint, 2 * shapley_exact(one, 5) - 3 * shapley_exact(other, 5))

    @pytest.mark.parametrize("seed", range(3))
    def test_numbers_of_players_mean_nothing(self, seed):
        game = random_game(seed, 5)
        names = [3, 0, 4, 1, 2]
        renamed = shapley_exact(lambda players: game(frozenset(names[player] for player in players)), 5)
        torch.testing.assert_close(renamed, shapley_exact(game, 5)[names])

    def test_glove_game(self):
        """One left glove, two right ones; a pair is worth 1. The left one is missing to a pair in 4 of 6 orders."""
        values = shapley_exact(lambda players: float(0 in players and bool(players & {1, 2})), 3)
        assert values.tolist() == pytest.approx([2 / 3, 1 / 6, 1 / 6])

    def test_airport_game(self):
        """A coalition needs its longest runway; every metre is shared by those who use it (Littlechild, Owen 1973)."""
        costs = [8.0, 11.0, 13.0, 18.0]
        values = shapley_exact(lambda players: -max((costs[i] for i in players), default=0.0), 4)
        first = 8 / 4
        second = first + 3 / 3
        third = second + 2 / 2
        assert values.tolist() == pytest.approx([-first, -second, -third, -(third + 5)])

    def test_each_coalition_is_valued_once(self):
        asked: Counter[frozenset[int]] = Counter()

        def game(players: frozenset[int]) -> float:
            asked[players] += 1
            return float(len(players))

        shapley_exact(game, 6)
        assert len(asked) == 64
        assert set(asked.values()) == {1}


class TestPermutations:
    @pytest.mark.parametrize("seed", range(4))
    def test_four_standard_errors_cover_the_exact_value(self, seed):
        game = random_game(seed, 6)
        found = shapley_permutations(game, 6, generator(seed), num_permutations=400)
        assert ((found.values - shapley_exact(game, 6)).abs() <= 4 * found.standard_errors).all()
        assert (found.standard_errors < 0.1).all()

    def test_standard_errors_are_neither_too_small_nor_too_large(self):
        """The standardised errors of independent runs have variance 1; 200 runs of 5 players put it in 0.8 to 1.2."""
        game = random_game(7, 5)
        exact = shapley_exact(game, 5)
        scores = []
        for seed in range(200):
            found = shapley_permutations(game, 5, generator(seed), num_permutations=60)
            scores.append(((found.values - exact) / found.standard_errors).square())
        assert 0.8 < float(torch.stack(scores).mean()) < 1.2

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

    def test_every_estimate_is_efficient(self):
        game = random_game(3, 6)
        found = shapley_permutations(game, 6, generator(0), num_permutations=4)
        assert float(found.values.sum()) == pytest.approx(game(frozenset(range(6))) - game(frozenset()))

    def test_antithetic_pairs_solve_pairwise_games_exactly(self):
        """Where only pairs matter, a player meets each other one either in an order or in its reverse."""
        rng = np.random.default_rng(0)
        pairs = np.triu(rng.normal(size=(7, 7)), 1)

        def game(players: frozenset[int]) -> float:
            inside = sorted(players)
            return float(pairs[np.ix_(inside, inside)].sum())

        found = shapley_permutations(game, 7, generator(0), num_permutations=4)
        assert found.values.tolist() == pytest.approx(((pairs + pairs.T).sum(1) / 2).tolist())
        assert float(found.standard_errors.max()) < 1e-12

    def test_no_coalition_is_valued_twice(self):
        asked: Counter[frozenset[int]] = Counter()
        game = random_game(0, 4)

        def counted(players: frozenset[int]) -> float:
            asked[players] += 1
            return game(players)

        shapley_permutations(counted, 4, generator(0), num_permutations=100)
        assert set(asked.values()) == {1}

    def test_one_player(self):
        found = shapley_permutations(lambda players: 3.0 * len(players), 1, generator(0), num_permutations=4)
        assert found.values.tolist() == [3.0]

    def test_the_generator_decides(self):
        game = random_game(2, 6)
        first, again, other = (shapley_permutations(game, 6, generator(s), num_permutations=10) for s in (1, 1, 2))
        assert torch.equal(first.values, again.values)
        assert not torch.equal(first.values, other.values)


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

    @pytest.mark.parametrize("normalized", [False, True])
    def test_quadratic_loss_and_small_steps(self, normalized):
        """To first order the exact values: the difference shrinks with the square of the step, the order agrees."""
        rng = np.random.default_rng(3)
        num_clients, curvature = 8, rng.uniform(0.5, 2, size=6)
        optimum, start = rng.normal(size=6), rng.normal(size=6)
        weights = rng.dirichlet(np.full(num_clients, 5.0))
        directions = rng.normal(size=(num_clients, 6))

        def loss(model: np.ndarray) -> float:
            return float(curvature @ (model - optimum) ** 2) / 2

        def gap(step: float) -> tuple[float, float]:
            updates = step * directions

            def drop(players: frozenset[int]) -> float:
                inside = sorted(players)
                if not inside:
                    return 0.0
                total = weights[inside].sum() if normalized else 1.0
                return loss(start) - loss(start + weights[inside] @ updates[inside] / total)

            gradient = curvature * (start + weights @ updates - optimum)
            found = shapley_first_order(
                torch.from_numpy(gradient), weights.tolist(), torch.from_numpy(updates), normalized=normalized
            )
            exact = shapley_exact(drop, num_clients)
            return float((found - exact).abs().max()), float(spearmanr(found, exact).statistic)

        if normalized:  # a leave-one-out effect, not a division of the whole drop: the order is what it is for
            assert gap(0.01)[1] > 0.9
        else:
            assert gap(0.001)[0] < gap(0.01)[0] / 90
            assert gap(0.01)[1] == pytest.approx(1.0)

    def test_identical_clients_are_worth_the_same_nothing(self):
        same = torch.randn(5, generator=generator(0)).expand(4, 5)
        found = shapley_first_order(torch.randn(5, generator=generator(1)), [0.1, 0.2, 0.3, 0.4], same)
        assert found.abs().max() < rounding(torch.float64, 5)  # sums of five products of about 1

    def test_normalised_values_sum_to_zero_and_need_no_common_origin(self):
        draw = generator(0)
        gradient, models = torch.randn(7, generator=draw), torch.randn(3, 7, generator=draw, dtype=torch.float64)
        found = shapley_first_order(gradient, [2, 5, 3], models)
        assert abs(float(found.sum())) < rounding(torch.float64, 7)  # values are sums of seven products of about 1
        origin = torch.randn(7, generator=draw, dtype=torch.float64)
        torch.testing.assert_close(shapley_first_order(gradient, [2, 5, 3], models - origin), found)
        torch.testing.assert_close(shapley_first_order(gradient, [0.2, 0.5, 0.3], models), found)

    def test_a_client_that_went_the_wrong_way_is_worth_least(self):
        gradient = torch.tensor([1.0, -1.0])
        steps = -0.1 * gradient.expand(4, 2) * torch.tensor([[1.0], [1.1], [-1.0], [0.9]])
        for normalized in (True, False):
            assert int(shapley_first_order(gradient, [1, 1, 1, 1], steps, normalized=normalized).argmin()) == 2

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
