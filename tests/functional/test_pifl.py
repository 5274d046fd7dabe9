"""PI-FL's bids, scheduler and shares against tables worked by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, f1_score

from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.functional import (
    choose_bids,
    f1_scores,
    importance_weights,
    importance_weights_from_losses,
    importance_weights_from_metric,
    improvement,
    initial_tiers,
    rank_shares,
    reimbursement_share,
    schedule,
)
from lightning_fl.seeding import generator


class TestImportanceWeights:
    def test_by_hand(self):
        found = importance_weights(torch.tensor([[30, 10], [0, 0], [5, 20]]), [40, 7, 20])
        assert found.raw.tolist() == [[0.75, 0.25], [0.0, 0.0], [0.25, 1.0]]
        assert found.shares.tolist() == [[0.75, 0.25], [0.5, 0.5], [0.2, 0.8]]

    def test_one_client(self):
        found = importance_weights(torch.tensor([3, 1, 0]), 8)
        assert found.raw.tolist() == [0.375, 0.125, 0.0]
        assert found.shares.tolist() == [0.75, 0.25, 0.0]

    def test_any_score_from_0_to_1(self):
        found = importance_weights(torch.tensor([0.1, 0.3], dtype=torch.float64), 1)  # they sum to less than 1
        assert found.raw.tolist() == [0.1, 0.3]
        assert found.shares.tolist() == pytest.approx([0.25, 0.75])

    def test_shares_sum_to_one(self):
        correct = torch.randint(0, 50, (30, 4), generator=generator(0))
        shares = importance_weights(correct, [50] * 30).shares
        torch.testing.assert_close(shares.sum(1), torch.ones(30, dtype=torch.float64))

    def test_losses(self):
        """Losses 0 and log 3 score 1 and 1/3, of which the shares are 3/4 and 1/4."""
        found = importance_weights_from_losses(torch.tensor([0.0, math.log(3)], dtype=torch.float64))
        assert found.raw.tolist() == pytest.approx([1, 1 / 3])
        assert found.shares.tolist() == pytest.approx([0.75, 0.25])

    def test_losses_too_large_for_a_score_still_tell_tiers_apart(self):
        found = importance_weights_from_losses(torch.tensor([[2000.0, 2001.0], [1.0, math.nan], [math.inf, math.nan]]))
        assert found.raw[:, 1].tolist() == [0, 0, 0]
        shares = torch.tensor([[1 / (1 + math.exp(-1)), 1 / (1 + math.e)], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
        torch.testing.assert_close(found.shares, shares)

    def test_refusals(self):
        with pytest.raises(ConfigurationError, match=r"num_samples of shape \[1\] for correct of shape \[2, 2\]"):
            importance_weights(torch.ones(2, 2), [3])
        for correct, count in (([4, 0], 3), ([-1, 0], 3), ([0, 0], 0), ([math.nan, 0], 3)):
            with pytest.raises(ConfigurationError, match="at most all of them can be predicted correctly"):
                importance_weights(torch.tensor(correct), count)
        with pytest.raises(ConfigurationError, match=r"correct of shape \[1, 1, 2\]: give \[N, K\], or \[K\]"):
            importance_weights(torch.ones(1, 1, 2), [3])
        with pytest.raises(ConfigurationError, match=r"the score exp\(-loss\) is bounded for losses >= 0 only"):
            importance_weights_from_losses(torch.tensor([0.1, -0.1]))


class TestBids:
    @pytest.mark.parametrize(
        ("raw", "rewards", "threshold", "balance", "price", "bids"),
        [
            ([0.9, 0.1, 0.6], [0, 50, 20], 0.5, 1000, 100, [2, 0]),  # rewards decide among the tiers worth it
            ([0.6, 0.1, 0.9], [0, 0, 0], 0.5, 1000, 100, [2, 0]),  # nothing earned yet: the better fit
            ([0.6, 0.6, 0.6], [0, 0, 0], 0.5, 1000, 100, [0, 1, 2]),  # nothing to choose by: the number
            ([0.9, 0.8, 0.7], [1, 2, 3], 0.5, 299, 100, [2, 1]),  # money for two
            ([0.9, 0.8, 0.7], [1, 2, 3], 0.5, 300, 100, [2, 1, 0]),
            ([0.9, 0.8, 0.7], [1, 2, 3], 0.5, 99, 100, []),
            ([0.9, 0.8], [-5, 0], 0.5, 1000, 100, [1, 0]),  # a tier that lost money comes after one not tried
            ([0.5, 0.4], [9, 9], 0.5, 1000, 100, []),  # the threshold is not enough
            ([0.5, 0.0], [0, 0], 0.0, 0, 0, [0]),  # free of charge
        ],
    )
    def test_by_hand(self, raw, rewards, threshold, balance, price, bids):
        assert choose_bids(raw, rewards, threshold, balance, price) == bids
        assert choose_bids(torch.tensor(raw), torch.tensor(rewards), threshold, balance, price) == bids

    def test_tiers_have_no_order_of_their_own(self):
        draw = generator(0)
        raw, rewards = torch.rand(6, generator=draw), torch.randint(0, 3, (6,), generator=draw)
        bids = choose_bids(raw, rewards, 0.3, 400, 100)
        renamed = torch.randperm(6, generator=draw)
        assert [int(renamed[k]) for k in choose_bids(raw[renamed], rewards[renamed], 0.3, 400, 100)] == bids

    def test_refusals(self):
        with pytest.raises(ConfigurationError, match=r"past_rewards=\[0.0\]: give one finite number per tier"):
            choose_bids([0.5, 0.5], [0.0], 0.1, 10, 1)
        with pytest.raises(ConfigurationError, match=r"raw=\[nan\]"):
            choose_bids([math.nan], [0.0], 0.1, 10, 1)
        with pytest.raises(ConfigurationError, match="threshold=1.5: importance weights lie between 0 and 1"):
            choose_bids([0.5], [0.0], 1.5, 10, 1)
        with pytest.raises(ConfigurationError, match="balance=-1, price=1: neither may be negative"):
            choose_bids([0.5], [0.0], 0.1, -1, 1)


class TestSchedule:
    PSI = {0: 0.1, 1: -0.3, 2: 0.7, 3: 0.2, 4: 0.4, 5: 0.9}  # noqa: RUF012

    def test_best_first_then_at_random_from_the_other_bidders(self):
        found = schedule([0, 1, 2, 3, 4], self.PSI, 2, 2, generator(0))
        assert found.best == [2, 4]  # 5 is worth more, but did not bid
        assert len(found.random) == 2
        assert set(found.random) < {0, 1, 3}
        assert found.clients == sorted([2, 4, *found.random])

    def test_at_random_from_all_available(self):
        drawn: set[int] = set()
        for seed in range(50):
            found = schedule([0, 1, 2], self.PSI, 2, 2, generator(seed), available=range(6))
            assert found.best == [2, 0]
            assert len(set(found.clients)) == 4
            drawn.update(found.random)
        assert drawn == {1, 3, 4, 5}

    def test_every_other_bidder_has_the_same_chance(self):
        """500 draws of 1 from 4, a client's count has mean 125 and standard deviation 9.7."""
        counts = np.zeros(6)
        for seed in range(500):
            counts[schedule(range(6), self.PSI, 2, 1, generator(seed)).random] += 1
        assert set(np.flatnonzero(counts)) == {0, 1, 3, 4}
        assert (np.abs(counts[[0, 1, 3, 4]] - 125) < 40).all()

    def test_fewer_than_asked_for(self):
        assert schedule([4, 1], self.PSI, 3, 3, generator(0)) == ([4, 1], [])
        assert schedule([4, 1], self.PSI, 1, 3, generator(0)) == ([4], [1])
        assert schedule([], self.PSI, 3, 3, generator(0)) == ([], [])
        assert schedule([], {}, 3, 2, generator(0), available=[8]) == ([], [8])

    def test_a_client_never_seen_counts_as_average(self):
        assert schedule([1, 0, 9], self.PSI, 3, 0, generator(0)).best == [0, 9, 1]

    def test_ties_are_broken_by_the_generator(self):
        firsts = [schedule(range(4), {}, 1, 0, generator(seed)).best[0] for seed in range(100)]
        assert set(firsts) == {0, 1, 2, 3}

    def test_the_generator_decides_and_the_order_of_clients_does_not(self):
        one = schedule([0, 1, 2, 3, 4], {}, 2, 1, generator(3), available=[6, 5])
        same = schedule([3, 1, 4, 0, 2], {}, 2, 1, generator(3), available=[5, 6])
        assert one == same
        assert len({tuple(schedule(range(8), {}, 2, 2, generator(s)).clients) for s in range(10)}) > 1

    @pytest.mark.parametrize("seed", range(3))
    def test_numbers_of_clients_mean_nothing_to_the_best(self, seed):
        names = torch.randperm(6, generator=generator(seed)).tolist()
        psi = {names[client]: value for client, value in self.PSI.items()}
        best = schedule([names[client] for client in range(5)], psi, 3, 0, generator(0)).best
        assert best == [names[client] for client in (2, 4, 3)]

    def test_refusals(self):
        with pytest.raises(ConfigurationError, match="num_best=-1, num_random=2: give numbers of at least 0"):
            schedule([0], {}, -1, 2, generator(0))
        with pytest.raises(ConfigurationError, match=r"bidders=\[1, 1\]: name each client once"):
            schedule([1, 1], {}, 1, 1, generator(0))
        with pytest.raises(ConfigurationError, match=r"available=\[2, 2\]: name each client once"):
            schedule([1], {}, 1, 1, generator(0), available=[2, 2])
        with pytest.raises(ConfigurationError, match="leave out clients whose contribution is not known"):
            schedule([1], {1: math.nan}, 1, 1, generator(0))


