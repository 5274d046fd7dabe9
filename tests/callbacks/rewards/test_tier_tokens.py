"""Tokens: who pays, who is paid, and that none is lost whoever comes, leaves or fails; by themselves and in a run."""

import json
import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from corners import FailingTurns, Greedy, Leaving, fit
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import ModelCheckpoint, RandomBidding, ShapleyRewards, TierBidding, Tokens
from lightning_fl.callbacks.rewards.tokens import Ledger
from lightning_fl.core.seeding import generator
from lightning_fl.functional import Transaction, choose_bids, reimbursement_share, reward_ranks, schedule, split_units

UNIT = 1_000_000
REWARDS: dict[str, Any] = {"split": "train", "num_samples": 4}


def made(**arguments: Any) -> tuple[TierBidding, ShapleyRewards]:
    tokens = Tokens(initial_balance=10, price=1.5, eta=0.7, gamma=0.2)
    tiers = TierBidding(
        **{
            "num_tiers": 2,
            "num_best": 2,
            "num_random": 1,
            "threshold": 0.3,
            "num_samples": 6,
            "tokens": tokens,
            **arguments,
        }
    )
    return tiers, ShapleyRewards(**REWARDS)


def balances(tiers: TierBidding) -> list[dict[int, int]]:
    return [one.balances for one in tiers.rounds]


def transactions(tiers: TierBidding) -> list[Transaction]:
    assert tiers.ledger is not None
    return tiers.ledger.transactions


def payers(tiers: TierBidding, turn: int, k: int) -> list[int]:
    """Those of a tier's cohort that bid for it."""
    one = tiers.rounds[turn]
    return [i for i in one.cohorts[k]["best"] + one.cohorts[k]["random"] if k in one.bids.get(i, [])]


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_every_transaction_is_on_record() -> None:
    """θ = 0.5 of 60 units go back; 30 by ranks 2 and 1."""
    ledger = Ledger(Tokens(initial_balance=1e-4, price=3e-5, eta=0.5, gamma=0.5))
    ledger.open(1, [1, 0])
    ledger.open(1, [0, 1, 2])
    ledger.pay(2, 1, {1, 0})
    ledger.pay(2, 0, [])
    assert (ledger.balances, ledger.pools) == ({0: 70, 1: 70, 2: 100}, {1: [0, 1], 0: []})
    ledger.settle(2, 0, {}, {}, math.nan, 0.0)
    ledger.settle(2, 1, {0: -0.1, 2: 0.1}, {}, 0.5, 0.5)
    assert ledger.transactions == [
        Transaction(1, "open", None, "issued", 0, 100),
        Transaction(1, "open", None, "issued", 1, 100),
        Transaction(1, "open", None, "issued", 2, 100),
        Transaction(2, "bid", 1, 0, "pool", 30),
        Transaction(2, "bid", 1, 1, "pool", 30),
        Transaction(2, "reimbursement", 1, "pool", 0, 15),
        Transaction(2, "reimbursement", 1, "pool", 1, 15),
        Transaction(2, "reward", 1, "pool", 0, 10),
        Transaction(2, "reward", 1, "pool", 2, 20),
    ]
    assert (ledger.balances, ledger.pools) == ({0: 95, 1: 85, 2: 120}, {})
    assert ledger.earned == {(0, 1): -5, (1, 1): -15, (2, 1): 20}


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_tiers=st.integers(1, 3),
    price=st.integers(1, 40),
    eta=st.sampled_from([0.0, 0.3, 1.0]),
    failing=st.sampled_from([0.0, 0.2, 0.9]),
)
def test_nothing_is_lost_in_500_rounds(seed: int, num_tiers: int, price: int, eta: float, failing: float) -> None:
    """Clients join, leave, come back and fail; tokens are conserved, and none is owed."""
    rng = np.random.default_rng(seed)
    tokens = Tokens(initial_balance=100 / UNIT, price=price / UNIT, eta=eta, gamma=0.5)
    ledger, present, ever = Ledger(tokens), {0}, set[int]()  # the first may leave before it was ever there
    participations = [Counter[int]() for _ in range(num_tiers)]
    for number in range(500):
        if rng.random() < 0.1:
            present ^= {int(rng.integers(12))}  # comes or goes
        ever |= present
        ledger.open(number, present)
        bids = {
            client: choose_bids(rng.random(num_tiers).tolist(), rng.normal(size=num_tiers).tolist(), 0.3)[
                : ledger.balances[client] // price
            ]
            for client in sorted(present)
        }
        cohorts = []
        for tier in range(num_tiers):
            bidders = {client: tiers.index(tier) + 1 for client, tiers in bids.items() if tier in tiers}
            cohort = schedule(bidders, {}, 3, 1, generator(seed, number, tier), available=list(bids))
            ledger.pay(number, tier, set(bidders).intersection(cohort.clients))
            cohorts.append(cohort.clients)
        in_pools = price * sum(len(paid) for paid in ledger.pools.values())
        assert sum(ledger.balances.values()) + in_pools == 100 * len(ever)
        assert min(ledger.balances.values(), default=0) >= 0
        for tier, cohort in enumerate(cohorts):
            arrived = {client: float(rng.integers(-2, 3)) for client in cohort if rng.random() >= failing}
            ledger.settle(number, tier, arrived, participations[tier], *rng.random(2).tolist())
            participations[tier].update(arrived.keys())
        assert not ledger.pools
        assert sum(ledger.balances.values()) == 100 * len(ever)
    added_up: Counter[Any] = Counter()
    for one in ledger.transactions:
        added_up[one.sender] -= one.amount
        added_up[one.recipient] += one.amount
    assert {client: added_up[client] for client in ledger.balances} == ledger.balances
    assert (added_up["pool"], added_up["issued"]) == (0, -100 * len(ever))
    resumed = Ledger(tokens)
    resumed.replay(ledger.transactions)
    assert vars(resumed) == vars(ledger)


