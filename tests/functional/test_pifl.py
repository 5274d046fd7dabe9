"""PI-FL's importance weights, bids and scheduler against tables worked by hand."""

import math

import numpy as np
import pytest
import torch

from lightning_fl.core.seeding import generator
from lightning_fl.functional import choose_bids, importance_weights, mixture_weights, schedule, standings


def float64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestImportanceAndMixtureWeights:
    def test_a_share_is_the_score(self):
        values = float64(0.1, 0.3)  # they sum to less than 1
        assert importance_weights("acc", values, True).tolist() == [0.1, 0.3]
        assert mixture_weights(values, True).tolist() == pytest.approx([0.25, 0.75])
        assert mixture_weights(float64(0.375, 0.125, 0.0), True).tolist() == [0.75, 0.25, 0.0]

    def test_a_loss_scores_its_exponential(self):
        """Losses 0 and log 3 score 1 and 1/3, of which the mixture is 3/4 and 1/4."""
        losses = float64(0.0, math.log(3))
        assert importance_weights("loss", losses, False).tolist() == pytest.approx([1, 1 / 3])
        assert mixture_weights(losses, False).tolist() == pytest.approx([0.75, 0.25])

    @pytest.mark.parametrize(
        ("losses", "mixture"),
        [
            ((2000.0, 2001.0), (1 / (1 + math.exp(-1)), 1 / (1 + math.e))),
            ((1.0, math.nan), (1.0, 0.0)),
            ((1.0, math.inf), (1.0, 0.0)),
            ((math.inf, math.nan), (0.5, 0.5)),
        ],
    )
    def test_losses_too_large_for_a_score_still_tell_tiers_apart(self, losses, mixture):
        assert importance_weights("loss", float64(*losses), False)[1] == 0
        assert mixture_weights(float64(*losses), False).tolist() == pytest.approx(mixture)

    def test_a_model_that_diverged_is_the_worst(self):
        values = float64(0.2, math.nan, 0.6)
        assert importance_weights("acc", values, True).tolist() == [0.2, 0.0, 0.6]
        assert mixture_weights(values, True).tolist() == pytest.approx([0.25, 0.0, 0.75])

    def test_where_all_tiers_are_worthless_each_counts_the_same(self):
        for worthless in (float64(0.0, 0.0, 0.0), float64(0.0, math.nan, 0.0)):
            assert mixture_weights(worthless, True).tolist() == [1 / 3] * 3

    def test_a_rounding_error_of_the_metric_is_cut_off(self):
        values = float64(1 + 1e-7, 0.5)
        assert importance_weights("acc", values, True).tolist() == [1.0, 0.5]
        assert mixture_weights(values, True).tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-15)


class TestBids:
    @pytest.mark.parametrize(
        ("importance", "rewards", "threshold", "bids"),
        [
            ([0.9, 0.1, 0.6], [0, 50, 20], 0.5, [2, 0]),  # rewards decide among the tiers worth it
            ([0.6, 0.1, 0.9], [0, 0, 0], 0.5, [2, 0]),  # nothing earned yet: the better fit
            ([0.6, 0.6, 0.6], [0, 0, 0], 0.5, [0, 1, 2]),  # nothing to choose by: the number
            ([0.9, 0.8, 0.7], [1, 2, 3], 0.5, [2, 1, 0]),
            ([0.9, 0.8], [-5, 0], 0.5, [1, 0]),  # a tier that lost money comes after one not tried
            ([0.5, 0.4], [9, 9], 0.5, []),  # the threshold is not enough
            ([0.5, 0.0], [0, 0], 0.0, [0]),
        ],
    )
    def test_by_hand(self, importance, rewards, threshold, bids):
        assert choose_bids(importance, rewards, threshold) == bids


