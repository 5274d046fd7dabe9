"""A round of payments against amounts worked by hand, and 500 rounds in which anything may happen."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.errors import ConfigurationError
from lightning_fl.functional import Ledger, choose_bids, collect_bids, replay, schedule, settle_round
from lightning_fl.seeding import generator


def opened(*balances: int) -> Ledger:
    ledger = Ledger()
    for client, balance in enumerate(balances):
        ledger.open(client, balance, round=0)
    return ledger


def test_a_round_by_hand():
    """Four payers of 30 and a stranger who trains for nothing. δ = 0.25, θ = 0.8 (0.5 - 0.25) / 0.5 = 0.4: of 120
    units 48 go back, 12 to each; 72 by ranks 4, 3, 2, 1 of 10: 28.8, 21.6, 14.4, 7.2, the units left over to the
    remainders 0.8 and 0.6."""
    ledger = opened(100, 100, 100, 100, 100)
    collect_bids(ledger, 1, 0, [3, 0, 1, 2], price=30)
    assert (ledger.balances(), ledger.pools()) == ({0: 70, 1: 70, 2: 70, 3: 70, 4: 100}, {0: 120})
    psi = {0: 0.1, 1: 0.4, 2: -0.2, 4: 0.4}  # the update of client 3 did not arrive
    found = settle_round(
        ledger, 1, 0, psi, {1: 5, 4: 9}, accuracy=0.625, best_accuracy=0.5, eta=0.8, gamma=0.5
    )  # fmt: skip
    assert found.share == pytest.approx(0.4)
    assert found.reimbursed == {0: 12, 1: 12, 2: 12, 3: 12}
    assert found.rewarded == {0: 14, 1: 22, 2: 7, 4: 29}  # 4 took part more often than 1
    assert found.refunded == {}
    assert ledger.balances() == {0: 96, 1: 104, 2: 89, 3: 82, 4: 129}
    assert ledger.pools() == {0: 0}
    kinds = Counter(one.kind for one in ledger.transactions)
    assert kinds == {"open": 5, "bid": 4, "reimbursement": 4, "reward": 4}


@pytest.mark.parametrize(
    ("accuracy", "best", "reimbursed", "rewarded"),
    [
        (0.2, 0.0, {0: 0, 1: 0}, {0: 20, 1: 40}),  # the first round: all of it is earned
        (0.5, 0.5, {0: 30, 1: 30}, {0: 0, 1: 0}),  # no progress: all of it goes back
    ],
)
def test_limits(accuracy, best, reimbursed, rewarded):
    ledger = opened(30, 30)
    collect_bids(ledger, 1, 0, [0, 1], price=30)
    found = settle_round(ledger, 1, 0, {0: -1.0, 1: 1.0}, {}, accuracy, best, eta=1.0, gamma=1.0)
    assert (found.reimbursed, found.rewarded) == (reimbursed, rewarded)


def test_no_provider_is_left():
    ledger = opened(100, 100, 100)
    collect_bids(ledger, 1, 0, [0, 1, 2], price=30)
    ledger.close(1, round=1)
    found = settle_round(ledger, 1, 0, {1: 0.3}, {}, math.nan, 0.5, eta=0.5, gamma=0.5)  # 1 trained, then left
    assert found == (1.0, {}, {}, {0: 30, 2: 30})
    assert (ledger.balances(), ledger.pools(), ledger.retired) == ({0: 100, 2: 100}, {0: 0}, 100)


def test_every_payer_left():
    ledger = opened(100, 100)
    collect_bids(ledger, 1, 0, [0], price=30)
    ledger.close(0, round=1)
    found = settle_round(ledger, 1, 0, {1: 0.3}, {}, 0.5, 0.5, eta=1.0, gamma=0.5)
    assert (found.reimbursed, found.rewarded) == ({}, {1: 30})
    assert ledger.balances() == {1: 130}


def test_everybody_left():
    ledger = opened(100)
    collect_bids(ledger, 1, 0, [0], price=30)
    ledger.close(0, round=1)
    assert settle_round(ledger, 1, 0, {}, {}, 0.5, 0.5, eta=1.0, gamma=0.5) == (1.0, {}, {}, {})
    assert (ledger.pools(), ledger.retired) == ({0: 0}, 100)


def test_nobody_paid():
    ledger = opened(100, 100)
    for price, payers in ((30, []), (0, [0, 1])):
        collect_bids(ledger, 1, 0, payers, price)
        found = settle_round(ledger, 1, 0, {0: 0.3, 1: 0.1}, {}, 0.5, 0.5, eta=1.0, gamma=0.5)
        assert sum(found.rewarded.values()) == sum(found.reimbursed.values()) == 0
    assert ledger.balances() == {0: 100, 1: 100}
    assert ledger.payers(0) == {}


def test_all_pay_or_nobody_does():
    ledger = opened(100, 20)
    with pytest.raises(ConfigurationError, match=r"tier 2: the price is 30 units, but these.* \{1: 20, 7: 0\}"):
        collect_bids(ledger, 1, 2, [0, 1, 7], price=30)
    with pytest.raises(ConfigurationError, match=r"payers=\[0, 0\]: name each client once"):
        collect_bids(ledger, 1, 2, [0, 0], price=30)
    assert ledger.balances() == {0: 100, 1: 20}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eta": 2.0}, "eta=2.0, gamma=0.5: give an eta"),
        ({"accuracy": math.nan}, "accuracy=nan, best_accuracy=0.5: give finite scores"),
        ({"contributions": {0: math.nan}}, "leave out providers whose updates failed"),
    ],
)
def test_no_token_moves_where_a_number_is_wrong(change, message):
    ledger = opened(100)
    collect_bids(ledger, 1, 0, [0], price=30)
    numbers = {"contributions": {0: 0.1}, "accuracy": 0.5, "best_accuracy": 0.5, "eta": 0.5, "gamma": 0.5}
    with pytest.raises(ConfigurationError, match=message):
        settle_round(ledger, 1, 0, participations={}, **{**numbers, **change})
    assert (ledger.balances(), ledger.pools()) == ({0: 70}, {0: 30})


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_tiers=st.integers(1, 3),
    price=st.integers(0, 40),
    eta=st.sampled_from([0.0, 0.3, 1.0]),
    failing=st.sampled_from([0.0, 0.2, 0.9]),
)
def test_nothing_is_lost_in_500_rounds(seed, num_tiers, price, eta, failing):
    """Clients join, leave before and during training, and fail; tokens are conserved, and none is owed."""
    rng = np.random.default_rng(seed)
    ledger, given_out, taken_along = Ledger(), 0, 0
    participations = [Counter[int]() for _ in range(num_tiers)]
    for number in range(500):
        if rng.random() < 0.05 or number == 0:
            newcomer = int(rng.integers(12))
            if newcomer not in ledger.balances():
                balance = int(rng.integers(0, 200))
                ledger.open(newcomer, balance, number)
                given_out += balance
        bids = {
            client: choose_bids(
                rng.random(num_tiers).tolist(), rng.normal(size=num_tiers).tolist(), 0.3, balance, price
            )
            for client, balance in ledger.balances().items()
        }
        cohorts = []
        for tier in range(num_tiers):
            bidders = [client for client, tiers in bids.items() if tier in tiers]
            cohort = schedule(bidders, {}, 3, 1, generator(seed, number, tier), available=list(bids))
            collect_bids(ledger, number, tier, [client for client in cohort.clients if client in bidders], price)
            cohorts.append(cohort.clients)
        if rng.random() < 0.03 and ledger.balances():
            leaver = int(rng.choice(list(ledger.balances())))
            taken_along += ledger.close(leaver, number)
        assert given_out == sum(ledger.balances().values()) + sum(ledger.pools().values()) + ledger.retired
        for tier, cohort in enumerate(cohorts):
            arrived = {client: float(rng.integers(-2, 3)) for client in cohort if rng.random() >= failing}
            accuracy, best = rng.random(2).tolist()
            settle_round(ledger, number, tier, arrived, participations[tier], accuracy, best, eta, 0.5)
            participations[tier].update(arrived.keys())
        assert min(ledger.balances().values(), default=0) >= 0
        assert set(ledger.pools().values()) <= {0}
        assert ledger.issued == given_out == sum(ledger.balances().values()) + ledger.retired
        assert ledger.retired >= taken_along
    assert replay(ledger.transactions) == ledger.balances()
    assert [one.number for one in ledger.transactions] == list(range(len(ledger.transactions)))
    resumed = Ledger()
    resumed.load_state_dict(ledger.state_dict())
    assert resumed.balances() == ledger.balances()
