"""Tokens: a ledger of who paid whom how much, kept so that none is ever lost.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
section 3.2; the payments of a round are in ``functional/settlement.py``.

==============================  ==========================================  ===============
paper                           here                                        unit
==============================  ==========================================  ===============
τ_i, tokens of client i         ``Ledger.balances()[i]``                    units of tokens
τ_ar, available pool            ``Ledger.pools()``, one per tier            units of tokens
R_t = θ τ_ar (equation 10)      :meth:`Ledger.reimburse`                    units of tokens
α τ_ar / β (equation 14)        :meth:`Ledger.reward`                       units of tokens
==============================  ==========================================  ===============

Amounts are whole units, a million to the token, so that sums are exact. What does not divide evenly is dealt out by
largest remainder, of equal remainders to the client with the smaller number first. At every time

    issued = sum of the balances + sum of the pools + retired

with no term below zero. Opening an account issues tokens; a client that leaves takes its balance out of circulation,
which retires it.

Differs from the paper: equation 11 subtracts the reimbursement from the client's tokens; it is added. The pool is one
per tier, so that no tier pays for another.
"""

import math
import operator
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from lightning_fl.errors import CheckpointError, ConfigurationError

__all__ = [
    "UNITS_PER_TOKEN",
    "Ledger",
    "Transaction",
    "replay",
    "split_units",
    "to_units",
]

UNITS_PER_TOKEN = 1_000_000

#: A client's number, the pool of the transaction's tier, or where tokens come from and go to.
Account = int | Literal["pool", "issued", "retired"]


class Transaction(NamedTuple):
    """One movement of tokens."""

    number: int
    """0, 1, ... in the order in which they happened."""
    round: int
    kind: str
    """"open", "close", "reimbursement", "reward", "refund", "retirement", or what the payer calls it: "bid"."""
    tier: int | None
    """Whose pool; ``None`` for opening and closing an account."""
    sender: Account
    recipient: Account
    amount: int
    """Units of tokens, >= 0."""


