"""Tokens in a run: who pays, who is paid, and that none is lost whoever comes, leaves or fails."""

import json
from collections import Counter
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tier_tiny import FailingTurns, Leaving, MixedClients, fit

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import (
    BiddingPolicy,
    Callback,
    ClientArrivals,
    ModelCheckpoint,
    OverBidding,
    RandomBidding,
    ShapleyRewards,
    TierBidding,
    TokenLedger,
)
from lightning_fl.callbacks.rewards.bidding import BidView
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional import rank_shares, reimbursement_share, split_units

UNIT = 1_000_000
REWARDS: dict[str, Any] = {"split": "train", "num_samples": 4}


def made(**arguments: Any) -> tuple[TierBidding, ShapleyRewards, TokenLedger]:
    tiers = TierBidding(
        **{"num_tiers": 2, "num_best": 2, "num_random": 1, "threshold": 0.3, "num_samples": 6, **arguments}
    )
    return tiers, ShapleyRewards(**REWARDS), TokenLedger(initial_balance=10, price=1.5, eta=0.7, gamma=0.2)


class Views(BiddingPolicy):
    """Overbids and keeps what it saw."""

    def __init__(self) -> None:
        self.views: list[BidView] = []

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        self.views.append(view)
        return OverBidding().bid(view, generator)


# -- one round after another against a plain account -------------------------------------------------------------------


@pytest.mark.slow
def test_balances_are_those_of_the_papers_equations() -> None:
    """Equations 6 to 14, tier by tier, from the bids, cohorts, accuracies and contributions of the run."""
    tiers, rewards, tokens = made()
    fit(tiers, rewards, tokens, max_rounds=8)
    balances = dict.fromkeys(range(6), 10 * UNIT)
    best, taken_part = {0: 0.0, 1: 0.0}, {0: Counter[int](), 1: Counter[int]()}
    paid_at_all = 0
    for turn in range(8):
        for k in (0, 1):
            cohort = tiers.cohorts[turn][k]
            payers = [i for i in cohort["best"] + cohort["random"] if k in tiers.bids[turn].get(i, [])]
            paid_at_all += len(payers)
            pool = len(payers) * 3 * UNIT // 2
            for i in payers:
                balances[i] -= 3 * UNIT // 2
            psi, accuracy = rewards.by_model[turn][k], tiers.accuracies[turn][k]
            theta = Fraction(reimbursement_share(accuracy, best[k], 0.7, 0.2))
            back = split_units(int(pool * theta), dict.fromkeys(payers, 1)) if payers else {}
            shares = rank_shares(psi, taken_part[k])
            for parts in (back, split_units(pool - sum(back.values()), shares)):
                for i, units in parts.items():
                    balances[i] += units
            best[k] = max(best[k], accuracy)
            taken_part[k].update(psi)
        assert tokens.balances[turn] == balances
    assert paid_at_all > 10
    assert sum(balances.values()) == 60 * UNIT
    assert tokens.rounds == list(range(1, 9))


