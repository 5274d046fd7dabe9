"""What a pool is paid out as: against tables worked by hand, and no unit lost."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.core.seeding import generator
from lightning_fl.functional import (
    UNITS_PER_TOKEN,
    reimbursement_share,
    reward_ranks,
    settle_round,
    split_units,
    to_units,
)


class TestReimbursementShare:
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


class TestRewardRanks:
    def test_by_hand(self):
        assert reward_ranks({3: 0.2, 8: -0.5, 1: 0.9, 5: 0.0}, {}) == {1: 4, 3: 3, 5: 2, 8: 1}

    def test_ties(self):
        """Client 2 took part more often; 0 and 1 did equally often."""
        assert reward_ranks({0: 0.5, 1: 0.5, 2: 0.5}, {0: 3, 1: 3, 2: 4}) == {0: 2, 1: 1, 2: 3}
        assert reward_ranks({0: 0.5, 1: 0.5}, {1: 1}) == {0: 1, 1: 2}


class TestUnits:
    def test_by_hand(self):
        assert split_units(100, {2: 1, 0: 1, 1: 1}) == {0: 34, 1: 33, 2: 33}
        assert split_units(10, {0: 1, 1: 3, 2: 6}) == {0: 1, 1: 3, 2: 6}
        assert split_units(2, {0: 1, 1: 1, 2: 2}) == {0: 1, 1: 0, 2: 1}  # quotas 0.5, 0.5, 1
        assert split_units(0, {0: 1}) == {0: 0}
        assert split_units(0, {}) == {}

    @pytest.mark.parametrize("seed", range(20))
    def test_nothing_is_lost_and_nobody_is_off_by_a_unit(self, seed):
        weights = dict(enumerate(torch.randint(1, 99, (11,), generator=generator(seed)).tolist()))
        parts = split_units(10**6 + seed, weights)
        assert sum(parts.values()) == 10**6 + seed
        for client, weight in weights.items():
            assert abs(parts[client] - (10**6 + seed) * weight / sum(weights.values())) < 1

    def test_tokens(self):
        assert to_units(1) == UNITS_PER_TOKEN
        assert to_units(0.1) == 100_000
        assert to_units(12345.678901) == 12_345_678_901


class TestSettlement:
    def test_a_round_by_hand(self):
        """Four payers of 30 and a stranger who trains for nothing. δ = 0.25, θ = 0.8 (0.5 - 0.25) / 0.5 = 0.4: of 120
        units 48 go back, 12 to each; 72 by ranks 4, 3, 2, 1 of 10: 28.8, 21.6, 14.4, 7.2, the units left over to the
        remainders 0.8 and 0.6."""
        psi = {0: 0.1, 1: 0.4, 2: -0.2, 4: 0.4}  # the update of client 3 did not arrive
        found = settle_round([3, 0, 1, 2], 30, psi, {1: 5, 4: 9}, accuracy=0.625, best_accuracy=0.5, eta=0.8, gamma=0.5)
        assert found == {
            "reimbursement": {0: 12, 1: 12, 2: 12, 3: 12},
            "reward": {0: 14, 1: 22, 2: 7, 4: 29},  # 4 took part more often than 1
        }

    @pytest.mark.parametrize(
        ("accuracy", "best", "reimbursed", "rewarded"),
        [
            (0.2, 0.0, {0: 0, 1: 0}, {0: 20, 1: 40}),  # the first round: all of it is earned
            (0.5, 0.5, {0: 30, 1: 30}, {0: 0, 1: 0}),  # no progress: all of it goes back
        ],
    )
    def test_limits(self, accuracy, best, reimbursed, rewarded):
        found = settle_round([0, 1], 30, {0: -1.0, 1: 1.0}, {}, accuracy, best, eta=1.0, gamma=1.0)
        assert found == {"reimbursement": reimbursed, "reward": rewarded}

    def test_where_no_update_arrived_all_is_paid_back(self):
        found = settle_round([2, 0], 30, {}, {}, math.nan, 0.5, eta=0.5, gamma=0.5)
        assert found == {"refund": {0: 30, 2: 30}}

    def test_nobody_paid(self):
        found = settle_round([], 30, {0: 0.3, 1: 0.1}, {}, 0.5, 0.5, eta=1.0, gamma=0.5)
        assert found == {"reimbursement": {}, "reward": {0: 0, 1: 0}}

    @given(
        st.sets(st.integers(0, 9)),
        st.integers(1, 10**8),
        st.dictionaries(st.integers(0, 9), st.floats(-1, 1)),
        st.tuples(st.floats(0, 1), st.floats(0, 1)),
        st.tuples(st.floats(0, 1), st.floats(0.01, 1)),
    )
    def test_all_of_the_pool_and_no_more_is_paid_out(self, payers, price, psi, accuracies, settings):
        found = settle_round(sorted(payers), price, psi, {}, *accuracies, *settings)
        assert all(amount >= 0 for units in found.values() for amount in units.values())
        assert sum(sum(units.values()) for units in found.values()) == price * len(payers)