class TestReimbursement:
    def test_improvement(self):
        assert improvement(0.75, 0.5) == 0.5
        assert improvement(0.25, 0.5) == 0.0
        assert improvement(0.1, 0.0) == math.inf
        assert improvement(0.0, 0.0) == 0.0

    @pytest.mark.parametrize(
        ("accuracy", "best", "share"),
        [
            (0.5, 0.5, 0.8),  # nothing gained: η
            (0.3, 0.5, 0.8),
            (0.625, 0.5, 0.4),  # δ = γ / 2: half of η
            (0.75, 0.5, 0.0),  # δ = γ
            (0.9, 0.5, 0.0),
            (0.1, 0.0, 0.0),  # the first round
            (0.0, 0.0, 0.8),
        ],
    )
    def test_by_hand(self, accuracy, best, share):
        assert reimbursement_share(accuracy, best, eta=0.8, gamma=0.5) == share

    def test_the_more_improvement_the_less_is_paid_back(self):
        shares = [reimbursement_share(0.5 + step / 100, 0.5, 1.0, 0.3) for step in range(30)]
        assert shares == sorted(shares, reverse=True)
        assert (shares[0], shares[-1]) == (1.0, 0.0)

    def test_refusals(self):
        for eta, gamma in ((1.1, 0.5), (-0.1, 0.5), (0.5, 0.0), (0.5, 1.1), (math.nan, 0.5)):
            with pytest.raises(ConfigurationError, match=f"eta={eta}, gamma={gamma}: give an eta from 0 to 1"):
                reimbursement_share(0.5, 0.5, eta, gamma)
        for accuracy, best in ((-0.1, 0.5), (0.5, -0.1), (math.nan, 0.5), (0.5, math.inf)):
            with pytest.raises(ConfigurationError, match="give finite scores of at least 0"):
                improvement(accuracy, best)