# -- one round after another against a plain account -------------------------------------------------------------------


@pytest.mark.slow
def test_balances_are_those_of_the_papers_equations() -> None:
    """Equations 6 to 14, tier by tier, from the bids, cohorts, accuracies and contributions of the run."""
    tiers, rewards = made()
    fit(tiers, rewards, max_rounds=8)
    expected = dict.fromkeys(range(6), 10 * UNIT)
    best, taken_part = {0: 0.0, 1: 0.0}, {0: Counter[int](), 1: Counter[int]()}
    paid_at_all = 0
    for turn in range(8):
        for k in (0, 1):
            paid = payers(tiers, turn, k)
            paid_at_all += len(paid)
            pool = len(paid) * 3 * UNIT // 2
            for i in paid:
                expected[i] -= 3 * UNIT // 2
            psi, accuracy = rewards.by_model[turn][k], tiers.rounds[turn].accuracies[k]
            theta = reimbursement_share(accuracy, best[k], 0.7, 0.2)
            back = split_units(int(pool * theta), dict.fromkeys(paid, 1))
            ranks = reward_ranks(psi, taken_part[k])
            for parts in (back, split_units(pool - sum(back.values()), ranks)):
                for i, units in parts.items():
                    expected[i] += units
            best[k] = max(best[k], accuracy)
            taken_part[k].update(psi)
        assert tiers.rounds[turn].balances == expected
    assert paid_at_all > 10
    assert sum(expected.values()) == 60 * UNIT


