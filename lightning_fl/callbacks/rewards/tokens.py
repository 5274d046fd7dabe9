"""Tokens: clients pay for the tiers that they bid for, and are paid for their contributions.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
section 3.2, equations 6 to 14. A round's payments, and how they differ from the paper, are in
:mod:`lightning_fl.functional.tokens`. A client gets its first balance when it joins, and keeps it while absent.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from annotated_types import Interval

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Fraction, Positive, check_fields
from lightning_fl.functional.tokens import UNITS_PER_TOKEN, Transaction, settle_round, to_units

TOKEN_COLUMNS = ("number", "round", "kind", "tier", "sender", "recipient", "units")


@dataclass(frozen=True)
class Tokens:
    """Balances, prices and payments of ``TierBidding``.

    A tier's bidders pay into its pool, which is paid out after the round: the less the tier's model has improved, the
    more is reimbursed; the rest rewards the clients that trained it, by rank of their contributions.

    Args:
        initial_balance: tokens of a client when it is first present.
        price: tokens per bid of a selected client, at most the initial balance.
        eta: η, the reimbursed share of the pool if a tier's model has not improved.
        gamma: γ, the relative improvement of a tier's accuracy from which on nothing is reimbursed.
    """

    initial_balance: Positive = 100.0
    price: Positive = 1.0
    eta: Fraction = 0.5
    gamma: Annotated[float, Interval(gt=0, le=1)] = 0.1

    def __post_init__(self) -> None:
        check_fields(self, "Tokens.")
        for name, tokens in (("initial_balance", self.initial_balance), ("price", self.price)):
            if not to_units(tokens):
                raise ConfigurationError(f"Tokens.{name}={tokens}: must be at least a millionth of a token.")
        if self.price > (most := self.initial_balance):
            raise ConfigurationError(f"Tokens.price={self.price}: must be at most initial_balance={most}.")


class Ledger:
    """Accounts and transactions of clients. Balances and pools always sum to the issued tokens.

    Attributes:
        balances: client -> units of tokens, >= 0, of all clients that were ever present.
        pools: tier -> clients that paid into its pool, until it is settled.
        earned: (client, tier) -> units earned in the tier minus payments.
        transactions: all transactions in order; everything else follows from them.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.price = to_units(tokens.price)
        self.balances: Counter[int] = Counter()
        self.pools: dict[int, list[int]] = {}
        self.earned: Counter[tuple[int, int]] = Counter()
        self.transactions: list[Transaction] = []

    def open(self, round: int, clients: Iterable[int]) -> None:
        for client in sorted(set(clients).difference(self.balances)):
            self._record(Transaction(round, "open", None, "issued", client, to_units(self.tokens.initial_balance)))

    def pay(self, round: int, tier: int, payers: Iterable[int]) -> None:
        """Let the selected bidders pay before the training of a tier (equations 6 and 7)."""
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
        """Pay out a tier's pool, see :func:`~lightning_fl.functional.tokens.settle_round`."""
        of_pool = self.pools.pop(tier), self.price, contributions, participations
        payments = settle_round(*of_pool, accuracy, best_accuracy, self.tokens.eta, self.tokens.gamma)
        for kind, units in payments.items():
            for client, amount in units.items():
                if amount:
                    self._record(Transaction(round, kind, tier, "pool", client, amount))

    def _record(self, one: Transaction) -> None:
        for client, units in ((one.sender, -one.amount), (one.recipient, one.amount)):
            if isinstance(client, int):
                self.balances[client] += units
                if one.tier is not None:
                    self.earned[client, one.tier] += units
        self.transactions.append(one)

    def rows(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        def name(account: int | str) -> str:
            return account if isinstance(account, str) else names[account]

        return [
            (i, turn, kind, "" if tier is None else tier, name(sender), name(recipient), amount)
            for i, (turn, kind, tier, sender, recipient, amount) in enumerate(self.transactions)
        ]

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        """Balance of each client (none if never present) and sums of its payments, in tokens."""
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

    def replay(self, transactions: Iterable[Sequence[Any]]) -> None:
        for one in transactions:
            self._record(Transaction(*one))
