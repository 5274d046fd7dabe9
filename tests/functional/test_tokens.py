"""The ledger: no token is lost, none is spent twice."""

import csv
import io
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from lightning_fl.errors import CheckpointError, ConfigurationError
from lightning_fl.functional import UNITS_PER_TOKEN, Ledger, Transaction, replay, split_units, to_units
from lightning_fl.seeding import generator


def opened(*balances: int) -> Ledger:
    ledger = Ledger()
    for client, balance in enumerate(balances):
        ledger.open(client, balance, round=0)
    return ledger


class TestLedger:
    def test_every_transaction_is_on_record(self):
        ledger = opened(100, 50)
        ledger.pay(0, 30, round=1, tier=2)
        ledger.pay(1, 30, round=1, tier=2)
        assert ledger.reimburse(2, 0.25, round=1) == {0: 8, 1: 7}  # 15 units, one left over
        assert ledger.reward(2, {1: Fraction(2, 3), 0: Fraction(1, 3)}, round=1) == {0: 15, 1: 30}
        assert ledger.close(0, round=2) == 93
        assert ledger.transactions == [
            Transaction(0, 0, "open", None, "issued", 0, 100),
            Transaction(1, 0, "open", None, "issued", 1, 50),
            Transaction(2, 1, "bid", 2, 0, "pool", 30),
            Transaction(3, 1, "bid", 2, 1, "pool", 30),
            Transaction(4, 1, "reimbursement", 2, "pool", 0, 8),
            Transaction(5, 1, "reimbursement", 2, "pool", 1, 7),
            Transaction(6, 1, "reward", 2, "pool", 0, 15),
            Transaction(7, 1, "reward", 2, "pool", 1, 30),
            Transaction(8, 2, "close", None, 0, "retired", 93),
        ]
        assert (ledger.balances(), ledger.pools(), ledger.issued, ledger.retired) == ({1: 57}, {2: 0}, 150, 93)
        assert replay(ledger.transactions) == ledger.balances()

    def test_nobody_pays_what_it_has_not(self):
        ledger = opened(40)
        with pytest.raises(ConfigurationError, match="client 0 has 40 units and cannot pay 41 for tier 3: let it bid"):
            ledger.pay(0, 41, round=1, tier=3)
        assert (ledger.balances(), ledger.pools(), len(ledger.transactions)) == ({0: 40}, {}, 1)
        ledger.pay(0, 40, round=1, tier=3)
        assert ledger.balances() == {0: 0}

    def test_pools_are_apart(self):
        ledger = opened(100)
        ledger.pay(0, 10, round=1, tier=0)
        ledger.pay(0, 20, round=1, tier=1, kind="fee")
        assert ledger.pools() == {0: 10, 1: 20}
        assert ledger.transactions[-1].kind == "fee"
        assert ledger.reward(0, {0: 1}, round=1) == {0: 10}
        assert ledger.pools() == {0: 0, 1: 20}

    def test_all_paid_back(self):
        ledger = opened(100, 100, 100)
        for client, amount in enumerate((10, 20, 30)):
            ledger.pay(client, amount, round=1, tier=0)
        ledger.close(1, round=1)
        assert ledger.payers(0) == {0: 10, 2: 30}
        assert ledger.refund(0, round=1) == {0: 10, 2: 30}
        assert ledger.balances() == {0: 100, 2: 100}
        assert ledger.retired == 80 + 20
        assert ledger.transactions[-1] == Transaction(9, 1, "retirement", 0, "pool", "retired", 20)
        assert ledger.refund(5, round=1) == {}  # nobody ever paid

    def test_paid_back_after_a_part_was_reimbursed(self):
        ledger = opened(100, 100, 100)
        for client, amount in enumerate((10, 30, 20)):
            ledger.pay(client, amount, round=1, tier=0)
        ledger.close(2, round=1)
        assert ledger.reimburse(0, 0.5, round=1) == {0: 15, 1: 15}
        assert ledger.payers(0) == {0: 0, 1: 15}
        assert ledger.refund(0, round=1) == {0: 0, 1: 15}
        assert (ledger.balances(), ledger.pools()) == ({0: 105, 1: 100}, {0: 0})
        assert ledger.retired == 80 + 15  # of the 20 paid, 5 went to client 0

    def test_who_paid_is_forgotten_with_the_pool_that_is_spent(self):
        ledger = opened(100, 100)
        ledger.pay(0, 10, round=1, tier=0)
        ledger.reward(0, {1: 1}, round=1)
        ledger.pay(1, 10, round=2, tier=0)
        assert ledger.reimburse(0, 1.0, round=2) == {1: 10}

    def test_nothing_is_reimbursed_to_those_who_left(self):
        ledger = opened(100, 100)
        ledger.pay(0, 10, round=1, tier=0)
        ledger.close(0, round=1)
        ledger.open(0, 5, round=1)  # came back: another account
        assert ledger.reimburse(0, 1.0, round=1) == {}
        assert ledger.reward(0, {1: 1}, round=1) == {1: 10}
        assert ledger.balances() == {0: 5, 1: 110}

    def test_a_client_may_come_back(self):
        ledger = opened(30)
        ledger.close(0, round=1)
        ledger.open(0, 20, round=2)
        assert (ledger.balances(), ledger.issued, ledger.retired) == ({0: 20}, 50, 30)
        assert replay(ledger.transactions) == {0: 20}

    def test_resuming(self):
        ledger = opened(100, 100)
        ledger.pay(0, 10, round=1, tier=0)
        ledger.pay(np.int64(1), 20, round=np.int64(1), tier=np.int64(1))
        ledger.close(0, round=2)
        file = io.BytesIO()
        torch.save(ledger.state_dict(), file)
        file.seek(0)
        resumed = Ledger()
        resumed.load_state_dict(torch.load(file, weights_only=True))
        for one in (ledger, resumed):
            assert one.refund(0, round=2) == {}
            assert one.reimburse(1, 0.5, round=2) == {1: 10}
        assert resumed.transactions == ledger.transactions
        assert (resumed.balances(), resumed.pools(), resumed.issued, resumed.retired) == (
            {1: 90},
            {0: 0, 1: 10},
            200,
            100,
        )

    @pytest.mark.parametrize(
        "row",
        [
            [1, 1, "bid", 0, 0, "pool", 101],  # more than it has
            [2, 1, "bid", 0, 0, "pool", 1],  # one is missing before it
            [1, 1, "bid", 0, 7, "pool", 1],  # unknown client
            [1, 1, "bid", 0, 0, "pool", -1],
            [1, 1, "reward", 0, "pool", 0, 1],  # an empty pool
            [1, 1, "close", None, 0, "retired", 99],  # not all it has
            [1, 1, "open", None, "issued", 0, 1],  # open already
            [1, 1, "bid", 0, 0],
        ],
    )
    def test_a_damaged_record_is_not_resumed_from(self, row):
        ledger = opened(100)
        state = ledger.state_dict()
        state["transactions"].append(row)
        with pytest.raises(CheckpointError, match=r"transaction \[.*\] cannot have followed those before it"):
            ledger.load_state_dict(state)
        assert (ledger.balances(), len(ledger.transactions)) == ({0: 100}, 1)

    def test_rows_make_a_table(self):
        ledger = opened(100)
        ledger.pay(0, 10, round=1, tier=0)
        file = io.StringIO()
        writer = csv.DictWriter(file, Transaction._fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(ledger.rows())
        assert file.getvalue() == (
            "number,round,kind,tier,sender,recipient,amount\n0,0,open,,issued,0,100\n1,1,bid,0,0,pool,10\n"
        )

    def test_refusals(self):
        ledger = opened(100)
        with pytest.raises(ConfigurationError, match="client 0 has an account already: close it"):
            ledger.open(0, 5, round=1)
        for amount in (-1, 0.5):
            with pytest.raises(ConfigurationError, match=f"amount={amount}: amounts are whole units of at least 0"):
                ledger.open(1, amount, round=1)
            with pytest.raises(ConfigurationError, match=f"amount={amount}: amounts are whole units of at least 0"):
                ledger.pay(0, amount, round=1, tier=0)
        for call in (
            lambda: ledger.pay(9, 1, round=1, tier=0),
            lambda: ledger.close(9, round=1),
            lambda: ledger.reward(0, {9: 1}, round=1),
        ):
            with pytest.raises(ConfigurationError, match="client 9 has no account: open one, or leave the client out"):
                call()
        with pytest.raises(ConfigurationError, match="share=1.5: a share of the pool lies between 0 and 1"):
            ledger.reimburse(0, 1.5, round=1)
        with pytest.raises(ConfigurationError, match=r"shares=\{\}: give finite shares"):
            ledger.reward(0, {}, round=1)


class TestUnits:
    def test_by_hand(self):
        assert split_units(100, {2: 1, 0: 1, 1: 1}) == {0: 34, 1: 33, 2: 33}
        assert split_units(10, {0: 1, 1: 3, 2: 6}) == {0: 1, 1: 3, 2: 6}
        assert split_units(7, {0: 0.5, 1: 0.5, 2: 0.0}) == {0: 4, 1: 3, 2: 0}
        assert split_units(2, {0: 1, 1: 1, 2: 2}) == {0: 1, 1: 0, 2: 1}  # quotas 0.5, 0.5, 1
        assert split_units(0, {0: 1}) == {0: 0}

    @pytest.mark.parametrize("seed", range(20))
    def test_nothing_is_lost_and_nobody_is_off_by_a_unit(self, seed):
        shares = dict(enumerate(torch.rand(11, generator=generator(seed)).tolist()))
        parts = split_units(10**6 + seed, shares)
        assert sum(parts.values()) == 10**6 + seed
        for client, share in shares.items():
            assert abs(parts[client] - (10**6 + seed) * share / sum(shares.values())) < 1

    def test_tokens(self):
        assert to_units(1) == UNITS_PER_TOKEN
        assert to_units(0.1) == 100_000
        assert to_units(12345.678901) == 12_345_678_901
        for tokens in (-1, math.nan, math.inf):
            with pytest.raises(ConfigurationError, match=f"tokens={tokens}: give a finite number"):
                to_units(tokens)

    def test_refusals(self):
        for shares in ({}, {0: 0}, {0: -1, 1: 2}, {0: math.nan}):
            with pytest.raises(ConfigurationError, match="give finite shares of at least 0, at least one above"):
                split_units(5, shares)
        with pytest.raises(ConfigurationError, match=r"amount=0.5: amounts are whole units"):
            split_units(0.5, {0: 1})