@pytest.mark.slow
def test_views_show_balances_and_what_tiers_brought() -> None:
    policy = Views()
    tiers, rewards, tokens = made(policies={2: policy})
    fit(tiers, rewards, tokens, max_rounds=6)
    assert [view.balance for view in policy.views] == [of[2] for of in tokens.balances[:-1]]
    assert {view.price for view in policy.views} == {3 * UNIT // 2}
    for view in policy.views:
        earned = [0, 0]
        for one in tokens.ledger.transactions:
            if one.round < view.round and one.tier is not None:
                earned[one.tier] += one.amount * ((one.recipient == 2) - (one.sender == 2))
        assert view.past_rewards == tuple(earned)
        assert sum(earned) == (view.balance or 0) - 10 * UNIT
    assert any(any(view.past_rewards) for view in policy.views)


class Insolvent(BiddingPolicy):
    """Bids for everything, whatever it costs."""

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        return list(range(view.num_tiers))


def test_bids_that_a_client_cannot_pay_for_are_left_out() -> None:
    tiers = TierBidding(num_tiers=3, num_best=6, num_random=0, policy=Insolvent())
    tokens = TokenLedger(initial_balance=2, price=1, eta=0.0, gamma=1.0)
    fit(tiers, ShapleyRewards(**REWARDS), tokens, max_rounds=4)
    assert tiers.bids[1] == {client: [0, 1] for client in range(6)}
    for turn in range(2, 4):
        for client in range(6):
            affordable = tokens.balances[turn - 1][client] // UNIT
            assert len(tiers.bids[turn].get(client, [])) == min(3, affordable)


# -- whatever happens, no token is lost --------------------------------------------------------------------------------

AWAY = {0: {1, 2, 3}, 1: set(range(9, 14)), 4: {7} | set(range(20, 31)), 5: set(range(1, 12)) | {25, 26}}
FAILING = [(turn, client, k) for turn in range(3, 30, 4) for client in (1, 2, 3) for k in (0, 1) if (turn + client) % 3]


def eventful(root: Path, rounds: int, ckpt: Any = None, order: tuple[int, ...] = (0, 1, 2)) -> FederatedTrainer:
    parts = made(policies={1: RandomBidding(), 3: OverBidding()}, num_best=3)
    callbacks = [parts[place] for place in order]
    return fit(
        *callbacks,
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


def of_run(run: FederatedTrainer, kind: type[Any]) -> Any:
    return next(callback for callback in run.callbacks if isinstance(callback, kind))


@pytest.fixture(scope="module")
def thirty_rounds(tmp_path_factory: pytest.TempPathFactory) -> FederatedTrainer:
    return eventful(tmp_path_factory.mktemp("thirty"), 30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_no_token_is_lost_in_thirty_rounds_of_coming_leaving_and_failing(thirty_rounds: FederatedTrainer) -> None:
    tiers, tokens = of_run(thirty_rounds, TierBidding), of_run(thirty_rounds, TokenLedger)
    failed = [turn for turn, _, _ in FAILING]
    assert failed
    balances: Counter[Any] = Counter()
    transactions = tokens.ledger.transactions
    for turn in range(1, 31):
        for one in (one for one in transactions if one.round == turn):
            balances[one.sender] -= one.amount
            balances[one.recipient] += one.amount
            assert all(balances[client] >= 0 for client in range(6))
            assert balances["pool"] >= 0
        assert balances["pool"] == 0
        there = {client for client in range(6) if turn not in AWAY.get(client, ())}
        assert tokens.balances[turn - 1] == {client: balances[client] for client in sorted(there)}
        assert all(balances[client] == 0 for client in set(range(6)) - there)
        assert sum(balances.values()) == 0
        assert -balances["issued"] == sum(tokens.balances[turn - 1].values()) + balances["retired"]
        payments = Counter((one.tier, one.sender) for one in transactions if one.round == turn and one.kind == "bid")
        assert payments == Counter(
            (k, i)
            for k, cohort in tiers.cohorts[turn - 1].items()
            for i in cohort["best"] + cohort["random"]
            if k in tiers.bids[turn - 1].get(i, [])
        )
    kinds = {one.kind for one in transactions}
    assert {"open", "close", "bid", "reward", "reimbursement"} <= kinds


@pytest.mark.slow
def test_a_client_that_returns_brings_back_what_it_took_along(thirty_rounds: FederatedTrainer) -> None:
    tokens = of_run(thirty_rounds, TokenLedger)
    opened = [(one.recipient, one.round, one.amount) for one in tokens.ledger.transactions if one.kind == "open"]
    first = dict.fromkeys(range(6), 1) | {0: 4, 5: 12}
    for client in range(6):
        rounds = [(turn, amount) for who, turn, amount in opened if who == client]
        assert rounds[0] == (first[client], 10 * UNIT)
        for turn, amount in rounds[1:]:
            left = max(
                done for done, of in zip(tokens.rounds, tokens.balances, strict=True) if done < turn and client in of
            )
            assert amount == tokens.balances[left - 1][client]
    assert len(opened) == 6 + 3  # clients 1, 4 and 5 come back


def test_the_table_of_transactions_leads_to_the_balances(thirty_rounds: FederatedTrainer) -> None:
    tokens = of_run(thirty_rounds, TokenLedger)
    table = pd.read_csv(Path(thirty_rounds.log_dir) / "tokens.csv")
    assert list(table) == ["number", "round", "kind", "tier", "sender", "recipient", "units"]
    assert list(table["number"]) == list(range(len(table)))
    for turn in (1, 12, 30):
        rows = table[table["round"] <= turn]
        came, went = rows.groupby("recipient")["units"].sum(), rows.groupby("sender")["units"].sum()
        for client, units in tokens.balances[turn - 1].items():
            name = f"client_{client}"
            assert came.get(name, 0) - went.get(name, 0) == units
    summary = json.loads((Path(thirty_rounds.log_dir) / "summary.json").read_text())["tokens"]
    assert summary["transactions"] == len(table)
    of_client = summary["clients"]["client_2"]
    assert of_client["balance"] == pytest.approx(tokens.balances[-1][2] / UNIT)
    gained = of_client["reimbursed"] + of_client["rewarded"] + of_client["refunded"] - of_client["paid"]
    assert of_client["balance"] == pytest.approx(10 + gained)
    assert summary["clients"]["client_4"]["balance"] is None  # it is away
    in_hand = sum(of["balance"] or 0 for of in summary["clients"].values())
    assert summary["issued"] == pytest.approx(in_hand + summary["retired"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_it_resumes_to_the_same_transactions(tmp_path: Path, thirty_rounds: FederatedTrainer) -> None:
    part = eventful(tmp_path, 13)
    rest = eventful(tmp_path, 30, Path(part.log_dir) / "checkpoints" / "last.ckpt")
    assert of_run(rest, TokenLedger).state_dict() == of_run(thirty_rounds, TokenLedger).state_dict()
    assert all(a.equal(b) for a, b in zip(rest.models, thirty_rounds.models, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_the_order_of_the_callbacks_does_not_matter(tmp_path: Path) -> None:
    found = [
        of_run(eventful(tmp_path / str(place), 6, order=order), TokenLedger).state_dict()
        for place, order in enumerate(permutations(range(3)))
        if place in (0, 3, 5)
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.filterwarnings("ignore:.*left out of.*")
def test_a_tier_whose_updates_all_failed_is_refunded() -> None:
    tiers, rewards, tokens = made(policy=OverBidding(), num_best=6, num_random=0)
    fit(tiers, rewards, tokens, FailingTurns(*((3, client, 1) for client in range(6))), on_client_error="skip")
    kinds = {one.kind for one in tokens.ledger.transactions if one.round == 3 and one.tier == 1}
    assert kinds == {"bid", "refund"}


# -- what is logged and what is refused --------------------------------------------------------------------------------


@pytest.mark.slow
def test_pools_and_balances_are_logged() -> None:
    tiers, rewards, tokens = made()
    run = fit(tiers, rewards, tokens, max_rounds=4)
    units = tokens.balances[-1]
    for client in range(6):
        assert run.round_metrics[f"tokens/balance/client_{client}"] == units[client] / UNIT
    assert run.round_metrics["tokens/balance/min"] == min(units.values()) / UNIT
    assert run.round_metrics["tokens/balance/max"] == max(units.values()) / UNIT
    assert run.round_metrics["tokens/balance/mean"] == pytest.approx(10)
    for k in (0, 1):
        bids = [one.amount for one in tokens.ledger.transactions if (one.round, one.kind, one.tier) == (4, "bid", k)]
        assert run.round_metrics[f"tokens/pool/{k}"] == sum(bids) / UNIT
    many = fit(*made(), max_rounds=2, log_per_client=False)
    assert "tokens/balance/client_0" not in many.round_metrics


def test_one_tier_is_payments_in_fedavg() -> None:
    tiers, rewards, tokens = made(num_tiers=1, policy=OverBidding(), num_best=0, num_random=3)
    paying = fit(tiers, rewards, tokens, max_rounds=4)
    plain = fit(TierBidding(num_tiers=1, policy=OverBidding(), num_best=0, num_random=3, num_samples=6), max_rounds=4)
    assert paying.models[0].equal(plain.models[0])
    assert len({tuple(of.values()) for of in tokens.balances}) > 1


def test_a_late_joiner_gets_the_initial_balance() -> None:
    tiers, rewards, tokens = made()
    fit(ClientArrivals(rounds={"client_3": 3}), tokens, tiers, rewards, max_rounds=4)
    assert [3 in of for of in tokens.balances] == [False, False, True, True]
    opened = [one for one in tokens.ledger.transactions if one.kind == "open" and one.recipient == 3]
    assert [(one.round, one.amount) for one in opened] == [(3, 10 * UNIT)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"initial_balance": 0}, "initial_balance=0: give a finite number of tokens"),
        ({"price": 1e-9}, "price=1e-09: give a finite number of tokens, at least a millionth"),
        ({"price": float("inf")}, "price=inf: give a finite number"),
        ({"initial_balance": 1, "price": 2}, "price=2, initial_balance=1: nobody could ever bid"),
        ({"eta": 1.5}, "eta=1.5, gamma=0.1: give an eta from 0 to 1"),
        ({"gamma": 0.0}, "eta=0.5, gamma=0.0: give an eta from 0 to 1, and a gamma above 0"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"TokenLedger.{text}"):
        TokenLedger(**arguments)


def test_what_it_needs_is_named() -> None:
    tiers, rewards, tokens = made()
    without: list[tuple[list[Callback], str]] = [
        ([tokens, rewards], "TokenLedger needs TierBidding, .*num_tiers: 1 gives payments in FedAvg"),
        ([tokens, tiers], "TokenLedger needs ShapleyRewards, whose values decide the rewards: add it"),
        ([tokens, tiers, ShapleyRewards(every_n_rounds=2)], "every_n_rounds=2: TokenLedger pays after every round"),
        ([tokens, made()[2], tiers, rewards], "TokenLedger and TokenLedger both decide the payment"),
    ]
    for callbacks, text in without:
        with pytest.raises(ConfigurationError, match=text):
            fit(*callbacks, data=MixedClients())
