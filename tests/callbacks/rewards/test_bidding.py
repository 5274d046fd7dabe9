"""What each policy bids, and the view that it bids by."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.callbacks import HidingBidding, HonestBidding, OverBidding, RandomBidding
from lightning_fl.callbacks.rewards.bidding import BidView
from lightning_fl.errors import ConfigurationError

VIEW = BidView(
    client=3,
    round=2,
    importance=(0.9, 0.1, 0.6, 0.7),
    past_rewards=(0, 0, 5, 0),
    threshold=0.5,
    balance=None,
    price=0,
)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_honest_bids_go_by_reward_then_importance_above_the_threshold() -> None:
    assert HonestBidding().bid(VIEW, draws()) == [2, 0, 3]
    paying = replace(VIEW, balance=250, price=100)
    assert HonestBidding().bid(paying, draws()) == [2, 0]


def test_a_client_that_no_tier_is_worth_the_threshold_bids_for_the_best_or_keeps_silent() -> None:
    picky = replace(VIEW, threshold=0.95)
    assert HonestBidding().bid(picky, draws()) == [0]
    assert HonestBidding().bid(replace(picky, importance=(0.2, 0.4, 0.4, 0.1)), draws()) == [1]
    assert HonestBidding(at_least_one=False).bid(picky, draws()) == []
    assert HonestBidding().bid(replace(picky, balance=99, price=100), draws()) == []


def test_over_bidding_wants_every_tier_it_can_pay_for() -> None:
    assert OverBidding().bid(VIEW, draws()) == [2, 0, 3, 1]
    assert OverBidding().bid(replace(VIEW, importance=(0.0,) * 4, balance=299, price=100), draws()) == [2, 0]
    assert OverBidding().bid(replace(VIEW, balance=99, price=100), draws()) == []


def test_random_bids_name_every_tier_equally_often() -> None:
    first = torch.zeros(4)
    for seed in range(2000):
        (tier,) = RandomBidding().bid(VIEW, draws(seed))
        first[tier] += 1
    assert ((first / 2000 - 0.25).abs() < 4 * (0.25 * 0.75 / 2000) ** 0.5).all()
    assert sorted(RandomBidding(num_bids=None).bid(VIEW, draws())) == [0, 1, 2, 3]
    assert len(RandomBidding(num_bids=3).bid(replace(VIEW, balance=2, price=1), draws())) == 2


def test_hiding_is_honest_in_its_share_of_rounds() -> None:
    honest = HonestBidding().bid(VIEW, draws())
    assert all(HidingBidding(probability=0.0).bid(VIEW, draws(seed)) == honest for seed in range(20))
    assert all(HidingBidding(probability=1.0).bid(VIEW, draws(seed)) == [] for seed in range(20))
    found = [HidingBidding(probability=0.3).bid(VIEW, draws(seed)) for seed in range(2000)]
    assert all(one in ([], honest) for one in found)
    silent = sum(not one for one in found) / 2000
    assert silent == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 2000) ** 0.5)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(-9, 9)), min_size=1, max_size=5),
    st.integers(0, 12),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_all_bids_are_distinct_tiers_within_the_clients_means(
    tiers: list[tuple[float, int]], balance: int, price: int, seed: int
) -> None:
    importance, past = zip(*tiers, strict=True)
    view = BidView(0, 1, importance, past, 0.3, balance, price)
    for policy in (HonestBidding(), OverBidding(), RandomBidding(num_bids=None), HidingBidding(probability=0.5)):
        found = policy.bid(view, draws(seed))
        assert found == policy.bid(view, draws(seed))
        assert len(set(found)) == len(found) <= view.num_affordable
        assert set(found) <= set(range(len(tiers)))
        assert len(found) * price <= balance


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="RandomBidding.num_bids=0: give a number of at least 1"):
        RandomBidding(num_bids=0)
    with pytest.raises(ConfigurationError, match="HidingBidding.probability=1.5: give a number from 0 to 1"):
        HidingBidding(probability=1.5)
