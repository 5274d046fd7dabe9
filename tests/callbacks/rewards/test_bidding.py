"""What each policy bids, and the view that it bids by."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from corners import fit
from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.callbacks import HonestBidding, RandomBidding, ShapleyRewards, TierBidding, Tokens
from lightning_fl.callbacks.rewards.bidding import BidView

VIEW = BidView(
    client=3, round=2, importance=(0.9, 0.1, 0.6, 0.7), past_rewards=(0, 0, 5, 0), threshold=0.5, balance=None, price=0
)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_honest_bids_go_by_reward_then_importance_above_the_threshold() -> None:
    assert HonestBidding().bid(VIEW, draws()) == [2, 0, 3]


def test_a_client_that_no_tier_is_worth_the_threshold_bids_for_the_best_or_keeps_silent() -> None:
    picky = replace(VIEW, threshold=0.95)
    assert HonestBidding().bid(picky, draws()) == [0]
    assert HonestBidding().bid(replace(picky, importance=(0.2, 0.4, 0.4, 0.1)), draws()) == [1]
    assert HonestBidding(at_least_one=False).bid(picky, draws()) == []


def test_random_bids_name_every_tier_equally_often() -> None:
    first = torch.zeros(4)
    for seed in range(2000):
        (tier,) = RandomBidding().bid(VIEW, draws(seed))
        first[tier] += 1
    assert ((first / 2000 - 0.25).abs() < 4 * (0.25 * 0.75 / 2000) ** 0.5).all()
    assert sorted(RandomBidding(num_bids=None).bid(VIEW, draws())) == [0, 1, 2, 3]
    assert len(RandomBidding(num_bids=3).bid(VIEW, draws())) == 3


def test_what_a_client_can_afford() -> None:
    assert VIEW.num_affordable == 4
    assert [replace(VIEW, balance=tokens, price=100).num_affordable for tokens in (99, 250, 999)] == [0, 2, 4]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(-9, 9)), min_size=1, max_size=5), st.integers(0, 99))
def test_all_bids_are_distinct_tiers(tiers: list[tuple[float, int]], seed: int) -> None:
    importance, past = zip(*tiers, strict=True)
    view = BidView(0, 1, importance, past, 0.3, None, 0)
    for policy in (HonestBidding(), RandomBidding(num_bids=None)):
        found = policy.bid(view, draws(seed))
        assert found == policy.bid(view, draws(seed))
        assert len(set(found)) == len(found)
        assert set(found) <= set(range(len(tiers)))


def test_the_documented_policy_runs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "tiers.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    documented: dict[str, Any] = {}
    exec(code, documented)
    policy = documented["Thrifty"]()
    assert policy.bid(VIEW, draws()) == [0]
    assert policy.bid(replace(VIEW, balance=60_000_000, price=30_000_000), draws()) == [0]
    assert policy.bid(replace(VIEW, balance=40_000_000, price=30_000_000), draws()) == []
    tiers = TierBidding(num_tiers=2, policies={3: policy}, tokens=Tokens())
    fit(tiers, ShapleyRewards(split="train", num_samples=4), max_rounds=2)
    assert len(tiers.rounds[1].bids[3]) == 1
