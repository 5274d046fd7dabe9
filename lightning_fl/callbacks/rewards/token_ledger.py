"""Tokens: clients pay for the tiers that they bid for, and are paid for what they contribute.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
section 3.2, equations 6 to 14. The accounts are :mod:`lightning_fl.functional.tokens`, a round's payments
:mod:`lightning_fl.functional.settlement`.

=====================  =====================================================  ================
paper                  here                                                   unit
=====================  =====================================================  ================
τ_i                    ``balances``; ``initial_balance`` at first             units; tokens
τ_p                    ``price`` of a bid                                     tokens
τ_ar                   ``tokens/pool/TIER``, what a round's bidders paid      tokens
η, γ                   ``eta``, ``gamma``                                     shares in [0, 1]
ψ_ki                   ``ShapleyRewards``, the round's value in the tier      loss
Ω_ki                   rounds in which a client's update reached the tier     rounds
Acc_kr, Acc_kmax       ``TierBidding.accuracies`` and their best so far       share in [0, 1]
=====================  =====================================================  ================

Differs from the paper: see the modules named above. Where clients come and go: a client gets its first balance when it
is first there, however late. One that leaves takes its balance along, out of circulation, and brings it back when it
returns; it cannot get rid of a small balance, or get a second initial one, by leaving.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.callbacks.rewards.tier_history import TierHistory
from lightning_fl.errors import ConfigurationError
from lightning_fl.functional.settlement import collect_bids, settle_round
from lightning_fl.functional.tokens import UNITS_PER_TOKEN, Account, Ledger, to_units
from lightning_fl.surface import TrainerSurface

__all__ = ["TokenLedger"]


class TokenLedger(Callback):
    """Accounts of clients, beside ``TierBidding`` and ``ShapleyRewards``: one pays to bid and earns by contributing.

    What the bidders of a tier pay for a round is paid out after it: the less the tier's model has improved, the more
    goes back to them; the rest goes to those who trained it, by rank of their contributions. No token is lost or made;
    amounts are whole millionths. With ``TierBidding(num_tiers=1)`` these are payments in FedAvg.

    Writes ``tokens.csv``, every transaction in units of a millionth of a token, from which all balances follow. Logged
    are ``tokens/pool/TIER``, ``tokens/balance/mean``, ``/min`` and ``/max``, and ``tokens/balance/CLIENT`` where
    clients have curves of their own (``trainer.log_per_client``).

    Args:
        initial_balance: tokens of a client when it is first there.
        price: tokens that a bid costs a client that is selected, above 0 and at most the initial balance.
        eta: η in [0, 1], the share of the pool that is paid back where a tier's model has not improved.
        gamma: γ in (0, 1], the relative improvement of a tier's accuracy from which on nothing is paid back.

    Attributes (a list entry per round):
        rounds: rounds done.
        balances: units of every client that is there, after the round.
        ledger: all accounts and transactions.

    Raises:
        ConfigurationError: a value is out of range; at the start of a run, ``TierBidding`` or ``ShapleyRewards`` is not
            among the callbacks, or does not value every round.
    """

    role = "payment"

    def __init__(
        self, *, initial_balance: float = 100.0, price: float = 1.0, eta: float = 0.5, gamma: float = 0.1
    ) -> None:
        for name, tokens in (("initial_balance", initial_balance), ("price", price)):
            if not (0 < tokens < math.inf and to_units(tokens)):
                raise ConfigurationError(
                    f"TokenLedger.{name}={tokens}: give a finite number of tokens, at least a millionth."
                )
        if price > initial_balance:
            raise ConfigurationError(
                f"TokenLedger.price={price}, initial_balance={initial_balance}: nobody could ever bid; give clients at"
                " least the price of one bid."
            )
        if not (0 <= eta <= 1 and 0 < gamma <= 1):
            raise ConfigurationError(
                f"TokenLedger.eta={eta}, gamma={gamma}: give an eta from 0 to 1, and a gamma above 0, at most 1."
            )
        self.initial_balance = initial_balance
        self.price = price
        self.price_units = to_units(price)
        self.eta = eta
        self.gamma = gamma
        self._reset()

    def _reset(self) -> None:
        self.ledger = Ledger()
        self.rounds: list[int] = []
        self.balances: list[dict[int, int]] = []
        self._participations: dict[int, dict[int, int]] = {}
        self._best: dict[int, float] = {}
        self._count_again()

    def _count_again(self) -> None:
        #: (client, tier) -> units that it brought less what it cost; how many transactions that covers.
        self._earned: Counter[tuple[int, int]] = Counter()
        self._counted = 0

    # -- a run ---------------------------------------------------------------------------------------------------

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse what cannot work before anything is read."""
        if stage != "fit":
            return
        for kind, name, why in (
            (TierHistory, "TierBidding", "whose bids are paid for (num_tiers: 1 gives payments in FedAvg)"),
            (ShapleyRewards, "ShapleyRewards", "whose values decide the rewards"),
        ):
            if not any(isinstance(callback, kind) for callback in trainer.callbacks):
                raise ConfigurationError(f"TokenLedger needs {name}, {why}: add it to trainer.callbacks.")
        rewards = next(callback for callback in trainer.callbacks if isinstance(callback, ShapleyRewards))
        if rewards.every_n_rounds != 1:
            raise ConfigurationError(
                f"ShapleyRewards.every_n_rounds={rewards.every_n_rounds}: TokenLedger pays after every round; set it to"
                " 1."
            )

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Forget an earlier run."""
        self._reset()

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Write ``tokens.csv`` and the summary."""
        if not trainer.is_global_zero or trainer.datamodule is None:
            return
        import pandas as pd  # takes a second to import

        names = trainer.datamodule.client_names()

        def name(account: Account) -> str:
            return account if isinstance(account, str) else names[account]

        rows = [
            (one.number, one.round, one.kind, one.tier, name(one.sender), name(one.recipient), one.amount)
            for one in self.ledger.transactions
        ]
        columns = ["number", "round", "kind", "tier", "sender", "recipient", "units"]
        table = pd.DataFrame(rows, columns=columns).astype({"tier": "Int64"})
        folder = Path(trainer.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / "tokens.csv", index=False)
        trainer.run_log.summary["tokens"] = {
            "initial_balance": self.initial_balance,
            "price": self.price,
            "eta": self.eta,
            "gamma": self.gamma,
            "issued": self.ledger.issued / UNITS_PER_TOKEN,
            "retired": self.ledger.retired / UNITS_PER_TOKEN,
            "transactions": len(rows),
            "clients": self._summary(names),
        }

    def state_dict(self) -> dict[str, Any]:
        """The accounts, and what rewards go by."""
        return {
            "ledger": self.ledger.state_dict(),
            "rounds": self.rounds,
            "balances": self.balances,
            "participations": self._participations,
            "best": self._best,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the accounts."""
        self.ledger.load_state_dict(state["ledger"])
        self.rounds = list(state["rounds"])
        self.balances = [dict(one) for one in state["balances"]]
        self._participations = {tier: dict(of_tier) for tier, of_tier in state["participations"].items()}
        self._best = dict(state["best"])
        self._count_again()

    # -- what TierBidding asks for -------------------------------------------------------------------------------

    def begin_round(self, trainer: TrainerSurface) -> None:
        """Open accounts of those who have come, close those of clients that have left."""
        turn, present = trainer.current_round + 1, set(trainer.present_clients)
        accounts = set(self.ledger.balances())
        for client in sorted(accounts - present):
            self.ledger.close(client, turn)
        if not present - accounts:
            return
        taken_along = {one.sender: one.amount for one in self.ledger.since(0) if one.kind == "close"}
        for client in sorted(present - accounts):
            self.ledger.open(client, taken_along.get(client, to_units(self.initial_balance)), turn)

    def balance(self, client: int) -> int:
        """Units that a present client has."""
        return self.ledger.balances()[client]

    def past_rewards(self, client: int, num_tiers: int) -> tuple[int, ...]:
        """Rewards, reimbursements and refunds of a client less its payments, in each tier, units."""
        new = self.ledger.since(self._counted)
        for one in new:
            if one.tier is not None:
                if isinstance(one.sender, int):
                    self._earned[one.sender, one.tier] -= one.amount
                if isinstance(one.recipient, int):
                    self._earned[one.recipient, one.tier] += one.amount
        self._counted += len(new)
        return tuple(self._earned[client, tier] for tier in range(num_tiers))

    def collect(self, trainer: TrainerSurface, payers: Mapping[int, Sequence[int]]) -> None:
        """The selected bidders pay into their tiers' pools."""
        for tier, clients in payers.items():
            collect_bids(self.ledger, trainer.current_round + 1, tier, clients, self.price_units)
            trainer.log(f"tokens/pool/{tier}", self.ledger.pools().get(tier, 0) / UNITS_PER_TOKEN)

    def settle(
        self,
        trainer: TrainerSurface,
        contributions: Mapping[int, Mapping[int, float]],
        accuracies: Sequence[float],
    ) -> None:
        """Empty the pools: reimbursements by the tiers' improvement, rewards by rank."""
        for tier, accuracy in enumerate(accuracies):
            providers = contributions.get(tier, {})
            taken_part = self._participations.setdefault(tier, {})
            best = self._best.get(tier, 0.0)
            settle_round(
                self.ledger,
                trainer.current_round + 1,
                tier,
                providers,
                taken_part,
                accuracy,
                best,
                self.eta,
                self.gamma,
            )
            for client in providers:
                taken_part[client] = taken_part.get(client, 0) + 1
            if providers:
                self._best[tier] = max(best, accuracy)
        self.rounds.append(trainer.current_round + 1)
        self.balances.append(self.ledger.balances())
        self._log(trainer)

    # -- records -------------------------------------------------------------------------------------------------

    def _log(self, trainer: TrainerSurface) -> None:
        tokens = {client: units / UNITS_PER_TOKEN for client, units in self.balances[-1].items()}
        trainer.log("tokens/balance/mean", sum(tokens.values()) / len(tokens))
        trainer.log("tokens/balance/min", min(tokens.values()))
        trainer.log("tokens/balance/max", max(tokens.values()))
        if trainer.logs_clients:
            assert trainer.datamodule is not None
            names = trainer.datamodule.client_names()
            for client, value in tokens.items():
                trainer.log(f"tokens/balance/{names[client]}", value)

    def _summary(self, names: Sequence[str]) -> dict[str, dict[str, float | None]]:
        """What each client has (none if it is away), and what moved it there, in tokens."""
        moved: Counter[tuple[Account, str]] = Counter()
        for one in self.ledger.transactions:
            moved[one.recipient if one.sender == "pool" else one.sender, one.kind] += one.amount
        balances = self.ledger.balances()
        kinds = {"paid": "bid", "reimbursed": "reimbursement", "rewarded": "reward", "refunded": "refund"}
        return {
            name: {
                "balance": balances[client] / UNITS_PER_TOKEN if client in balances else None,
                **{word: moved[client, kind] / UNITS_PER_TOKEN for word, kind in kinds.items()},
            }
            for client, name in enumerate(names)
        }
