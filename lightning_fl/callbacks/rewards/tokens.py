"""Tokens: clients pay for the tiers that they bid for, and are paid for what they contribute.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
section 3.2, equations 6 to 14. A round's payments are worked out in :mod:`lightning_fl.functional.tokens`.

=====================  =====================================================  ================
paper                  here                                                   unit
=====================  =====================================================  ================
τ_i                    ``Ledger.balances``; ``initial_balance`` at first      units; tokens
τ_p                    ``Tokens.price`` of a bid                              tokens
η, γ                   ``Tokens.eta``, ``Tokens.gamma``                       shares in [0, 1]
=====================  =====================================================  ================

Differs from the paper: see the module named above. Where clients come and go: a client gets its first balance when it
is first there, however late, and keeps its account while it is away.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_numbers
from lightning_fl.functional.tokens import UNITS_PER_TOKEN, Transaction, settle_round, to_units

__all__ = ["Ledger", "Tokens"]


@dataclass(frozen=True)
class Tokens:
    """What clients of ``TierBidding`` have, pay and earn.

    What the bidders of a tier pay for a round is paid out after it: the less the tier's model has improved, the more
    goes back to them; the rest goes to those who trained it, by rank of their contributions.

    Args:
        initial_balance: tokens of a client when it is first there.
        price: tokens that a bid costs a client that is selected, above 0 and at most the initial balance.
        eta: η in [0, 1], the share of the pool that is paid back where a tier's model has not improved.
        gamma: γ in (0, 1], the relative improvement of a tier's accuracy from which on nothing is paid back.
    """

    initial_balance: float = 100.0
    price: float = 1.0
    eta: float = 0.5
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_numbers(self, initial_balance=self.initial_balance, price=self.price, above=0)
        check_numbers(self, eta=self.eta, at_least=0, at_most=1)
        check_numbers(self, gamma=self.gamma, above=0, at_most=1)
        for name, tokens in (("initial_balance", self.initial_balance), ("price", self.price)):
            if not to_units(tokens):
                raise ConfigurationError(
                    f"Tokens.{name}={tokens}: give a finite number of tokens, at least a millionth."
                )
        if self.price > self.initial_balance:
            raise ConfigurationError(
                f"Tokens.price={self.price}, initial_balance={self.initial_balance}: nobody could ever bid; give"
                " clients at least the price of one bid."
            )


class Ledger:
    """Accounts of clients and every transaction. No token is lost or made: at the end of a round all that was ever
    given out is in the balances; between bids and the settlement the rest is in the pools.

    Attributes:
        balances: client -> units of tokens, >= 0; of everybody who was ever there.
        pools: tier -> clients that paid the price into its pool, which has not been settled.
        earned: (client, tier) -> units that the tier brought it, less what it cost.
        transactions: all, in order; everything else follows from them.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.price = to_units(tokens.price)
        self.balances: Counter[int] = Counter()
        self.pools: dict[int, list[int]] = {}
        self.earned: Counter[tuple[int, int]] = Counter()
        self.transactions: list[Transaction] = []

    def open(self, round: int, clients: Iterable[int]) -> None:
        """Give those of the clients an account that have none."""
        for client in sorted(set(clients).difference(self.balances)):
            self._record(Transaction(round, "open", None, "issued", client, to_units(self.tokens.initial_balance)))

    def pay(self, round: int, tier: int, payers: Iterable[int]) -> None:
        """Before the training of a tier: the selected bidders, who can all afford it, pay (equations 6 and 7)."""
        self.pools[tier] = sorted(payers)
        for client in self.pools[tier]:
            self._record(Transaction(round, "bid", tier, client, "pool", self.price))

    def settle(
        self,
        round: int,
        tier: int,
        contributions: Mapping[int, float],
        participations: Mapping[int, int],
        accuracy: float,
        best_accuracy: float,
    ) -> None:
        """After it: its pool is paid out, see :func:`~lightning_fl.functional.tokens.settle_round`."""
        payments = settle_round(
            self.pools.pop(tier),
            self.price,
            contributions,
            participations,
            accuracy,
            best_accuracy,
            self.tokens.eta,
            self.tokens.gamma,
        )
        for kind, units in payments.items():
            for client, amount in units.items():
                if amount:
                    self._record(Transaction(round, kind, tier, "pool", client, amount))

    def _record(self, one: Transaction) -> None:
        """The only place where tokens move."""
        for client, units in ((one.sender, -one.amount), (one.recipient, one.amount)):
            if isinstance(client, int):
                self.balances[client] += units
                if one.tier is not None:
                    self.earned[client, one.tier] += units
        self.transactions.append(one)

    def rows(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """``tokens.csv``: number, round, kind, tier, sender, recipient, units."""

        def name(account: int | str) -> str:
            return account if isinstance(account, str) else names[account]

        return [
            (number, one.round, one.kind, one.tier, name(one.sender), name(one.recipient), one.amount)
            for number, one in enumerate(self.transactions)
        ]

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        """What each client has (none if it never was there), and what moved it there, in tokens."""
        moved: Counter[tuple[int | str, str]] = Counter()
        for one in self.transactions:
            moved[one.sender if one.kind == "bid" else one.recipient, one.kind] += one.amount
        kinds = {"paid": "bid", "reimbursed": "reimbursement", "rewarded": "reward", "refunded": "refund"}
        return {
            **asdict(self.tokens),
            "issued": sum(one.amount for one in self.transactions if one.kind == "open") / UNITS_PER_TOKEN,
            "transactions": len(self.transactions),
            "clients": {
                name: {
                    "balance": self.balances[client] / UNITS_PER_TOKEN if client in self.balances else None,
                    **{word: moved[client, kind] / UNITS_PER_TOKEN for word, kind in kinds.items()},
                }
                for client, name in enumerate(names)
            },
        }

    def repeat(self, transactions: Iterable[Sequence[Any]]) -> None:
        """Make the transactions of another ledger again, on no account yet."""
        for one in transactions:
            self._record(Transaction(*one))