@pytest.mark.slow
def test_views_show_balances_and_what_tiers_brought() -> None:
    policy = Greedy()
    tiers, rewards = made(policies={2: policy})
    fit(tiers, rewards, max_rounds=6)
    assert [view.balance for view in policy.views] == [of[2] for of in balances(tiers)[:-1]]
    assert {view.price for view in policy.views} == {3 * UNIT // 2}
    for view in policy.views:
        earned = [0, 0]
        for one in transactions(tiers):
            if one.round < view.round and one.tier is not None:
                earned[one.tier] += one.amount * ((one.recipient == 2) - (one.sender == 2))
        assert view.past_rewards == tuple(earned)
        assert sum(earned) == (view.balance or 0) - 10 * UNIT
    assert any(any(view.past_rewards) for view in policy.views)


def test_bids_that_a_client_cannot_pay_for_are_left_out() -> None:
    tokens = Tokens(initial_balance=2, price=1, eta=0.0, gamma=1.0)
    tiers = TierBidding(num_tiers=3, num_best=6, num_random=0, policy=Greedy(), tokens=tokens)
    fit(tiers, ShapleyRewards(**REWARDS), max_rounds=4)
    assert all(len(tiers.rounds[1].bids[client]) == 2 for client in range(6))
    for turn in range(2, 4):
        for client in range(6):
            affordable = tiers.rounds[turn - 1].balances[client] // UNIT
            assert len(tiers.rounds[turn].bids.get(client, [])) == min(3, affordable)
            missed = tiers.rounds[turn].unaffordable.get(client, [])
            assert sorted([*tiers.rounds[turn].bids.get(client, []), *missed]) == [0, 1, 2]


def test_what_tokens_keep_clients_from_is_counted_and_nothing_is_warned_of(tmp_path: Path) -> None:
    tokens = Tokens(initial_balance=2, price=1, eta=0.0, gamma=1.0)
    tiers = TierBidding(num_tiers=3, num_best=6, num_random=0, policy=Greedy(), tokens=tokens)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="TierBidding.tokens prevented")
        run = fit(tiers, ShapleyRewards(**REWARDS), max_rounds=4, default_root_dir=tmp_path, logger=True)
    missed = [sum(map(len, one.unaffordable.values())) for one in tiers.rounds]
    assert missed[:2] == [0, 6]  # everybody wants three tiers and can pay for two
    metrics = pd.read_csv(Path(run.log_dir) / "metrics.csv")
    assert metrics["tokens/unaffordable"].dropna().tolist() == missed
    summary = json.loads((Path(run.log_dir) / "summary.json").read_text())["tokens"]
    assert summary["unaffordable_bids"] == sum(missed)
    assert summary["bids"] + summary["unaffordable_bids"] == 3 * 6 * 3  # in three rounds with bids
    table = pd.read_csv(Path(run.log_dir) / "tiers.csv")
    assert table.groupby("round")["unaffordable"].sum().tolist() == missed


def test_tokens_that_decided_nothing_are_warned_of() -> None:
    tokens = Tokens(initial_balance=100, price=1)
    tiers = TierBidding(num_tiers=2, num_best=2, num_random=0, policy=Greedy(), tokens=tokens)
    with pytest.warns(UserWarning, match="TierBidding.tokens .* 3 rounds: .*=100 at a price of 1 .* to 2,"):
        fit(tiers, ShapleyRewards(**REWARDS), max_rounds=4)


# -- whatever happens, no token is lost --------------------------------------------------------------------------------

AWAY = {0: {1, 2, 3}, 1: set(range(9, 14)), 4: {7} | set(range(20, 31)), 5: set(range(1, 12)) | {25, 26}}
FAILING = [(turn, client, k) for turn in range(3, 30, 4) for client in (1, 2, 3) for k in (0, 1) if (turn + client) % 3]


def eventful(root: Path, rounds: int, ckpt: Any = None, reverse: bool = False) -> FederatedTrainer:
    parts = made(policies={1: RandomBidding(), 3: Greedy()}, num_best=3)
    return fit(
        *(parts[::-1] if reverse else parts),
        Leaving(AWAY),
        FailingTurns(*FAILING),
        ModelCheckpoint(every_n_rounds=1),
        ckpt=ckpt,
        max_rounds=rounds,
        local_steps=1,
        on_client_error="skip",
        enable_checkpointing=True,
        default_root_dir=root,
    )


def tiers_of(run: FederatedTrainer) -> TierBidding:
    tiers = run.callback(TierBidding)
    assert tiers is not None
    return tiers