class TestRankShares:
    def test_by_hand(self):
        """n = 4, β = 10."""
        shares = rank_shares({3: 0.2, 8: -0.5, 1: 0.9, 5: 0.0}, {})
        assert shares == {1: Fraction(4, 10), 3: Fraction(3, 10), 5: Fraction(2, 10), 8: Fraction(1, 10)}
        assert list(shares) == [1, 3, 5, 8]

    def test_ties(self):
        """Client 2 took part more often; 0 and 1 did equally often."""
        assert rank_shares({0: 0.5, 1: 0.5, 2: 0.5}, {0: 3, 1: 3, 2: 4}) == {
            0: Fraction(2, 6),
            1: Fraction(1, 6),
            2: Fraction(3, 6),
        }
        assert rank_shares({0: 0.5, 1: 0.5}, {1: 1}) == {0: Fraction(1, 3), 1: Fraction(2, 3)}

    @pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
    def test_they_sum_to_one(self, count):
        psi = dict(enumerate(torch.randn(count, generator=generator(count)).tolist()))
        assert sum(rank_shares(psi, {}).values()) == (count > 0)

    def test_numbers_of_clients_mean_nothing_without_ties(self):
        names = [4, 2, 0, 1, 3]
        psi = [0.3, -1.0, 2.0, 0.1, 0.0]
        shares = rank_shares(dict(enumerate(psi)), {})
        renamed = rank_shares({names[client]: value for client, value in enumerate(psi)}, {})
        assert [renamed[names[client]] for client in range(5)] == [shares[client] for client in range(5)]

    def test_refusal(self):
        with pytest.raises(ConfigurationError, match="leave out providers whose updates failed"):
            rank_shares({0: math.nan}, {})