class Ledger:
    """Accounts of clients, a pool per tier, and every transaction between them.

    Example:
        >>> ledger = Ledger()
        >>> for client in (0, 1):
        ...     ledger.open(client, to_units(10), round=0)
        >>> ledger.pay(0, to_units(4), round=1, tier=0)
        >>> ledger.reward(0, {1: 1}, round=1)
        {1: 4000000}
        >>> ledger.balances()
        {0: 6000000, 1: 14000000}
    """

    def __init__(self) -> None:
        self._balances: dict[int, int] = {}
        self._pools: dict[int, int] = {}
        self._paid: dict[int, dict[int, int]] = {}  # tier -> client -> see payers
        self._issued = self._retired = 0
        self._transactions: list[Transaction] = []

    @property
    def transactions(self) -> list[Transaction]:
        """All so far, a new list."""
        return list(self._transactions)

    def since(self, number: int) -> list[Transaction]:
        """Those from a number on."""
        return self._transactions[number:]

    @property
    def issued(self) -> int:
        """Units that ever came into circulation."""
        return self._issued

    @property
    def retired(self) -> int:
        """Units that clients took out of circulation when they left."""
        return self._retired

    def balances(self) -> dict[int, int]:
        """Units of every client with an account, clients in ascending order."""
        return dict(sorted(self._balances.items()))

    def pools(self) -> dict[int, int]:
        """Units in the pool of every tier that anybody ever paid for, tiers in ascending order."""
        return dict(sorted(self._pools.items()))

    def payers(self, tier: int) -> dict[int, int]:
        """What clients still here paid into the pool since it was last empty, less what they got out of it."""
        return dict(sorted(self._paid.get(tier, {}).items()))

    def open(self, client: int, balance: int, round: int) -> None:
        """Give a client an account; one that left before gets a new one, with what it is given now.

        Raises:
            ConfigurationError: if it has an account, or the balance is negative or not whole.
        """
        if client in self._balances:
            raise ConfigurationError(f"client {client} has an account already: close it before you open another.")
        self._record(round, "open", None, "issued", client, _whole(balance))

    def close(self, client: int, round: int) -> int:
        """End an account; returns its balance, which goes out of circulation.

        Raises:
            ConfigurationError: if the client has no account.
        """
        balance = self._balance(client)
        self._record(round, "close", None, client, "retired", balance)
        return balance

    def pay(self, client: int, amount: int, round: int, tier: int, kind: str = "bid") -> None:
        """Move units from a client into the pool of a tier.

        Args:
            client: who pays.
            amount: units of tokens, >= 0.
            round: when.
            tier: whose pool.
            kind: what the transaction is called.

        Raises:
            ConfigurationError: if the client has no account or less than the amount, or the amount is not whole.
        """
        balance = self._balance(client)
        if _whole(amount) > balance:
            raise ConfigurationError(
                f"client {client} has {balance} units and cannot pay {amount} for tier {tier}: let it bid for what it"
                " can pay only (choose_bids), or open its account with more."
            )
        self._record(round, kind, tier, client, "pool", _whole(amount))

    def reimburse(self, tier: int, share: float, round: int) -> dict[int, int]:
        """Pay a share of a pool, rounded down to units, back to those still here who paid, to each the same.

        Args:
            tier: whose pool.
            share: θ from 0 to 1.
            round: when.

        Returns:
            Units by client; empty where everybody who paid has left, then the pool stays as it is.

        Raises:
            ConfigurationError: if the share is out of range.
        """
        if not 0 <= share <= 1:
            raise ConfigurationError(f"share={share}: a share of the pool lies between 0 and 1.")
        payers = self.payers(tier)
        if not payers:
            return {}
        amount = math.floor(self._pools[tier] * Fraction(share))
        parts = split_units(amount, dict.fromkeys(payers, 1))
        return self._pay_out(round, "reimbursement", tier, parts)

    def reward(self, tier: int, shares: Mapping[int, float | Fraction], round: int) -> dict[int, int]:
        """Pay all of a pool to its providers.

        Args:
            tier: whose pool.
            shares: provider -> share >= 0, any multiple of it.
            round: when.

        Returns:
            Units by client.

        Raises:
            ConfigurationError: if nobody has a positive share, or a provider has no account.
        """
        for client in shares:
            self._balance(client)
        return self._pay_out(round, "reward", tier, split_units(self._pools.get(tier, 0), shares))

    def refund(self, tier: int, round: int) -> dict[int, int]:
        """Pay all of a pool back: to each payer still here what it paid, less what it was reimbursed.

        The rest is retired: clients that have left paid it.

        Returns:
            Units by client.
        """
        paid, pool = self.payers(tier), self._pools.get(tier, 0)
        due = min(pool, sum(paid.values()))
        refunded = self._pay_out(round, "refund", tier, split_units(due, paid)) if due else {}
        if pool > due:
            self._record(round, "retirement", tier, "pool", "retired", pool - due)
        return refunded

    def rows(self) -> list[dict[str, int | str | None]]:
        """The transactions as rows of a table, for ``csv.DictWriter`` or ``pandas.DataFrame``."""
        return [one._asdict() for one in self._transactions]

    def state_dict(self) -> dict[str, Any]:
        """The transactions, from which everything else follows."""
        return {"transactions": [list(one) for one in self._transactions]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a state; all transactions are made again.

        Raises:
            CheckpointError: if a transaction does not follow from those before it.
        """
        fresh = Ledger()
        for row in state["transactions"]:
            try:
                one = Transaction(*row)
                if one.number != len(fresh._transactions) or one.amount < 0:
                    raise ValueError("number or amount")
                fresh._apply(one)
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"transaction {row} cannot have followed those before it: the record of tokens is damaged, resume"
                    " from another checkpoint."
                ) from error
        vars(self).update(vars(fresh))

    def _balance(self, client: int) -> int:
        if client not in self._balances:
            raise ConfigurationError(f"client {client} has no account: open one, or leave the client out.")
        return self._balances[client]

    def _pay_out(self, round: int, kind: str, tier: int, parts: Mapping[int, int]) -> dict[int, int]:
        for client, amount in parts.items():
            if amount:
                self._record(round, kind, tier, "pool", client, amount)
        return dict(parts)

    def _record(
        self, round: int, kind: str, tier: int | None, sender: Account, recipient: Account, amount: int
    ) -> None:
        # An integer of NumPy's would not be a plain value in a checkpoint.
        origin, target = (one if isinstance(one, str) else operator.index(one) for one in (sender, recipient))
        place = None if tier is None else operator.index(tier)
        number = len(self._transactions)
        self._apply(Transaction(number, operator.index(round), kind, place, origin, target, operator.index(amount)))

    def _apply(self, one: Transaction) -> None:
        """The only place where amounts change; raises KeyError or ValueError, before it changes any."""
        match (one.sender, one.recipient, one.tier):
            case ("issued", int(client), None) if client not in self._balances:
                self._issued += one.amount
                self._balances[client] = one.amount
            case (int(client), "retired", None) if self._balances[client] == one.amount:
                del self._balances[client]
                self._retired += one.amount
                for paid in self._paid.values():
                    paid.pop(client, None)
            case (int(client), "pool", int(tier)) if self._balances[client] >= one.amount:
                self._balances[client] -= one.amount
                self._pools[tier] = self._pools.get(tier, 0) + one.amount
                paid = self._paid.setdefault(tier, {})
                if one.amount:
                    paid[client] = paid.get(client, 0) + one.amount
            case ("pool", int() | "retired" as recipient, int(tier)) if self._pools[tier] >= one.amount:
                if recipient == "retired":
                    self._retired += one.amount
                else:
                    self._balances[recipient] += one.amount
                    if recipient in self._paid[tier]:
                        self._paid[tier][recipient] = max(0, self._paid[tier][recipient] - one.amount)
                self._pools[tier] -= one.amount
                if not self._pools[tier]:
                    self._paid[tier].clear()
            case _:
                raise ValueError(f"not a transaction: {one}")
        self._transactions.append(one)


def replay(transactions: Iterable[Transaction]) -> dict[int, int]:
    """The balances that transactions lead to, by adding up and nothing else, clients in ascending order."""
    balances: dict[int, int] = {}
    for one in transactions:
        if isinstance(one.recipient, int):
            balances[one.recipient] = balances.get(one.recipient, 0) + one.amount
        if isinstance(one.sender, int):
            balances[one.sender] -= one.amount
            if one.recipient == "retired":
                del balances[one.sender]
    return dict(sorted(balances.items()))


def split_units(amount: int, shares: Mapping[int, float | Fraction]) -> dict[int, int]:
    """Divide whole units in given proportions, exactly, by largest remainder.

    Args:
        amount: >= 0.
        shares: client -> share >= 0, any multiple of it.

    Returns:
        Units by client, ascending; they sum to the amount.

    Raises:
        ConfigurationError: if a share is negative or not finite, none is positive, or the amount is not whole.

    Example:
        >>> split_units(100, {0: 1, 1: 1, 2: 1})
        {0: 34, 1: 33, 2: 33}
    """
    total = _whole(amount)
    if not all(0 <= share < math.inf for share in shares.values()) or not any(shares.values()):
        raise ConfigurationError(f"shares={dict(shares)}: give finite shares of at least 0, at least one above.")
    exact = {client: Fraction(shares[client]) for client in sorted(shares)}
    whole = sum(exact.values())
    quotas = {client: total * share / whole for client, share in exact.items()}
    parts = {client: math.floor(quota) for client, quota in quotas.items()}
    rest = total - sum(parts.values())
    for client in sorted(quotas, key=lambda client: (parts[client] - quotas[client], client))[:rest]:
        parts[client] += 1
    return parts


def to_units(tokens: float) -> int:
    """Tokens in units, to the nearest one.

    Raises:
        ConfigurationError: if the number is negative or not finite.
    """
    if not 0 <= tokens < math.inf:
        raise ConfigurationError(f"tokens={tokens}: give a finite number of at least 0.")
    return round(Fraction(tokens) * UNITS_PER_TOKEN)


def _whole(amount: int) -> int:
    try:
        units = operator.index(amount)
    except TypeError:
        units = -1
    if units < 0:
        raise ConfigurationError(f"amount={amount}: amounts are whole units of at least 0; to_units makes them.")
    return units