class TestSchedule:
    PSI = {0: 0.1, 1: -0.3, 2: 0.7, 3: 0.2, 4: 0.4, 5: 0.9}  # noqa: RUF012

    def test_best_first_then_at_random_from_the_other_bidders(self):
        found = schedule(dict.fromkeys([0, 1, 2, 3, 4], 1), self.PSI, 2, 2, generator(0))
        assert found.best == [2, 4]  # 5 is worth more, but did not bid
        assert len(found.random) == 2
        assert set(found.random) < {0, 1, 3}
        assert found.clients == sorted([2, 4, *found.random])

    def test_at_random_from_all_available(self):
        drawn: set[int] = set()
        for seed in range(50):
            found = schedule(dict.fromkeys([0, 1, 2], 1), self.PSI, 2, 2, generator(seed), available=range(6))
            assert found.best == [2, 0]
            assert len(set(found.clients)) == 4
            drawn.update(found.random)
        assert drawn == {1, 3, 4, 5}

    def test_every_other_bidder_has_the_same_chance(self):
        """500 draws of 1 from 4, a client's count has mean 125 and standard deviation 9.7."""
        counts = np.zeros(6)
        for seed in range(500):
            counts[schedule(dict.fromkeys(range(6), 1), self.PSI, 2, 1, generator(seed)).random] += 1
        assert set(np.flatnonzero(counts)) == {0, 1, 3, 4}
        assert (np.abs(counts[[0, 1, 3, 4]] - 125) < 40).all()

    def test_fewer_than_asked_for(self):
        assert schedule(dict.fromkeys([4, 1], 1), self.PSI, 3, 3, generator(0)) == ([4, 1], [])
        assert schedule(dict.fromkeys([4, 1], 1), self.PSI, 1, 3, generator(0)) == ([4], [1])
        assert schedule({}, self.PSI, 3, 3, generator(0)) == ([], [])
        assert schedule({}, {}, 3, 2, generator(0), available=[8]) == ([], [8])

    def test_who_prefers_the_tier_comes_before_who_contributes_more(self):
        """S_c = sort(theta, psi): by the place of the tier among the bids, then by contribution."""
        bidders = {0: 2, 1: 1, 2: 2, 3: 1, 4: 3}
        assert schedule(bidders, self.PSI, 5, 0, generator(0)).best == [3, 1, 2, 0, 4]

    @pytest.mark.parametrize("seed", range(3))
    def test_against_the_sort_in_plain_words(self, seed):
        draw = generator(seed)
        places = dict(enumerate((torch.randint(1, 4, (12,), generator=draw)).tolist()))
        psi = dict(enumerate(torch.rand(12, generator=draw).tolist()))
        expected = []
        for place in (1, 2, 3):
            group = [client for client in places if places[client] == place]
            while group:
                largest = max(group, key=psi.__getitem__)
                group.remove(largest)
                expected.append(largest)
        assert schedule(places, psi, 7, 0, draw).best == expected[:7]

    def test_a_client_never_seen_counts_as_average(self):
        assert schedule(dict.fromkeys([1, 0, 9], 1), self.PSI, 3, 0, generator(0)).best == [0, 9, 1]

    def test_ties_are_broken_by_the_generator(self):
        firsts = [schedule(dict.fromkeys(range(4), 1), {}, 1, 0, generator(seed)).best[0] for seed in range(100)]
        assert set(firsts) == {0, 1, 2, 3}

    def test_the_generator_decides_and_the_order_of_clients_does_not(self):
        one = schedule(dict.fromkeys([0, 1, 2, 3, 4], 1), {}, 2, 1, generator(3), available=[6, 5])
        same = schedule(dict.fromkeys([3, 1, 4, 0, 2], 1), {}, 2, 1, generator(3), available=[5, 6])
        assert one == same
        assert len({tuple(schedule(dict.fromkeys(range(8), 1), {}, 2, 2, generator(s)).clients) for s in range(10)}) > 1


class TestStandings:
    def test_by_rank_within_the_round_whatever_the_size_of_the_values(self):
        """An early round has large values; the client that is best in a late one still stands higher."""
        history = [(2, {0: 900.0, 1: 100.0, 2: 500.0}), (20, {3: 0.003, 4: 0.001})]
        assert standings(history, 21, 1.0) == {0: 1.0, 1: -1.0, 2: 0.0, 3: 1.0, 4: -1.0}

    def test_they_fade_by_rounds_since(self):
        assert standings([(3, {7: 1.0, 5: 0.0})], 4, 0.5) == {5: -1.0, 7: 1.0}
        assert standings([(3, {7: 1.0, 5: 0.0})], 6, 0.5) == {5: -0.25, 7: 0.25}
        assert standings([(3, {7: 1.0, 5: 0.0})], 4, 0.0) == {5: -1.0, 7: 1.0}
        assert standings([(3, {7: 1.0, 5: 0.0})], 5, 0.0) == {5: 0.0, 7: 0.0}

    def test_equal_ones_share_and_who_is_alone_is_average(self):
        assert standings([(1, {0: 2.0, 1: 2.0, 2: 1.0})], 2, 1.0) == {0: 0.5, 1: 0.5, 2: -1.0}
        assert standings([(1, {4: -3.0})], 2, 1.0) == {4: 0.0}
        assert standings([], 2, 1.0) == {}

    def test_only_the_last_round_of_a_client_counts(self):
        assert standings([(1, {0: 1.0, 1: 0.0}), (2, {0: -1.0, 2: 0.0})], 3, 1.0) == {0: -1.0, 1: -1.0, 2: 1.0}