@pytest.fixture(scope="module")
def thirty_rounds(tmp_path_factory: pytest.TempPathFactory) -> FederatedTrainer:
    return eventful(tmp_path_factory.mktemp("thirty"), 30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_no_token_is_lost_in_thirty_rounds_of_coming_leaving_and_failing(thirty_rounds: FederatedTrainer) -> None:
    tiers = tiers_of(thirty_rounds)
    added_up: Counter[Any] = Counter()
    for turn in range(1, 31):
        for one in (one for one in transactions(tiers) if one.round == turn):
            added_up[one.sender] -= one.amount
            added_up[one.recipient] += one.amount
            assert all(added_up[client] >= 0 for client in range(6))
            assert added_up["pool"] >= 0
        assert added_up["pool"] == 0
        ever = {client for client in range(6) if not set(range(1, turn + 1)) <= AWAY.get(client, set())}
        assert tiers.rounds[turn - 1].balances == {client: added_up[client] for client in ever}
        assert -added_up["issued"] == sum(tiers.rounds[turn - 1].balances.values()) == 10 * UNIT * len(ever)
        payments = Counter(
            (one.tier, one.sender) for one in transactions(tiers) if one.round == turn and one.kind == "bid"
        )
        assert payments == Counter((k, i) for k in (0, 1) for i in payers(tiers, turn - 1, k))
    assert {one.kind for one in transactions(tiers)} >= {"open", "bid", "reward", "reimbursement"}


@pytest.mark.slow
def test_a_client_keeps_its_account_while_it_is_away(thirty_rounds: FederatedTrainer) -> None:
    tiers = tiers_of(thirty_rounds)
    opened = {one.recipient: (one.round, one.amount) for one in transactions(tiers) if one.kind == "open"}
    first = dict.fromkeys(range(6), 1) | {0: 4, 5: 12}
    assert opened == {client: (turn, 10 * UNIT) for client, turn in first.items()}
    for turn in range(20, 31):
        assert tiers.rounds[turn - 1].balances[4] == tiers.rounds[18].balances[4]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_the_table_of_transactions_leads_to_the_balances(thirty_rounds: FederatedTrainer) -> None:
    tiers = tiers_of(thirty_rounds)
    table = pd.read_csv(Path(thirty_rounds.log_dir) / "tokens.csv")
    assert list(table) == ["number", "round", "kind", "tier", "sender", "recipient", "units"]
    assert list(table["number"]) == list(range(len(table)))
    for turn in (1, 12, 30):
        rows = table[table["round"] <= turn]
        came, went = rows.groupby("recipient")["units"].sum(), rows.groupby("sender")["units"].sum()
        for client, units in tiers.rounds[turn - 1].balances.items():
            name = f"client_{client}"
            assert came.get(name, 0) - went.get(name, 0) == units
    summary = json.loads((Path(thirty_rounds.log_dir) / "summary.json").read_text())["tokens"]
    assert {name: summary[name] for name in ("initial_balance", "price", "eta", "gamma", "issued")} == {
        "initial_balance": 10,
        "price": 1.5,
        "eta": 0.7,
        "gamma": 0.2,
        "issued": 60,
    }
    assert summary["transactions"] == len(table)
    for client in range(6):
        of_client = summary["clients"][f"client_{client}"]
        assert of_client["balance"] == pytest.approx(tiers.rounds[-1].balances[client] / UNIT)
        gained = of_client["reimbursed"] + of_client["rewarded"] + of_client["refunded"] - of_client["paid"]
        assert of_client["balance"] == pytest.approx(10 + gained)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_the_order_of_the_callbacks_does_not_matter(tmp_path: Path) -> None:
    one, other = (eventful(tmp_path / str(reverse), 6, reverse=reverse) for reverse in (False, True))
    assert transactions(tiers_of(one)) == transactions(tiers_of(other))


@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_a_tier_whose_updates_all_failed_is_refunded() -> None:
    tiers, rewards = made(policy=Greedy(), num_best=6, num_random=0)
    fit(tiers, rewards, FailingTurns(*((3, client, 1) for client in range(6))), on_client_error="skip")
    kinds = {one.kind for one in transactions(tiers) if one.round == 3 and one.tier == 1}
    assert kinds == {"bid", "refund"}


# -- what is logged and what is refused --------------------------------------------------------------------------------


@pytest.mark.slow
def test_pools_and_balances_are_logged() -> None:
    tiers, rewards = made()
    run = fit(tiers, rewards, max_rounds=4)
    units = tiers.rounds[-1].balances
    for client in range(6):
        assert run.round_metrics[f"tokens/balance/client_{client}"] == units[client] / UNIT
    assert run.round_metrics["tokens/balance/min"] == min(units.values()) / UNIT
    assert run.round_metrics["tokens/balance/max"] == max(units.values()) / UNIT
    assert run.round_metrics["tokens/balance/mean"] == pytest.approx(10)
    for k in (0, 1):
        bids = [one.amount for one in transactions(tiers) if (one.round, one.kind, one.tier) == (4, "bid", k)]
        assert run.round_metrics[f"tokens/pool/{k}"] == sum(bids) / UNIT
    many = fit(*made(), max_rounds=2, log_per_client=False)
    assert "tokens/balance/client_0" not in many.round_metrics