class TestInitialTiers:
    @staticmethod
    def _scores() -> tuple[torch.Tensor, list[int]]:
        """Classes 1 and 3 tell two kinds of clients apart; the others are noise that is alike for all."""
        rng = np.random.default_rng(0)
        kinds = [0, 1, 1, 0, 1, 0, 0, 1]
        scores = 0.5 + 0.05 * rng.uniform(-1, 1, size=(8, 5))
        scores[:, 1] += 0.4 * np.array(kinds)
        scores[:, 3] -= 0.4 * np.array(kinds)
        return torch.from_numpy(scores), kinds

    @pytest.mark.parametrize("rho", [1, 2, 5])
    def test_clients_of_a_kind_start_together(self, rho):
        scores, kinds = self._scores()
        assert initial_tiers(scores, 2, rho, seed=0) == kinds

    def test_only_the_most_varying_classes_count(self):
        """With both columns the larger spread of the first one decides as well; with the second alone it would not."""
        scores = torch.tensor([[0.0, 0.5], [1.0, 0.6], [0.1, 0.6], [0.9, 0.5]])
        assert initial_tiers(scores, 2, 1, seed=0) == [0, 1, 0, 1]

    def test_the_seed_decides(self):
        scores = torch.rand(20, 4, generator=generator(0))
        assert initial_tiers(scores, 3, 2, seed=5) == initial_tiers(scores, 3, 2, seed=5)
        assert initial_tiers(scores, 3, 2, seed=2**62)[0] == 0

    def test_order_of_clients(self):
        scores, _ = self._scores()
        order = torch.randperm(8, generator=generator(1))
        found = initial_tiers(scores[order], 2, 2, seed=0)
        assert adjusted_rand_score(found, torch.tensor(initial_tiers(scores, 2, 2, seed=0))[order]) == 1

    def test_refusals(self):
        scores, _ = self._scores()
        for tiers, rho in ((0, 1), (9, 1), (2, 0), (2, 6)):
            with pytest.raises(ConfigurationError, match=rf"num_tiers={tiers}, rho={rho} for scores of shape \[8, 5\]"):
                initial_tiers(scores, tiers, rho, seed=0)
        with pytest.raises(ConfigurationError, match="seed=-1: give a seed of at least 0"):
            initial_tiers(scores, 2, 2, seed=-1)
        with pytest.raises(DataError, match="f1: every score must be finite"):
            initial_tiers(scores.fill_(math.nan), 2, 2, seed=0)
        with pytest.raises(DataError, match="scores of 4 clients are of 1 kinds, too few for 2 tiers"):
            initial_tiers(torch.ones(4, 3), 2, 2, seed=0)


# -- F1 scores ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_f1_scores_are_those_of_sklearn(pairs):
    targets, predictions = (torch.tensor(column) for column in zip(*pairs, strict=True))
    counts = [
        torch.stack([((targets == k) & (predictions == k)).sum() for k in range(4)]),
        torch.stack([((targets != k) & (predictions == k)).sum() for k in range(4)]),
        torch.stack([((targets == k) & (predictions != k)).sum() for k in range(4)]),
    ]
    expected = f1_score(targets, predictions, labels=range(4), average=None, zero_division=0)
    assert f1_scores(*counts).tolist() == pytest.approx(expected.tolist())


def test_negative_counts_have_no_f1():
    with pytest.raises(ConfigurationError, match="counts are at least 0"):
        f1_scores(torch.tensor([-1]), torch.tensor([0]), torch.tensor([0]))


def test_accuracies_of_less_than_one_have_shares_too():
    found = importance_weights(torch.tensor([[0.2, 0.3], [0.0, 0.0]]), [1, 1])
    assert found.shares.tolist() == [pytest.approx([0.4, 0.6]), [0.5, 0.5]]


def test_importance_weights_from_any_metric():
    shares = importance_weights_from_metric("acc", torch.tensor([0.2, math.nan, 0.6], dtype=torch.float64), True)
    assert shares.raw.tolist() == [0.2, 0.0, 0.6]
    assert shares.shares.tolist() == pytest.approx([0.25, 0.0, 0.75])
    whole = importance_weights_from_metric("acc", torch.tensor([1 + 1e-7, 0.5], dtype=torch.float64), True)
    assert whole.raw.tolist() == [1.0, 0.5]  # a rounding error of the metric's
    losses = torch.tensor([0.0, math.log(4), math.nan, math.inf], dtype=torch.float64)
    worth = importance_weights_from_metric("loss", losses, False)
    assert worth.raw.tolist() == pytest.approx([1.0, 0.25, 0.0, 0.0])
    assert worth.shares.tolist() == pytest.approx([0.8, 0.2, 0.0, 0.0])


@pytest.mark.parametrize(("values", "better"), [([0.5, 1.5], True), ([-0.1, 0.5], True), ([1.5, -2.0], False)])
def test_a_metric_out_of_range_is_named(values, better):
    words = f"r2 is {values[0]:g}, {values[1]:g}, and cannot be made a score from 0 to 1: set monitor to a share"
    with pytest.raises(ConfigurationError, match=words):
        importance_weights_from_metric("r2", torch.tensor(values, dtype=torch.float64), better)
